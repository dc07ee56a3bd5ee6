"""The figures of an arm's finished run, read from the records in the run's directory."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel

from environments.base import TaskSpec
from environments.registry import open_environment
from environments.settings import EnvironmentSettings
from environments.verification.canonical import call_sequence
from evaluation.outcomes import ScoreChange
from evaluation.study.records import IterationFigures, keep_tasks
from memory.jsonl import dump_line
from memory.records import Interaction, Task, Trajectory
from memory.run import RunDirectory, read_json, read_jsonl, write_jsonl
from memory.settings import TaskSettings
from memory.tasks import load_tasks, tasks_at
from training.grpo.record import RoundRecord


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
            processed_tokens=0 if done.expert is None else done.expert.processed,
            mixed_groups=done.mixed_groups,
            trained_functions=_by_function(task for task in self._tasks if task.id in drawn),
            admitted_functions=_by_function(task for task in self._tasks if task.admitted_at == iteration),
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
