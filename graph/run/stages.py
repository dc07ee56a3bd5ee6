"""The stages of one iteration. Each writes a file when it is done, and is skipped once the file exists."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from agents.spending import RepeatedFailure
from environments.base import InputError
from environments.command import MISTAKE, StorageError, storage_refusal, writing
from evaluation.outcomes import Report, Score
from evaluation.settings import LOOKUP, LimitSettings, ScoringSettings
from graph.checkpoints import run_checkpoints, thread_id
from graph.records import ExtractionRecord, Fork, PrintedProgress, StageSeconds
from graph.run.interruption import Interruption
from graph.run.progress import Progress, Stage
from graph.settings import RunSettings
from graph.state import IterationInput, IterationState
from memory.failures import DeduplicationResult
from memory.processes import ChildFailure, run_child
from memory.records import FailureContext
from memory.run import RunDirectory, read_json, read_jsonl, write_json
from memory.settings import OFFICIAL
from memory.tasks import admit
from training.grpo.record import RoundProgress, RoundRecord
from training.rollout.settings import IN_PROCESS

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    from graph.assembly import RunServices


async def evolve_once(services: RunServices, iteration: int, stage: Stage, interruption: Interruption) -> None:
    """Run the graph of one iteration, from its beginning or its last checkpoint, until ``update`` is done.

    The caller holds the run's lock. A signal stops the graph at the end of a superstep, each of which is on disk before
    the next one begins. Raises CancelledError after a signal, InputError for a user's mistake, RepeatedFailure for work
    that only fails, StorageError and OSError for a full disk, and any error of a node outside the fan-out.
    """
    run = services.run
    refuse_unfinished(run, iteration)
    try:
        with writing(run.checkpoints_path):
            async with run_checkpoints(run) as saver:
                await _evolve(services, iteration, stage, interruption, saver)
    except sqlite3.DatabaseError as error:
        # Any other DatabaseError means that the file is damaged or not a database.
        if isinstance(error, sqlite3.OperationalError):
            raise
        path = run.checkpoints_path
        raise InputError(f"{path} is damaged ({error}): remove it, the iteration's graph begins afresh") from error


async def _evolve(
    services: RunServices, iteration: int, stage: Stage, interruption: Interruption, saver: AsyncSqliteSaver
) -> None:
    from langgraph.errors import GraphDrained
    from langgraph.runtime import RunControl

    from graph.iteration import iteration_graph

    control = RunControl()
    graph = iteration_graph().compile(checkpointer=saver)
    config = _config(iteration, services.settings.roles.concurrency)
    begun = await _has_begun(graph, saver, config, services.run)
    events = graph.astream(
        None if begun else IterationInput(iteration=iteration),
        config,
        context=services,
        stream_mode=["tasks"],
        version="v2",
        durability="sync",
        control=control,
    )
    branches = _Branches(stage)
    try:
        with interruption.draining(control.request_drain):
            async for event in events:
                branches.show(event["data"])
    except GraphDrained:
        raise asyncio.CancelledError from None
    except Exception as error:
        if isinstance(error, InputError | RepeatedFailure) or storage_refusal(error):
            # Checkpoints keep a failure: once the mistake is corrected, the graph has to begin afresh.
            await saver.adelete_thread(thread_id(iteration))
        raise


def _config(iteration: int, at_once: int) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id(iteration)}, "max_concurrency": at_once}


async def _has_begun(
    graph: Any,  # noqa: ANN401 - a generic
    saver: AsyncSqliteSaver,
    config: RunnableConfig,
    run: RunDirectory,
) -> bool:
    """Return whether the thread can be resumed; one that cannot is deleted.

    A thread at its end has lost its files. One that Studio went on with has its records in a copy of the run, and one
    whose state was edited there does not fit the run's. One that a full disk ended could not record that.
    """
    state = await graph.aget_state(config)
    resumable = state.next and not any(task.error and storage_refusal(task.error) for task in state.tasks)
    if resumable and await asyncio.to_thread(_is_unedited, run, state.next, state.values):
        return True
    await saver.adelete_thread(config["configurable"]["thread_id"])
    return False


def _is_unedited(run: RunDirectory, nodes: Sequence[str], values: Any) -> bool:  # noqa: ANN401 - as stored
    state = values if isinstance(values, IterationState) else IterationState(**values)
    return state.run == "" and all(as_recorded(run, state, node) for node in nodes)


class _Branches:
    """Counts branches that begin and end, for the progress display."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._begun: set[str] = set()
        self._ended = 0

    def show(self, task: Any) -> None:  # noqa: ANN401 - an event of the library
        node = task["name"]
        if node == "branch" and "input" in task:
            self._begun.add(task["id"])
        elif node == "branch":
            self._ended += 1
        self._stage.update(self._ended, len(self._begun) or None, "branches" if self._begun else node)


@dataclass(frozen=True)
class Run:
    """A run in progress: its folder, settings, display and signals. ``resumed``: an earlier process worked on it."""

    directory: RunDirectory
    settings: RunSettings
    progress: Progress
    interruption: Interruption
    resumed: bool

    @cached_property
    def services(self) -> RunServices:
        """The services of this run's nodes, built when a stage first needs them and kept for the whole command."""
        from graph.assembly import assemble

        return assemble(RunDirectory(self.directory.root.resolve()), self.settings)


