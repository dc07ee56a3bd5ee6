"""The stages of one iteration, each a piece of work that leaves a file behind and is not done again once it has."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from agents.settings import RolesSettings
from agents.spending import RepeatedFailure
from environments.base import InputError
from environments.command import MISTAKE, StorageError, storage_refusal, writing
from graph.records import PanelScore, PrintedProgress, PrintedReport, StageSeconds
from graph.run.interruption import Interruption
from graph.run.progress import Progress, Stage
from graph.settings import RunSettings
from memory.processes import ChildFailure, run_child
from memory.run import RunDirectory, read_json, write_json
from memory.settings import OFFICIAL
from memory.tasks import admit
from training.grpo.record import RECORD_FILE, RoundProgress, RoundRecord

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    from graph.run.progress import Stage

# Runs the graph of one iteration, from its beginning or from where its checkpoints stand.


def thread_id(iteration: int) -> str:
    """The thread of an iteration: one each, because running a thread again appends to what its branches returned.

    Studio's server takes UUIDs only: this one ends in the iteration's number.
    """
    return f"00000000-0000-4000-8000-{iteration:012d}"


async def evolve_once(run: RunDirectory, iteration: int, stage: Stage, interruption: Interruption) -> None:
    """Run the graph until ``update`` is done. The caller holds the run's lock.

    A signal stops it at the edge of a superstep; every superstep is on the disk before the next one begins.
    Raises CancelledError for that, InputError for a user's mistake, RepeatedFailure for work that only fails,
    StorageError and OSError where the disk takes no more, and whatever a node outside the fan-out raises.
    """
    from graph.checkpoints import run_checkpoints
    from graph.forks import refuse_unfinished

    refuse_unfinished(run, iteration)
    try:
        with writing(run.checkpoints_path):
            async with run_checkpoints(run) as saver:
                await _evolve(run, iteration, stage, interruption, saver)
    except sqlite3.DatabaseError as error:
        # What is no OperationalError says that the file is no database, or a torn one.
        if isinstance(error, sqlite3.OperationalError):
            raise
        path = run.checkpoints_path
        raise InputError(f"{path} is damaged ({error}): remove it, the iteration's graph begins afresh") from error


async def _evolve(
    run: RunDirectory, iteration: int, stage: Stage, interruption: Interruption, saver: AsyncSqliteSaver
) -> None:
    from langgraph.errors import GraphDrained
    from langgraph.runtime import RunControl

    from graph.iteration import iteration_graph
    from graph.state import IterationState, RunContext

    control = RunControl()
    graph = iteration_graph().compile(checkpointer=saver)
    config = _config(iteration, run.section("roles", RolesSettings).concurrency)
    begun = await _has_begun(graph, saver, config, run)
    events = graph.astream(
        None if begun else IterationState(iteration=iteration),
        config,
        context=RunContext(run=str(run.root)),
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
            # Checkpoints keep what failed as failed: once the mistake is put right, the graph begins afresh.
            await saver.adelete_thread(thread_id(iteration))
        raise


def _config(iteration: int, branches_at_once: int) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id(iteration)}, "max_concurrency": branches_at_once}


async def _has_begun(
    graph: Any,  # noqa: ANN401 - a generic
    saver: AsyncSqliteSaver,
    config: RunnableConfig,
    run: RunDirectory,
) -> bool:
    """Whether the thread stands in its middle.

    One that is at its end is forgotten: its files are not there. So is one whose state was edited in Studio, since the
    run's records are made from its own, and one that a full disk ended, where not even that could be written down.
    """
    state = await graph.aget_state(config)
    stands = state.next and not any(task.error and storage_refusal(task.error) for task in state.tasks)
    if stands and await asyncio.to_thread(_is_unedited, run, state.next, state.values):
        return True
    await saver.adelete_thread(config["configurable"]["thread_id"])
    return False


def _is_unedited(run: RunDirectory, nodes: Sequence[str], values: Any) -> bool:  # noqa: ANN401 - as stored
    from graph.forks import as_recorded
    from graph.state import IterationState

    state = values if isinstance(values, IterationState) else IterationState(**values)
    return all(as_recorded(run, state, node) for node in nodes)


class _Branches:
    """Counts branches that begin and end, for the progress display."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._begun: set[str] = set()
        self._ended = 0

    def show(self, task: Any) -> None:  # noqa: ANN401 - an event of the library
        """Take one event: a node that begins, or its result."""
        node = task["name"]
        if node == "branch" and "input" in task:
            self._begun.add(task["id"])
        elif node == "branch":
            self._ended += 1
        self._stage.update(self._ended, len(self._begun) or None, "branches" if self._begun else node)


