"""The loop of a run: the stages of each iteration in order.

Each stage writes a file when it is done, and is skipped once the file exists.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ValidationError

from agents.spending import BudgetReached, Ledger
from environments.base import InputError
from environments.command import MISTAKE, Stage, StorageError, say, show_stage, storage_refusal
from evaluation.outcomes import Report, Score
from evaluation.settings import LOOKUP, LimitSettings, ScoringSettings
from graph.checkpoints import evolve_once
from graph.report.summary import Summary, summarise
from graph.settings import RunSettings
from memory.processes import ChildFailure, reason_in, run_child
from memory.run import RunDirectory, read_json, write_json
from memory.run_files import StageSeconds
from memory.tasks import OFFICIAL, admit, load_tasks, tasks_at
from training.grpo.record import RoundProgress, RoundRecord
from training.settings import IN_PROCESS

if TYPE_CHECKING:
    from graph.assembly import RunServices


class PrintedProgress(BaseModel):
    """A line that ``evaluation.run --progress`` prints after each task: so many ``of`` all, and how many solved."""

    evaluated: int
    of: int
    successes: int


@dataclass(frozen=True)
class Run:
    """A run in progress: its folder and settings. ``resumed``: an earlier process worked on it."""

    directory: RunDirectory
    settings: RunSettings
    resumed: bool

    @cached_property
    def services(self) -> RunServices:
        """The services of this run's nodes, built when a stage first needs them and kept for the whole command."""
        from graph.assembly import assemble

        return assemble(replace(self.directory, root=self.directory.root.resolve()), self.settings)


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
            with show_stage("D_0: official tasks"):
                tasks = await asyncio.to_thread(official_tasks, services, say)
        elif initial is not None:
            with show_stage(f"verifying {initial}"):
                tasks = await verify_given(Path(initial), services, say)
        else:
            with show_stage("D_0: unguided exploration", run.settings.tasks.initial_count) as stage:
                seeds = await make_seeds(services, run.settings.tasks.initial_count, stage)
            if seeds.failures:
                say(seeds.failed())
            if not seeds.offered <= seeds.called:
                say(seeds.uncalled())
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
    with _timed(run, iteration, "train"), show_stage(f"iteration {iteration}: training", steps) as stage:
        await _child(command, folder.training_log, run.settings.deadlines.round, _reporter(stage))


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
    with _timed(run, iteration, "evolve"), show_stage(f"iteration {iteration}: graph") as stage:
        await evolve_once(run.services, iteration, stage)


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
    with _timed(run, iteration, f"evaluation {what}"), show_stage(label) as stage:

        def on_line(line: str) -> None:
            try:
                done = PrintedProgress.model_validate_json(line)
            except ValidationError:
                lines.append(line)
            else:
                stage.update(done.evaluated, done.of, f"success {done.successes / max(done.evaluated, 1):.2f}")

        await _child(command, files.log, settings.deadlines.evaluation, on_line)
        score = printed_score(lines, files.log)
        stage.result = f"{score.success:.1%} of {score.n} tasks solved"
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


async def _child(command: Sequence[str], log_path: Path, deadline: float, on_line: Callable[[str], None]) -> None:
    """Run one of the project's own commands in a process of its own.

    Raises InputError where it reports a user's mistake, StorageError where a disk refused what it wrote.
    """
    argv = [sys.executable, "-m", *command]
    log_start = log_path.stat().st_size if log_path.exists() else 0
    status = await run_child(argv, log_path=log_path, deadline=deadline, on_line=on_line, accept=(0, MISTAKE))
    if status == MISTAKE:
        reason = reason_in(log_path, log_start)
        if not reason:
            raise StorageError(f"{command[0]} could not write why it ended to {log_path}: is the disk full?")
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


@contextmanager
def _timed(run: Run, iteration: int, stage: str) -> Iterator[None]:
    """Add the stage's wall seconds to the iteration's seconds.json, when it succeeds."""
    started = time.perf_counter()
    yield
    path = run.directory.iteration(iteration).seconds
    before = read_json(path, StageSeconds).seconds if path.exists() else {}
    write_json(path, StageSeconds(seconds=before | {stage: round(time.perf_counter() - started, 2)}))


async def iterate(run: Run) -> AsyncIterator[Summary]:
    """Yield the summary of each iteration once it exists, those of an earlier process at once.

    A new run that ends with a user's mistake before its first round is removed, so that the corrected command can be
    repeated; the ledger of costs stays. A spent budget of the chat roles ends the run after that iteration (before the
    first one, if D_0 spent it), with a line on stderr; with a higher one it resumes there. Raises InputError for a
    mistake and for damaged records, ChildFailure when a round or an evaluation failed.
    """
    if run.resumed:
        check_tasks(run)
    last = None
    try:
        with unmade_on_mistake(run):
            await make_tasks(run)
            await train_iteration(run, 0)
        for iteration in range(run.settings.iterations):
            path = run.directory.iteration(iteration).summary
            if not path.exists():
                await train_iteration(run, iteration)
                await score_after(run, iteration)
                await evolve(run, iteration)
                write_json(path, summarise(run.directory, run.settings, iteration))
                for words in read_json(path, Summary).sentences:
                    say(f"iteration {iteration}: {words}")
            last = read_json(path, Summary)
            yield last
    except BudgetReached as reached:
        when = "before the first iteration" if last is None else f"after iteration {last.iteration}"
        key = Ledger(run.directory.spending_path, run.settings.roles.budget).reached()
        say(f"{run.directory.root}: stopped {when}: {reached} --set {key}=MORE")
    else:
        if last is not None and last.stopped:
            say(f"{run.directory.root}: {last.stopped} is spent: a further iteration needs more of it")


@contextmanager
def unmade_on_mistake(run: Run) -> Iterator[None]:
    """Remove a new run that a user's mistake ends in the block; the ledger of costs stays."""
    try:
        yield
    except InputError:
        if not run.resumed:
            run.directory.unmake()
            if (paid := run.directory.spending_path).exists():
                say(f"{paid} is kept: what was paid counts at the next start")
        raise


def check_tasks(run: Run) -> None:
    """Read tasks.jsonl before anything is built on it. Raises InputError for a corrupt line and for missing lines.

    The summaries of finished iterations hold the number of tasks in D_0, and those that each admitted.
    """
    tasks = load_tasks(run.directory)
    left = None
    for iteration in range(run.settings.iterations):
        path = run.directory.iteration(iteration).summary
        if not path.exists():
            break
        summary = read_json(path, Summary)
        left = (summary.tasks if left is None else left) + summary.admitted
        if (there := len(tasks_at(tasks, iteration + 1))) != left:
            file = run.directory.tasks_path
            raise InputError(f"{file} holds {there} tasks of iteration {iteration + 1}, not {left}: restore it")


async def train_iteration(run: Run, iteration: int) -> None:
    """Score the policy that an iteration begins with, and train its round.

    Raises BudgetReached where a budget of the chat roles is spent before the round begins.
    """
    folder = run.directory.iteration(iteration)
    if not (folder.round.exists() or folder.training_log.exists()):
        Ledger(run.directory.spending_path, run.settings.roles.budget).check()
    await score_before(run, iteration)
    await train(run, iteration)