async def make_tasks(run: Run) -> None:
    """Write D_0 into tasks.jsonl: the benchmark's own, from the user's file, or by unguided exploration.

    Raises InputError when no task of the file is accepted or exploration finds too few.
    """
    if run.directory.tasks_path.exists():
        forget_branches(run.directory)  # of a process that was killed before it did
        return
    from graph.run.initial_tasks import make_seeds, official_tasks, verify_given

    initial, services = run.settings.tasks.initial, run.services
    with _timed(run, 0, "seed"):
        if initial == OFFICIAL:
            with run.progress.stage("D_0: official tasks"):
                tasks = await asyncio.to_thread(official_tasks, services, run.progress.say)
        elif initial is not None:
            with run.progress.stage(f"verifying {initial}"):
                tasks = await verify_given(Path(initial), services, run.progress.say)
        else:
            with run.progress.stage("D_0: unguided exploration", run.settings.tasks.initial_count) as stage:
                seeds = await make_seeds(services, run.settings.tasks.initial_count, stage)
            if seeds.failures:
                run.progress.say(seeds.failed())
            tasks = tuple(seeds.tasks)
        admit(run.directory, tasks)
        forget_branches(run.directory)


def forget_branches(run: RunDirectory) -> None:
    shutil.rmtree(run.seed.branches, ignore_errors=True)


async def score_before(run: Run, iteration: int) -> None:
    """Write panel_before.json: the last iteration's score after its round, or the initial policy's score."""
    folder = run.directory.iteration(iteration)
    if run.settings.evaluation.scored is None or folder.evaluation_before.exists():
        return
    if iteration > 0:
        previous = run.directory.iteration(iteration - 1).evaluation_after
        write_json(folder.evaluation_before, read_json(previous, Score))
        return
    await _score(run, iteration, "before", run.settings.policy.path)


async def train(run: Run, iteration: int) -> None:
    """Run the round of GRPO in a process of its own: trajectories.jsonl, round.json and a checkpoint of the policy."""
    folder = run.directory.iteration(iteration)
    if folder.round.exists():
        return
    command = ["training.run_round", "--run", str(run.directory.root), "--iteration", str(iteration)]
    if run.resumed:
        command.append("--resume")
    steps = run.settings.training.steps
    with _timed(run, iteration, "train"), run.progress.stage(f"iteration {iteration}: training", steps) as stage:
        await _child(run, command, folder.training_log, run.settings.deadlines.round, _reporter(stage))


async def score_after(run: Run, iteration: int) -> None:
    """Write panel_after.json: the score of the policy that the round made; and lookup.json beside it.

    The lookup over the tasks that the round could learn from is the dullest control (``evaluation.baselines``). A run
    that does not train on the tasks that it admits has none: its tasks.jsonl holds more than the policy saw.
    """
    folder = run.directory.iteration(iteration)
    if run.settings.evaluation.scored is None:
        return
    if run.settings.tasks.uses_evolved and not folder.lookup.exists():
        await _score(run, iteration, "lookup", LOOKUP)
    if not folder.evaluation_after.exists():
        policy = read_json(folder.round, RoundRecord).policy
        await _score(run, iteration, "after", str(run.directory.root / policy))


async def evolve(run: Run, iteration: int) -> None:
    """Run the graph: signals of the round in, tasks of the next round out; it writes evolution.json last."""
    if run.directory.iteration(iteration).evolution.exists():
        return
    with _timed(run, iteration, "evolve"), run.progress.stage(f"iteration {iteration}: graph") as stage:
        await evolve_once(run.services, iteration, stage, run.interruption)


async def _score(run: Run, iteration: int, what: Literal["before", "after", "lookup"], policy: str) -> None:
    settings = run.settings
    folder = run.directory.iteration(iteration)
    files = folder.evaluation(what)
    stated = scoring_settings(settings)
    if what == "lookup":  # it has no model that servers could sample
        stated = stated.model_copy(update={"train": run.directory.tasks_path, "sampling": IN_PROCESS})
    write_json(folder.evaluation_settings, stated)
    command = ["evaluation.run", "--settings", str(folder.evaluation_settings), "--model", policy]
    command += ["--output", str(files.outcomes), "--json", "--progress"]
    files.outcomes.unlink(missing_ok=True)  # of an evaluation that was killed before its score
    lines: list[str] = []
    label = f"iteration {iteration}: evaluation {'of the lookup' if what == LOOKUP else f'{what} training'}"
    with _timed(run, iteration, f"evaluation {what}"), run.progress.stage(label) as stage:
        shown = _evaluation_reporter(stage, lines.append)
        await _child(run, command, files.log, settings.deadlines.evaluation, shown)
        score = printed_score(lines, files.log)
    write_json(files.score, score)