@dataclass(frozen=True)
class Run:
    """A run in progress: where it is, what it does, who watches. ``resumed``: an earlier process worked on it."""

    directory: RunDirectory
    settings: RunSettings
    progress: Progress
    interruption: Interruption
    resumed: bool


async def make_tasks(run: Run) -> None:
    """D_0 into tasks.jsonl: the benchmark's own, from the user's file, or by unguided exploration.

    Raises InputError when no task of the file is accepted or exploration finds too few.
    """
    if run.directory.tasks_path.exists():
        return
    from graph.assembly import assemble
    from graph.run.initial_tasks import make_seeds, official_tasks, verify_given

    rooms = assemble(run.directory.root.resolve())
    initial = run.settings.tasks.initial
    with _timed(run, 0, "seed"):
        if initial == OFFICIAL:
            with run.progress.stage("D_0: official tasks"):
                tasks = await official_tasks(rooms, run.progress.say)
        elif initial is not None:
            with run.progress.stage(f"verifying {initial}"):
                tasks = await verify_given(Path(initial), rooms, run.progress.say)
        else:
            with run.progress.stage("D_0: unguided exploration", run.settings.tasks.initial_count) as stage:
                seeds = await make_seeds(rooms, run.settings.tasks.initial_count, stage)
            if seeds.failures:
                run.progress.say(seeds.failed())
            tasks = tuple(seeds.tasks)
        admit(run.directory, tasks)


async def score_before(run: Run, iteration: int) -> None:
    """panel_before.json: the last iteration's score after its round, or that of the policy that the run starts with."""
    folder = run.directory.iteration(iteration)
    if run.settings.evaluation.scored is None or (folder / "panel_before.json").exists():
        return
    if iteration > 0:
        previous = run.directory.iteration(iteration - 1) / "panel_after.json"
        write_json(folder / "panel_before.json", read_json(previous, PanelScore))
        return
    await _score(run, iteration, "before", run.settings.policy.path)


async def train(run: Run, iteration: int) -> None:
    """The round of GRPO: trajectories.jsonl, round.json and a checkpoint of the policy, by a process of its own."""
    folder = run.directory.iteration(iteration)
    if (folder / RECORD_FILE).exists():
        return
    command = ["training.run_round", "--run", str(run.directory.root), "--iteration", str(iteration)]
    if run.resumed:
        command.append("--resume")
    steps = run.settings.training.steps
    with _timed(run, iteration, "train"), run.progress.stage(f"iteration {iteration}: training", steps) as stage:
        await _child(run, command, folder / "training.log", run.settings.deadlines.round, _reporter(stage))


async def score_after(run: Run, iteration: int) -> None:
    """panel_after.json: the score of the policy that the round made."""
    folder = run.directory.iteration(iteration)
    if run.settings.evaluation.scored is None or (folder / "panel_after.json").exists():
        return
    policy = read_json(folder / RECORD_FILE, RoundRecord).policy
    await _score(run, iteration, "after", str(run.directory.root / policy))


async def evolve(run: Run, iteration: int) -> None:
    """The graph: signals of the round in, tasks of the next round out; evolution.json ends it."""
    if (run.directory.iteration(iteration) / "evolution.json").exists():
        return
    from graph.run.stages import evolve_once

    with _timed(run, iteration, "evolve"), run.progress.stage(f"iteration {iteration}: graph") as stage:
        await evolve_once(run.directory, iteration, stage, run.interruption)


