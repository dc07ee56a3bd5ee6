"""`python -m evaluation.study.arm`: run and score one arm of a study with one seed; evaluation.study starts it.

It is a separate process, so that the CPU seconds of its children are those of this arm and seed. ``FinishedRun`` reads
the figures of the result from the records in the run's directory.
"""

from __future__ import annotations

import asyncio
import hashlib
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import BaseModel

from environments.base import InputError, Record, TaskSpec
from environments.command import MISTAKE, NOTHING, OneSentence, exit_statuses
from environments.registry import open_environment
from environments.settings import EnvironmentSettings
from environments.verification.fingerprints import call_sequence
from evaluation.baselines import LOOKUP
from evaluation.outcomes import ScoreChange
from evaluation.settings import ENDPOINT, ScoringSettings
from evaluation.study.records import IterationFigures
from memory.jsonl import dump_line
from memory.records import Interaction, Task, Trajectory
from memory.run import RunDirectory, read_json, read_jsonl, write_json, write_jsonl
from memory.settings import TaskSettings
from memory.tasks import load_tasks, tasks_at
from training.grpo.record import RoundRecord

if TYPE_CHECKING:
    from evaluation.outcomes import TaskOutcome
    from evaluation.study.records import ArmOutcome


class _Summary(BaseModel):
    """The part of an iteration's summary.json that a study reads."""

    admitted: int
    refused: dict[str, int]
    signals: dict[str, int]
    evaluation: ScoreChange | None
    seconds: dict[str, float]
    labels: tuple[str, ...]


class FinishedRun:
    """A run whose iterations are all done, and the figures that a study takes from it."""

    def __init__(self, root: Path, iterations: int) -> None:
        """Open the run. Raises InputError when ``root`` is not a run, or one of its files is missing or corrupt."""
        self._run = RunDirectory.open(root)
        self._tasks = load_tasks(self._run)
        self._summaries = [read_json(self._run.iteration(i).summary, _Summary) for i in range(iterations)]
        self._rounds = [read_json(self._run.iteration(i).round, RoundRecord) for i in range(iterations)]

    @property
    def policy(self) -> Path:
        """The folder of the last round's checkpoint."""
        return self._run.root / self._rounds[-1].policy

    def learnable(self, folder: Path) -> Path:
        """Write a file of the tasks that the policy could learn from to ``folder``: D_t of the last round.

        It is D_0 where no other is used (``TaskSettings.uses_evolved``). No round follows the last iteration's tasks.
        """
        last = self._rounds[-1]
        of_last = tasks_at(self._tasks, last.iteration)
        file = folder / "learnable.jsonl"
        write_jsonl(file, of_last if self._run.section("tasks", TaskSettings).uses_evolved else self.initial)
        return file

    def keep_tasks(self, path: Path) -> str:
        """Keep D_0 and all that was admitted in ``path``; return why they are not kept, "" where they are."""
        from evaluation.study.records import keep_tasks

        return keep_tasks(path, self._tasks, self._run.section("environment", EnvironmentSettings).benchmark)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the run's summaries, each once."""
        return tuple(dict.fromkeys(label for summary in self._summaries for label in summary.labels))

    @cached_property
    def initial(self) -> tuple[Task, ...]:
        """D_0."""
        return tasks_at(self._tasks, 0)

    @property
    def initial_hash(self) -> str:
        """SHA-256 of D_0 as tasks.jsonl holds it."""
        return hashlib.sha256("".join(map(dump_line, self.initial)).encode()).hexdigest()

    @cached_property
    def _played(self) -> tuple[tuple[Trajectory, ...], ...]:
        folders = (self._run.iteration(i) for i in range(len(self._rounds)))
        return tuple(tuple(read_jsonl(folder.trajectories, Trajectory)) for folder in folders)

    @property
    def functions(self) -> int:
        """The number of functions that tasks can call: the tools of the start states of exploration."""
        environment = open_environment(self._run.section("environment", EnvironmentSettings))
        return len({tool for start in environment.starts() for tool in start.tools})

    @property
    def initial_functions(self) -> dict[str, int]:
        """The number of D_0's tasks that call each function in their reference."""
        return _by_function(self.initial)

    def figures(self) -> tuple[IterationFigures, ...]:
        """Return one entry per iteration."""
        return tuple(self._figures(i) for i in range(len(self._rounds)))

    def _figures(self, iteration: int) -> IterationFigures:
        summary, done, played = self._summaries[iteration], self._rounds[iteration], self._played[iteration]
        drawn = {one.task_id for one in played}
        measured = {f"stage {name}": seconds for name, seconds in summary.seconds.items()}
        measured |= {f"round {name}": seconds for name, seconds in done.measured.model_dump().items()}
        return IterationFigures(
            iteration=iteration,
            steps=done.last_step,
            dev_before=summary.evaluation.before.success if summary.evaluation else None,
            dev_after=summary.evaluation.after.success if summary.evaluation else None,
            signals=summary.signals,
            drafts=summary.admitted + sum(summary.refused.values()),
            admitted=summary.admitted,
            refused=summary.refused,
            rollouts=len(played),
            rollout_calls=sum(len(one.calls()) for one in played),
            exploration_calls=self._explored(iteration),
            supervised_tokens=0 if done.expert is None else done.expert.tokens,
            mixed_groups=done.mixed_groups,
            trained_functions=_by_function(task for task in self._tasks if task.id in drawn),
            admitted_functions=_by_function(task for task in self._tasks if task.admitted_at == iteration),
            seal=done.seal,
            measured={name: round(seconds, 2) for name, seconds in measured.items()},
        )

    def _explored(self, iteration: int) -> int:
        paths = [self._run.iteration(iteration).interactions] + (
            [self._run.seed.interactions] if iteration == 0 else []
        )
        return sum(
            len(one.observation.calls) for path in paths if path.exists() for one in read_jsonl(path, Interaction)
        )


