"""The figures of an arm's finished run, read from the records in the run's directory."""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from environments.base import TaskSpec
from environments.registry import unpublishable
from environments.settings import EnvironmentSettings
from environments.verification.canonical import call_sequence
from evaluation.outcomes import ScoreChange
from evaluation.study.records import IterationFigures
from memory.jsonl import dump_line, write_atomically
from memory.records import Interaction, Trajectory
from memory.run import RunDirectory, read_existing, read_json, read_jsonl, write_jsonl
from memory.tasks import TaskSettings, load_tasks, tasks_at
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
        self._initial = tasks_at(self._tasks, 0)
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
        write_jsonl(file, of_last if self._run.section("tasks", TaskSettings).uses_evolved else self._initial)
        return file

    def keep_tasks(self, path: Path) -> str:
        """Replace ``path`` with D_0 and all that was admitted, compressed; return why not, "" where it did.

        They are not kept where they must not be published; a file of an earlier result is removed then. Equal tasks,
        equal bytes.
        """
        reason = unpublishable(self._run.section("environment", EnvironmentSettings).benchmark, self._tasks)
        if reason is None:
            write_atomically(path, [gzip.compress("".join(map(dump_line, self._tasks)).encode(), mtime=0)])
            return ""
        path.unlink(missing_ok=True)
        return reason

    def figures(self) -> dict[str, Any]:
        """Return what the header of the arm's result takes from the run, see ``ArmHeader``."""
        environment = self._run.section("environment", EnvironmentSettings).open()
        return {
            "initial_tasks": hashlib.sha256("".join(map(dump_line, self._initial)).encode()).hexdigest(),
            "labels": tuple(dict.fromkeys(label for summary in self._summaries for label in summary.labels)),
            "functions": len({tool for start in environment.starts() for tool in start.tools}),
            "initial_functions": _by_function(self._initial),
            "iterations": tuple(self._figures(i) for i in range(len(self._rounds))),
        }

    def _figures(self, iteration: int) -> IterationFigures:
        summary, done, folder = self._summaries[iteration], self._rounds[iteration], self._run.iteration(iteration)
        played = read_jsonl(folder.trajectories, Trajectory)
        explored = read_existing(folder.interactions, Interaction)
        explored += read_existing(self._run.seed.interactions, Interaction) if iteration == 0 else []
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
            exploration_calls=sum(len(one.observation.calls) for one in explored),
            supervised_tokens=0 if done.expert is None else done.expert.tokens,
            processed_tokens=0 if done.expert is None else done.expert.processed,
            mixed_groups=done.mixed_groups,
            trained_functions=_by_function(task for task in self._tasks if task.id in drawn),
            admitted_functions=_by_function(task for task in self._tasks if task.admitted_at == iteration),
            measured={name: round(seconds, 2) for name, seconds in measured.items()},
        )


def _by_function(tasks: Iterable[TaskSpec]) -> dict[str, int]:
    counted = Counter(name for task in tasks for name in set(call_sequence(task)))
    return dict(sorted(counted.items()))