def scoring_settings(settings: RunSettings) -> ScoringSettings:
    """Return the settings of a run's own evaluations, without the policy.

    Limits that the section ``evaluation`` leaves open are those of training, and the environment's for actions.
    """
    own, training = settings.evaluation, settings.training
    limits = {name: getattr(own, name) for name in LimitSettings.model_fields}
    for name in ("max_episode_steps", "max_new_tokens", "max_tokens"):
        limits[name] = limits[name] or getattr(training, name)
    return ScoringSettings(
        environment=settings.environment.name,
        evaluation_set=() if own.set is None else (own.set,),
        tasks=None if own.tasks is None else Path(own.tasks),
        device=settings.policy.device,
        dtype=settings.policy.dtype,
        threads=training.threads,
        options=settings.environment.for_evaluation,
        max_actions=settings.environment.max_actions,
        strict_messages=training.strict_messages,
        sampling=settings.sampling,
        **limits,
        **settings.policy.given_options,
    )


def printed_score(lines: Sequence[str], log_path: Path) -> Score:
    """Return the score in the lines that ``evaluation.run --json`` printed. Raises ChildFailure when there is none."""
    for line in reversed(lines):
        try:
            report = Report.model_validate_json(line)
        except ValidationError:
            continue
        return report.scores[0]
    raise ChildFailure(f"evaluation.run printed no report: see {log_path}", 0, "")


async def _child(
    run: Run, command: Sequence[str], log_path: Path, deadline: float, on_line: Callable[[str], None]
) -> None:
    """Run one of the project's own commands in a process of its own.

    Raises InputError where it reports a user's mistake, StorageError where a disk refused what it wrote.
    """
    argv = [sys.executable, "-m", *command]
    log_start = log_path.stat().st_size if log_path.exists() else 0
    status = await run_child(argv, log_path=log_path, deadline=deadline, on_line=on_line, accept=(0, MISTAKE))
    if status == MISTAKE:
        said = log_path.read_bytes()[log_start:].decode(errors="replace").strip().splitlines()
        if not said:
            raise StorageError(f"{command[0]} could not write why it ended to {log_path}: is the disk full?")
        # The child's stdout reaches the log by another way than stderr, so the reason need not be the last line.
        reason = next((line for line in reversed(said) if line.startswith("error: ")), said[-1]).removeprefix("error: ")
        raise (StorageError if storage_refusal(reason) else InputError)(f"{command[0]}: {reason}")


def _reporter(stage: Stage) -> Callable[[str], None]:
    successes: list[float] = []

    def on_line(line: str) -> None:
        try:
            done = RoundProgress.model_validate_json(line)
        except ValidationError:
            return
        successes.append(done.success)
        stage.update(done.step, done.of, f"success {done.success:.2f}, mean {sum(successes) / len(successes):.2f}")

    return on_line


def _evaluation_reporter(stage: Stage, other: Callable[[str], None]) -> Callable[[str], None]:
    def on_line(line: str) -> None:
        try:
            done = PrintedProgress.model_validate_json(line)
        except ValidationError:
            other(line)
        else:
            stage.update(done.evaluated, done.of, f"success {done.successes / max(done.evaluated, 1):.2f}")

    return on_line


@contextmanager
def _timed(run: Run, iteration: int, stage: str) -> Iterator[None]:
    """Add the stage's wall seconds to the iteration's seconds.json, when it succeeds."""
    started = time.perf_counter()
    yield
    path = run.directory.iteration(iteration).seconds
    before = read_json(path, StageSeconds).seconds if path.exists() else {}
    write_json(path, StageSeconds(seconds=before | {stage: round(time.perf_counter() - started, 2)}))


# The ids of the state that a node takes; nodes before it wrote their records.
_TAKEN = {"extract": (), "reflect": ("signals",), "deduplicate": ("signals", "contexts")}
_ALL = ("signals", "contexts", "new")


def as_recorded(run: RunDirectory, state: IterationState, node: str) -> bool:
    """Return whether the ids that ``node`` takes from the state are those that earlier nodes wrote into ``run``."""
    folder = run.iteration(state.iteration)

    def written(name: str) -> list[str]:
        if name == "signals":
            return list(read_json(folder.extraction, ExtractionRecord).chosen)
        if name == "contexts":
            return [one.id for one in read_jsonl(folder.contexts, FailureContext)]
        return [one.context_id for one in read_jsonl(folder.judgements, DeduplicationResult) if one.status == "new"]

    files = {"signals": folder.extraction, "contexts": folder.contexts, "new": folder.judgements}
    return all(
        files[name].exists() and sorted(getattr(state, name)) == sorted(written(name))
        for name in _TAKEN.get(node, _ALL)
    )


def refuse_unfinished(run: RunDirectory, iteration: int) -> None:
    """Raise InputError for a copy whose own graph call has not ended: only its thread has the edited state."""
    if run.fork_path.exists():
        fork = read_json(run.fork_path, Fork)
        if fork.iteration == iteration and not run.iteration(iteration).evolution.exists():
            raise InputError(
                f"{run.root} is a fork of {fork.of} whose graph has not ended: go on with thread {fork.thread} in "
                f"LangGraph Studio, or remove {run.root}"
            )
