"""Draws a run for notebooks: the groups of a round, a task and its ancestors, the signals of a round.

For signals (CoEvolve, section 3.1) the round is read as the node ``extract`` reads it, and they are found anew, so that
other settings can be tried on the same rollouts. The page of a run has its curves (``coevolve report``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from environments.base import InputError
from graph.nodes.weaknesses import counted_patterns, earlier_scores
from graph.report.charts import Chart, DotRow, Dots, dot_chart
from graph.report.digest import task_words
from graph.report.lineage import Chain, Group, History
from graph.report.tables import Table, table
from memory.records import Signal, SignalKind, Trajectory
from memory.run import read_jsonl
from training.signal_settings import SignalSettings
from training.signals import Extraction, GroupScore, PatternCount, extract

_NAME = 40  # characters of a task beside its dots


def groups_chart(history: History, iteration: int, tasks: int = 12) -> Chart:
    """Draw the groups of a round by step: those of the first ``tasks`` tasks in the order in which they were drawn.

    Raises InputError for an iteration without rollouts.
    """
    groups = sorted((one for one in history.groups_in(iteration) if one.results), key=lambda group: group.step)
    if not groups:
        raise InputError(f"iteration {iteration} of {history.run.root} has no rollout: name another iteration")
    names = list(dict.fromkeys(group.task_id for group in groups))[:tasks]
    rows = [
        DotRow(task_name(history, name, _NAME), tuple(group_dots(group) for group in groups if group.task_id == name))
        for name in names
    ]
    return dot_chart(f"Round {iteration}: groups of the first {len(rows)} tasks", "training step", rows)


def rounds(history: History) -> dict[int, str]:
    """Return the name of each round by its first step, for ``dot_chart``."""
    first: dict[int, int] = {}
    for rollout in history.rollouts.values():
        first[rollout.iteration] = min(rollout.step, first.get(rollout.iteration, rollout.step))
    return {step: f"round {iteration}" for iteration, step in first.items()}


def ancestry(history: History, task_id: str) -> tuple[Chain, ...]:
    """Return the chains that lead to a task, the oldest first: a weakness at an added task has a chain of its own.

    Those of D_0 are left out: no weakness led to it.
    """
    found: list[Chain] = []
    while (chain := history.chain_of(task_id)) is not None and chain.iteration is not None and chain not in found:
        found.append(chain)
        task_id = chain.context.task_id
    return tuple(reversed(found))


def generations_chart(history: History, task_id: str) -> Chart:
    """Draw the groups of a task and of the tasks that it descends from, by step; framed: rollouts that led on.

    Raises InputError where none of them was rolled out.
    """
    chains = ancestry(history, task_id)
    marked = {chain.context.task_id: chain.context.trajectory_id for chain in chains}
    rows = []
    for number, name in enumerate([*marked, task_id]):
        dots = tuple(group_dots(one, (marked.get(name, ""),)) for one in history.groups.get(name, ()) if one.results)
        rows.append(DotRow(f"generation {number}", dots))
    if not any(row.groups for row in rows):
        raise InputError(f"neither {task_id} nor a task that it descends from was rolled out: name another task")
    return dot_chart(
        "A task and its ancestors", "training step; framed: the rollouts that led on", rows, rounds(history)
    )


def group_dots(group: Group, marked: Container[str] = ()) -> Dots:
    """Return a group for ``dot_chart``, its rollouts with ids in ``marked`` framed."""
    evaluated = [one for one in group.rollouts if one.success is not None]
    return Dots(group.step, group.results, tuple(n for n, one in enumerate(evaluated) if one.id in marked))


def task_name(history: History, task_id: str, width: int) -> str:
    """Return what the user says in a task, cut to ``width``; the id of one that is not in the run."""
    task = history.tasks.get(task_id)
    return task_id if task is None else task_words(task, width)


@dataclass(frozen=True)
class ReadRound:
    """A round's trajectories with the scores and pattern counts of the rounds before it. Make one with ``read``."""

    history: History
    iteration: int
    trajectories: Sequence[Trajectory]
    earlier: Mapping[str, Sequence[GroupScore]]
    counted: Sequence[PatternCount]

    @classmethod
    def read(cls, history: History, iteration: int) -> ReadRound:
        """Read it. Raises InputError for an iteration without trajectories, and for a damaged record."""
        run = history.run
        if not run.iteration(iteration).trajectories.exists():
            raise InputError(f"{run.root} has no trajectories of iteration {iteration}: name another iteration")
        trajectories = read_jsonl(run.iteration(iteration).trajectories, Trajectory)
        earlier, counted = earlier_scores(run, iteration), counted_patterns(run, iteration)
        return cls(history, iteration, trajectories, earlier, counted)

    def extract(self, settings: SignalSettings) -> Extraction:
        """Find the round's signals with ``settings``."""
        return extract(self.trajectories, self.earlier, settings, self.iteration, self.counted)

    def pattern_counts(self, found: Extraction) -> Counter[tuple[str, ...]]:
        """Return c_p of every action pattern p: rollouts with it since the run began."""
        counts = Counter({one.pattern: one.count for one in found.patterns})
        for former in self.counted:
            counts[former.pattern] += former.count
        return counts


