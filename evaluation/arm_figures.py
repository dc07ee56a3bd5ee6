"""Reads the figures of a finished run from the records in its directory."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel

from environments.base import TaskSpec
from environments.fingerprints import call_sequence
from environments.registry import open_environment
from environments.sealed import PANELLED, published_panels
from environments.settings import EnvironmentSettings
from evaluation.arm_records import IterationFigures, Overlap
from memory.jsonl import dump_line
from memory.records import Interaction, Task, Trajectory
from memory.run import RunDirectory, read_json, read_jsonl
from memory.tasks import load_tasks, tasks_at
from training.round_record import LENT_FILE, RECORD_FILE, TRAJECTORIES_FILE, RoundRecord


class _Contexts(BaseModel):
    new: int
    known: int


class _Panel(BaseModel):
    before: float
    after: float


class _Summary(BaseModel):
    """The part of an iteration's summary.json that a study reads."""

    tasks: int
    admitted: int
    refused: dict[str, int]
    signals: dict[str, int]
    contexts: _Contexts
    panel: _Panel | None
    seconds: dict[str, float]
    labels: tuple[str, ...]


class FinishedRun:
    """A run whose iterations are all done, and what a study wants to know of it."""

    def __init__(self, root: Path, iterations: int) -> None:
        """Raises InputError when ``root`` is no run, or one of its files is missing or corrupt."""
        self._run = RunDirectory.open(root)
        self._tasks = load_tasks(self._run)
        self._summaries = [read_json(self._run.iteration(i) / "summary.json", _Summary) for i in range(iterations)]
        self._rounds = [read_json(self._run.iteration(i) / RECORD_FILE, RoundRecord) for i in range(iterations)]

    @property
    def policy(self) -> Path:
        """The folder of the last round's checkpoint."""
        return self._run.root / self._rounds[-1].policy

    @property
    def labels(self) -> tuple[str, ...]:
        """What the figures are figures of."""
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
        return tuple(tuple(read_jsonl(folder / TRAJECTORIES_FILE, Trajectory)) for folder in folders)

    @property
    def prompt_order(self) -> str:
        """SHA-256 of the first round's prompts: the tasks of each step, in the order of their first rollouts."""
        drawn = dict.fromkeys((one.step, one.task_id) for one in self._played[0])
        by_step = sorted(drawn, key=lambda pair: pair[0])
        return hashlib.sha256(repr(by_step).encode()).hexdigest()

    @property
    def functions(self) -> int:
        """How many functions tasks can be about: the tools of the places where explorers begin."""
        environment = open_environment(self._run.section("environment", EnvironmentSettings))
        return len({tool for start in environment.starts() for tool in start.tools})

    @property
    def initial_functions(self) -> dict[str, int]:
        """Tasks of D_0 by function that their reference calls."""
        return _by_function(self.initial)

    def overlap(self) -> dict[str, Overlap]:
        """Value-free call sequences that training tasks share with each panel; empty where there is none."""
        environment = self._tasks[0].environment
        if environment not in PANELLED:
            return {}
        initial = {call_sequence(task) for task in self.initial}
        final = {call_sequence(task) for task in self._tasks}
        return {
            panel.panel: Overlap(
                sequences=len(panel.call_sequences),
                in_initial=len(initial & set(panel.call_sequences)),
                in_final=len(final & set(panel.call_sequences)),
            )
            for panel in published_panels(environment)
        }

    def figures(self) -> tuple[IterationFigures, ...]:
        """One entry an iteration."""
        return tuple(self._figures(i) for i in range(len(self._rounds)))

    def _figures(self, iteration: int) -> IterationFigures:
        summary, done, played = self._summaries[iteration], self._rounds[iteration], self._played[iteration]
        drawn = {one.task_id for one in played}
        measured = {f"stage {name}": seconds for name, seconds in summary.seconds.items()}
        measured |= {f"round {name}": seconds for name, seconds in done.measured.model_dump().items()}
        return IterationFigures(
            iteration=iteration,
            steps=done.last_step,
            tasks=summary.tasks,
            dev_before=summary.panel.before if summary.panel else None,
            dev_after=summary.panel.after if summary.panel else None,
            signals=summary.signals,
            contexts=summary.contexts.new,
            drafts=summary.admitted + sum(summary.refused.values()),
            admitted=summary.admitted,
            refused=summary.refused,
            rollouts=len(played),
            rollout_calls=sum(len(one.calls()) for one in played),
            exploration_calls=self._explored(iteration),
            lent=done.lent,
            lent_calls=self._lent_calls(iteration),
            train_success=done.success,
            mixed_groups=done.mixed_groups,
            kl=done.kl,
            trained_functions=_by_function(task for task in self._tasks if task.id in drawn),
            admitted_functions=_by_function(task for task in self._tasks if task.admitted_at == iteration),
            seal=done.seal,
            measured={name: round(seconds, 2) for name, seconds in measured.items()},
        )

    def _explored(self, iteration: int) -> int:
        folders: Sequence[Path] = [self._run.iteration(iteration)] + ([self._run.seed_path] if iteration == 0 else [])
        paths = [folder / "interactions.jsonl" for folder in folders]
        return sum(
            len(one.observation.calls) for path in paths if path.exists() for one in read_jsonl(path, Interaction)
        )

    def _lent_calls(self, iteration: int) -> int:
        path = self._run.iteration(iteration) / LENT_FILE
        return sum(len(one.calls()) for one in read_jsonl(path, Trajectory)) if path.exists() else 0


def _by_function(tasks: Iterable[TaskSpec]) -> dict[str, int]:
    counted = Counter(name for task in tasks for name in set(call_sequence(task)))
    return dict(sorted(counted.items()))
