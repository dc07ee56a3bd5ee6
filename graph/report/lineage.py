"""Joins a run's records: a failed rollout, its signal, context, exploration, verified drafts, the task, its effect.

Everything that follows a task reads this: `coevolve show`, `coevolve report`, exports, notebooks, the closing text. A
run may be read while it goes on: a last line that is half written is left for the next reading, and the branches of an
iteration whose graph is not done are read from their folders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import BinaryIO, NamedTuple

from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationError

from environments.base import InputError, ToolCall
from memory.failures import DeduplicationResult
from memory.files import LONGEST, opened, read_lines
from memory.jsonl import complaint
from memory.records import (
    Draft,
    DraftVerification,
    FailureContext,
    Interaction,
    Signal,
    Task,
    Trajectory,
)
from memory.run import (
    BranchDirectory,
    IterationDirectory,
    RunDirectory,
    StageDirectory,
    iteration_of,
    read_existing,
    read_json,
)
from memory.run_files import Failure
from memory.tasks import load_tasks


class Rollout(BaseModel):
    """One rollout without its turns: 50,000 of them fit into memory, and are read ten times faster.

    ``iteration`` is that of its file, ``success`` None for an infrastructure error.
    ``start`` is the byte at which its line begins in the iteration's trajectories.jsonl.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    task_id: str
    iteration: int
    step: int
    sample: int
    success: bool | None = Field(None, validation_alias=AliasPath("outcome", "success"))
    start: int = 0


class Group(NamedTuple):
    """The rollouts of one task in one step, by sample."""

    task_id: str
    iteration: int
    step: int
    rollouts: tuple[Rollout, ...]

    @property
    def results(self) -> tuple[bool, ...]:
        """Return the successes of the rollouts that were evaluated."""
        return tuple(one.success for one in self.rollouts if one.success is not None)

    def dots(self, marked: str = "") -> str:
        """Return a filled dot for a success, an open one for a failure, a point for a fault; ``marked`` in brackets."""
        marks = {True: "●", False: "○", None: "·"}
        return "".join(f"[{marks[one.success]}]" if one.id == marked else marks[one.success] for one in self.rollouts)

    @property
    def carries_signal(self) -> bool:
        """Return whether it holds a success and a failure: only then does its reward move the policy (section 2)."""
        return len(set(self.results)) == 2


class Drafted(NamedTuple):
    """A draft, its verification result (None before it is verified), and its task (None where it was refused)."""

    draft: Draft
    verification: DraftVerification | None
    task: Task | None


@dataclass(frozen=True)
class Chain:
    """One context and everything it comes from and led to.

    Args:
        context: the weakness that was explored, or only reflected on.
        iteration: the one in which it was found; None for D_0.
        signal: what marked the rollout; None for contexts that come from no signal.
        weak: the task of that rollout.
        rollout: the marked rollout.
        deduplication: whether the failure memory knew the context; None where it was not asked.
        interactions: the exploration, by run and position.
        outcomes: the drafts with what became of each.
        failure: why the branch gave up, where it did.
    """

    context: FailureContext
    iteration: int | None
    signal: Signal | None = None
    weak: Task | None = None
    rollout: Rollout | None = None
    deduplication: DeduplicationResult | None = None
    interactions: tuple[Interaction, ...] = ()
    outcomes: tuple[Drafted, ...] = ()
    failure: Failure | None = None

    @property
    def admitted(self) -> tuple[Task, ...]:
        """Return the tasks that it gave rise to."""
        return tuple(one.task for one in self.outcomes if one.task is not None)


Course = dict[int, tuple[float, int]]
"""Success of rollouts by iteration, in their order: the share in [0, 1] and the number of rollouts."""


def pooled(shares: Iterable[tuple[float, int]]) -> tuple[float, int] | None:
    """Return share and number of all rollouts of some iterations; None without one."""
    found = [*shares]
    total = sum(count for _, count in found)
    return (sum(share * count for share, count in found) / total, total) if total else None


def called(reference: Iterable[Iterable[ToolCall]]) -> tuple[str, ...]:
    """Return the names of the tools that a reference calls, each once, in the order of their first calls."""
    return tuple(dict.fromkeys(call.name for turn in reference for call in turn))