def forgetting_chart(read: ReadRound, found: Extraction, settings: SignalSettings, tasks: int = 6) -> Chart:
    """Draw all groups of tasks with a forgetting signal by step; framed: the failed rollouts that it marks.

    A frame needs a success among the last W scores of earlier steps. Raises InputError for a round without one.
    """
    signals = [one for one in found.signals if one.kind is SignalKind.FORGETTING]
    title = f"Forgetting: a failure with a success in its window (the last {settings.window} scores)"
    return dot_chart(title, "training step; framed: marked", _rows(read, signals, tasks), rounds(read.history))


def boundary_chart(read: ReadRound, found: Extraction, tasks: int = 4) -> Chart:
    """Draw groups of this round by step: of tasks with a boundary signal, then of tasks without; framed: marked.

    Raises InputError for a round without one.
    """
    signals = [one for one in found.signals if one.kind is SignalKind.BOUNDARY]
    rows = _rows(read, signals, tasks)
    marked = {one.task_id for one in signals}
    others = [one for one in read.history.groups if one not in marked and _of_round(read, one)][:tasks]
    rows += [_row(read, one, frozenset()) for one in others]
    return dot_chart(
        "Boundary: groups with both results are marked whole",
        "training step; framed: marked",
        rows,
        rounds(read.history),
    )


def rare_table(read: ReadRound, found: Extraction, settings: SignalSettings, patterns: int = 7) -> Table:
    """Show the counts c_p of the rarest patterns that recur, and of the first that are not rare.

    Rare are patterns with less than theta per cent of N, seen in ``rare_min_trajectories`` or more (ours); none is
    before N has reached ``rare_min_patterns``. Raises InputError for a round without a pattern.
    """
    counts = read.pattern_counts(found)
    if not counts:
        raise InputError("no rollout of the round has an action pattern")
    total = len(counts)
    line = settings.rare_percent * total / 100
    recurring = [one for one in counts.items() if one[1] >= settings.rare_min_trajectories]
    ordered = sorted(recurring, key=lambda item: (item[1], item[0]))
    rare = [one for one in ordered if total >= settings.rare_min_patterns and one[1] < line]
    others = ordered[len(rare) :]
    rows = [(" + ".join(pattern), count, "rare") for pattern, count in rare[:patterns]]
    rows += [(" + ".join(pattern), count, "") for pattern, count in others[:patterns]]
    caption = f"{len(rare)} patterns below theta / 100 * N = {line:.3g}, {len(others)} above, "
    caption += f"{total - len(ordered)} seen too seldom (N = {total} patterns)"
    return table(("pattern", "c_p: rollouts with it since the run began", ""), rows, caption)


def _rows(read: ReadRound, signals: Sequence[Signal], tasks: int) -> list[DotRow]:
    if not signals:
        raise InputError(f"iteration {read.iteration} of {read.history.run.root} has no such signal: try another")
    marked = frozenset(one.trajectory_id for one in signals)
    most = sorted({one.task_id for one in signals}, key=lambda one: (-len(read.history.groups.get(one, ())), one))
    return [_row(read, one, marked) for one in most[:tasks]]


def _row(read: ReadRound, task_id: str, marked: frozenset[str]) -> DotRow:
    groups = [one for one in read.history.groups[task_id] if one.iteration <= read.iteration and one.results]
    return DotRow(task_name(read.history, task_id, _NAME), tuple(group_dots(one, marked) for one in groups))


def _of_round(read: ReadRound, task_id: str) -> bool:
    return any(one.iteration == read.iteration and one.results for one in read.history.groups[task_id])