def _by_function(tasks: Iterable[TaskSpec]) -> dict[str, int]:
    counted = Counter(name for task in tasks for name in set(call_sequence(task)))
    return dict(sorted(counted.items()))


JOB_FILE = "job.json"
SCORING_FILE = "scoring.json"
OUTCOMES_FILE = "outcomes.jsonl"
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Scoring(Record):
    """One command that scores the policy. ``prefix``: of its sets' names in the study's recipe."""

    prefix: str
    settings: ScoringSettings


class Job(Record):
    """One arm and seed. ``folder`` holds its recipe.yaml, run/ and log. ``policy`` is scored if ``trains`` is False.

    ``result`` is the file to write; the other fields go into its header. ``lookup``: the nearest training clause is
    scored too, from the tasks that the run could learn from. ``deadline`` is in wall seconds, one for the run and one
    for each scoring.
    """

    folder: str
    result: str
    arm: str
    seed: int
    trains: bool
    iterations: int
    policy: str
    scoring: tuple[Scoring, ...]
    lookup: bool = False
    deadline: float
    recipe: str
    study: str
    commit: str | None


@app.command(cls=OneSentence)
def main(settings: Annotated[Path, typer.Option(help="file that evaluation.study wrote")]) -> None:
    """Run one arm with one seed, score its last policy greedily, and write the result."""
    from memory.processes import ChildFailure, watch_parent

    with exit_statuses(ChildFailure):
        watch_parent()
        asyncio.run(_work(read_json(settings, Job)))


async def _work(job: Job) -> None:
    from evaluation.study.records import ArmHeader, ArmMeasured, ArmResult, tasks_path

    started = time.perf_counter()
    folder = Path(job.folder)
    run = None
    policy = job.policy
    if job.trains:
        options = ["--recipe", str(folder / "recipe.yaml"), "--run", str(folder / "run"), "--json"]
        resume = ["--resume"] if RunDirectory(folder / "run").settings_path.exists() else []
        await _child(job, ["graph.run_iteration", *options, *resume])
        run = FinishedRun(folder / "run", job.iterations)
        policy = str(run.policy)
    attempted: list[ArmOutcome] = []
    for number, scoring in enumerate(job.scoring):
        attempted += [_outcome(scoring.prefix, one) for one in await _scored(job, number, scoring.settings, policy)]
        if job.lookup and run is not None:
            looked = await _scored(job, number, scoring.settings, LOOKUP, run.learnable(folder))
            attempted += [_outcome(scoring.prefix, one, LOOKUP) for one in looked]
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    result = Path(job.result)
    header = ArmHeader(
        arm=job.arm,
        seed=job.seed,
        recipe=job.recipe,
        study=job.study,
        initial_tasks=run.initial_hash if run else None,
        labels=run.labels if run else (),
        functions=run.functions if run else 0,
        initial_functions=run.initial_functions if run else {},
        iterations=run.figures() if run else (),
        tasks_left_out=run.keep_tasks(tasks_path(result)) if run else "",
        measured=ArmMeasured(
            cpu_seconds=round(sum(one.ru_utime + one.ru_stime for one in used), 1),
            wall_seconds=round(time.perf_counter() - started, 1),
            commit=job.commit,
        ),
    )
    ArmResult(header=header, outcomes=tuple(attempted)).write(result)


async def _scored(
    job: Job, number: int, settings: ScoringSettings, policy: str, train: Path | None = None
) -> list[TaskOutcome]:
    """Score the policy, or a baseline from the tasks of ``train``, with one command; return its outcomes in order."""
    from evaluation.outcomes import TaskOutcome

    folder = Path(job.folder)
    names = (OUTCOMES_FILE, SCORING_FILE)
    outcomes, file = (_numbered(folder / (name if train is None else f"{policy}-{name}"), number) for name in names)
    write_json(file, settings)
    options = ["--settings", str(file), "--model", policy, "--output", str(outcomes), "--json"]
    options += [] if train is None else ["--train", str(train)]
    if policy.startswith(ENDPOINT):
        options.append("--resume")  # what an arm that was stopped has paid for
    else:
        outcomes.unlink(missing_ok=True)  # of an arm that was stopped before its result
    await _child(job, ["evaluation.run", *options])
    return read_jsonl(outcomes, TaskOutcome)


def _numbered(path: Path, number: int) -> Path:
    return path.with_stem(f"{path.stem}-{number}") if number else path


def _outcome(prefix: str, one: TaskOutcome, baseline: str = "") -> ArmOutcome:
    from evaluation.study.records import ArmOutcome

    return ArmOutcome(
        panel=f"{prefix}{one.group}",
        task=one.task_id,
        cluster=one.cluster,
        shape=one.shape,
        success=one.success,
        calls=one.calls,
        reference_calls=one.reference_calls,
        failure=one.failure,
        infrastructure_error=one.infrastructure_error,
        baseline=baseline,
    )


async def _child(job: Job, command: list[str]) -> None:
    """Run one of the project's commands, its output in the job's log. Raises InputError for its exit status 2."""
    from memory.processes import run_child

    log = Path(job.folder) / "arm.log"
    start = log.stat().st_size if log.exists() else 0
    argv = [sys.executable, "-m", *command]
    status = await run_child(argv, log_path=log, deadline=job.deadline, accept=(0, MISTAKE, NOTHING), env=ONE_THREAD)
    if status == MISTAKE:
        said = log.read_bytes()[start:].decode(errors="replace").splitlines()
        reason = next((line for line in reversed(said) if line.startswith("error: ")), f"error: see {log}")
        raise InputError(f"{command[0]}: {reason.removeprefix('error: ')}")


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