class History:
    """The records of one run, read once and joined. Make one with ``History.read``."""

    def __init__(self, run: RunDirectory, tasks: Sequence[Task], iterations: Sequence[int]) -> None:
        """Begin with the run's tasks and the iterations that it has a folder of; ``read`` fills the rest."""
        self.run = run
        self.tasks: dict[str, Task] = {task.id: task for task in tasks}
        self.iterations: tuple[int, ...] = tuple(iterations)
        self.signals: dict[str, Signal] = {}
        self.chains: dict[str, Chain] = {}
        """Every context by id, in the order of stages and ids."""
        self.rollouts: dict[str, Rollout] = {}
        self.groups: dict[str, tuple[Group, ...]] = {}
        """The groups of each task by step."""
        self._of_task: dict[str, str] = {}
        self.marks: dict[str, list[Signal]] = defaultdict(list)
        """The signals of each rollout."""
        self._from: dict[str, list[str]] = defaultdict(list)

    @classmethod
    def read(cls, run: RunDirectory) -> History:
        """Read all records of a run. Raises InputError that names the file and line of a damaged one."""
        numbers = sorted(
            number
            for path in run.iterations_path.glob("*")
            if path.is_dir() and (number := iteration_of(f"{run.iterations_path.name}/{path.name}")) is not None
        )
        history = cls(run, load_tasks(run), numbers)
        for number in numbers:
            history.rollouts |= {one.id: one for one in _heads(run.iteration(number).trajectories, number)}
        ordered = sorted(history.rollouts.values(), key=attrgetter("task_id", "iteration", "step", "sample"))
        for task_id, of_task in groupby(ordered, key=attrgetter("task_id")):
            history.groups[task_id] = tuple(
                Group(task_id, iteration, step, tuple(members))
                for (iteration, step), members in groupby(of_task, key=attrgetter("iteration", "step"))
            )
        history._add_stage(None)
        for number in numbers:
            for one in read_existing(run.iteration(number).signals, Signal):
                history.signals[one.id] = one
                history.marks[one.trajectory_id].append(one)
            history._add_stage(number)
        return history

    def chain_of(self, task_id: str) -> Chain | None:
        """Return the chain that a task came from; None for a given or official one."""
        return self.chains.get(self._of_task.get(task_id, ""))

    def chains_from(self, parent_id: str) -> tuple[Chain, ...]:
        """Return the chains that begin with a signal, a rollout or a weak task of this id."""
        return tuple(self.chains[one] for one in self._from.get(parent_id, ()))

    @property
    def drafted(self) -> Iterator[Drafted]:
        """Yield every draft with what became of it."""
        return (one for chain in self.chains.values() for one in chain.outcomes)

    def chains_in(self, iteration: int | None) -> tuple[Chain, ...]:
        """Return the chains of an iteration, those of D_0 for None."""
        return tuple(one for one in self.chains.values() if one.iteration == iteration)

    def groups_in(self, iteration: int) -> tuple[Group, ...]:
        """Return the groups of an iteration, by task and step."""
        return tuple(one for of_task in self.groups.values() for one in of_task if one.iteration == iteration)

    def course(self, *task_ids: str) -> Course:
        """Return the success of the rollouts of tasks by iteration."""
        results: dict[int, list[bool]] = defaultdict(list)
        for task_id in task_ids:
            for group in self.groups.get(task_id, ()):
                results[group.iteration].extend(group.results)
        return {number: (fmean(found), len(found)) for number, found in sorted(results.items()) if found}

    def trajectory(self, rollout_id: str) -> Trajectory:
        """Read one of ``rollouts`` with its turns. Raises InputError for a damaged line."""
        return next(self.trajectories([self.rollouts[rollout_id]]))

    def trajectories(self, rollouts: Iterable[Rollout]) -> Iterator[Trajectory]:
        """Yield rollouts with their turns, each read when it is asked for. Raises InputError for a damaged line."""
        with ExitStack() as stack:
            files: dict[int, BinaryIO] = {}
            for one in rollouts:
                path = self.run.iteration(one.iteration).trajectories
                if one.iteration not in files:
                    files[one.iteration] = stack.enter_context(opened(path))
                files[one.iteration].seek(one.start)
                try:
                    yield Trajectory.model_validate_json(files[one.iteration].readline(LONGEST))
                except ValidationError as error:
                    raise InputError(f"{path}, byte {one.start}: {complaint(error)}") from None

    def group_of(self, rollout: Rollout) -> Group:
        """Return the group of a rollout of the run."""
        return next(one for one in self.groups[rollout.task_id] if rollout in one.rollouts)

    def sibling(self, rollout: Rollout, *, success: bool) -> Rollout | None:
        """Return a rollout of the same task with the result ``success``: of the same group, or the nearest by step."""
        others = [
            one
            for group in self.groups.get(rollout.task_id, ())
            for one in group.rollouts
            if one.success is success and one.id != rollout.id
        ]
        return min(others, key=lambda one: (abs(one.step - rollout.step), one.step, one.sample), default=None)

    def using(self, tool: str) -> tuple[Task, ...]:
        """Return the tasks whose reference calls a tool, in the order of the task set."""
        return tuple(task for task in self.tasks.values() if tool in called(task.reference))

    def starting_with(self, prefix: str) -> list[str]:
        """Return the ids of tasks, contexts, signals, drafts and rollouts that begin with ``prefix``; none with ""."""
        drafts = (one.draft.id for chain in self.chains.values() for one in chain.outcomes)
        ids = {one for ids in (self.tasks, self.chains, self.signals, self.rollouts, drafts) for one in ids}
        return sorted(one for one in ids if prefix and one.startswith(prefix))

    def _add_stage(self, number: int | None) -> None:
        """Read a stage's files, or those of its branches where they are not joined yet."""
        stage = self.run.seed if number is None else self.run.iteration(number)
        contexts = sorted(read_existing(stage.contexts, FailureContext), key=attrgetter("id"))
        branches = [stage.branch(context.id) for context in contexts]
        joined = stage.verdicts.exists()
        folders: Sequence[StageDirectory | BranchDirectory] = [stage] if joined else branches
        compared = read_existing(stage.judgements, DeduplicationResult) if isinstance(stage, IterationDirectory) else ()
        deduplication = {one.context_id: one for one in compared}
        acts = [row for one in folders for row in read_existing(one.interactions, Interaction)]
        acts.sort(key=attrgetter("context_id", "run", "position"))
        interactions = {name: tuple(rows) for name, rows in groupby(acts, attrgetter("context_id"))}
        made = [row for one in folders for row in read_existing(one.drafts, Draft)]
        made.sort(key=attrgetter("context_id", "id"))
        drafts = {name: tuple(rows) for name, rows in groupby(made, attrgetter("context_id"))}
        results_of = {row.draft_id: row for one in folders for row in read_existing(one.verdicts, DraftVerification)}
        if joined:
            failed = read_existing(stage.branch_failures, Failure)
        else:
            failed = [read_json(one.failure, Failure) for one in branches if one.failure.exists()]
        failures = {one.id: one for one in failed}
        by_draft = {parent: task for task in self.tasks.values() for parent in task.parents}
        for context in contexts:
            chain = Chain(
                context=context,
                iteration=number,
                signal=self.signals.get(context.signal_id),
                weak=self.tasks.get(context.task_id),
                rollout=self.rollouts.get(context.trajectory_id),
                deduplication=deduplication.get(context.id),
                interactions=interactions.get(context.id, ()),
                outcomes=tuple(
                    Drafted(draft, results_of.get(draft.id), by_draft.get(draft.id))
                    for draft in drafts.get(context.id, ())
                ),
                failure=failures.get(context.id),
            )
            self.chains[context.id] = chain
            self._of_task.update((task.id, context.id) for task in chain.admitted)
            for parent in dict.fromkeys((context.signal_id, context.trajectory_id, context.task_id)):
                self._from[parent].append(context.id)


def _heads(path: Path, iteration: int) -> Iterator[Rollout]:
    if not path.exists():
        return
    start = 0
    for number, line in read_lines(path, whole=True):  # a round may append to it at this moment
        try:
            one = Rollout.model_validate_json(line)
        except ValidationError as error:
            raise InputError(f"{path}, line {number}: {complaint(error)}") from None
        yield one.model_copy(update={"iteration": iteration, "start": start})
        start += len(line)