async def _score(run: Run, iteration: int, when: str, policy: str) -> None:
    settings = run.settings
    scored = settings.evaluation.scored
    assert scored is not None
    folder = run.directory.iteration(iteration)
    what = ("--panel", scored) if settings.evaluation.tasks is None else ("--tasks", settings.evaluation.tasks)
    command = ["evaluation.run", "--environment", settings.environment.name, *what, "--model", policy]
    command += ["--output", str(folder / f"panel_{when}.jsonl"), "--json"]
    command += ["--device", settings.policy.device, "--dtype", settings.policy.dtype]
    command += ["--threads", str(settings.training.threads)]
    command += ["--progress", *_limits(settings)]
    if settings.policy.thinking is not None:
        command += ["--thinking" if settings.policy.thinking else "--no-thinking"]
    command += [f"--option={key}={json.dumps(value)}" for key, value in settings.environment.for_evaluation.items()]
    if settings.evaluation.batch is not None:
        command += ["--batch", str(settings.evaluation.batch)]
    if settings.evaluation.limit is not None:
        command += ["--limit", str(settings.evaluation.limit)]
    (folder / f"panel_{when}.jsonl").unlink(missing_ok=True)  # of an evaluation that was killed before its score
    lines: list[str] = []
    label = f"iteration {iteration}: panel {when} training"
    with _timed(run, iteration, f"panel {when}"), run.progress.stage(label) as stage:
        shown = _evaluation_reporter(stage, lines.append)
        await _child(run, command, folder / f"panel_{when}.log", settings.deadlines.evaluation, shown)
        score = panel_score(scored, lines, folder / f"panel_{when}.log")
    write_json(folder / f"panel_{when}.json", score)


def _limits(settings: RunSettings) -> list[str]:
    """Where an evaluation cuts episodes off: as its section says, else as training does; actions as the benchmark."""
    own, training = settings.evaluation, settings.training
    actions = own.max_actions or settings.environment.max_actions
    limits = ["--max-new-tokens", str(own.max_new_tokens or training.max_new_tokens)]
    limits += ["--max-tokens", str(own.max_tokens or training.max_tokens)]
    return limits if actions is None else [*limits, "--max-actions", str(actions)]


def panel_score(panel: str, lines: Sequence[str], log_path: Path) -> PanelScore:
    """The score in the lines that ``evaluation.run --json`` printed. Raises ChildFailure when there is none."""
    for line in reversed(lines):
        try:
            (score,) = PrintedReport.model_validate_json(line).scores
        except ValidationError:
            continue
        return PanelScore(name=panel, **score.model_dump())
    raise ChildFailure(f"evaluation.run printed no report: see {log_path}", 0, "")


async def _child(
    run: Run, command: Sequence[str], log_path: Path, deadline: float, on_line: Callable[[str], None]
) -> None:
    """One of the project's own commands in a process of its own.

    Raises InputError where it calls its input wrong, StorageError where a disk refused to take what it wrote.
    """
    argv = [sys.executable, "-m", *command]
    log_start = log_path.stat().st_size if log_path.exists() else 0
    status = await run_child(argv, log_path=log_path, deadline=deadline, on_line=on_line, accept=(0, MISTAKE))
    if status == MISTAKE:
        said = log_path.read_bytes()[log_start:].decode(errors="replace").strip().splitlines()
        if not said:
            raise StorageError(f"{command[0]} could not write why it ended to {log_path}: is the disk full?")
        # The child's stdout takes another way into the log: what was said last need not stand last.
        reason = next((line for line in reversed(said) if line.startswith("error: ")), said[-1]).removeprefix("error: ")
        raise (StorageError if storage_refusal(reason) else InputError)(f"{command[0]}: {reason}")


def _reporter(stage: Stage) -> Callable[[str], None]:
    """Shows the progress lines of a round; anything else that it prints stands in its log."""
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
    """Shows the progress lines of an evaluation and hands every other line on."""

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
    path = run.directory.iteration(iteration) / "seconds.json"
    before = read_json(path, StageSeconds).seconds if path.exists() else {}
    write_json(path, StageSeconds(seconds=before | {stage: round(time.perf_counter() - started, 2)}))
