"""Draws the signals of a round (CoEvolve, section 3.1): windows of forgetting, mixed groups, counts of patterns.

The round is read as the node ``extract`` reads it, and its signals are found anew, so that other settings can be tried
on the same rollouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from environments.base import InputError
from graph.report.charts import Bar, Chart, DotRow, bar_chart, dot_chart
from graph.report.lineage import History
from graph.report.run_charts import group_dots, rounds, task_name
from memory.records import Signal, SignalKind, Trajectory
from memory.run import read_jsonl
from training.signal_settings import SignalSettings
from training.signals import Extraction, GroupScore, PatternCount, extract

_NAME = 34  # characters of a task beside its dots


@dataclass(frozen=True)
class ReadRound:
    """A round's trajectories with the scores and pattern counts of the rounds before it. Make one with ``read``."""

    history: History
    iteration: int
    trajectories: Sequence[Trajectory]
    earlier: dict[str, list[GroupScore]]
    counted: Sequence[PatternCount]

    @classmethod
    def read(cls, history: History, iteration: int) -> ReadRound:
        """Read it. Raises InputError for an iteration without trajectories, and for a damaged record."""
        run = history.run
        if not run.iteration(iteration).trajectories.exists():
            raise InputError(f"{run.root} has no trajectories of iteration {iteration}: name another iteration")
        earlier: dict[str, list[GroupScore]] = {}
        counted: list[PatternCount] = []
        for number in range(iteration):
            folder = run.iteration(number)
            for score in read_jsonl(folder.scores, GroupScore):
                earlier.setdefault(score.task_id, []).append(score)
            counted += read_jsonl(folder.patterns, PatternCount)
        return cls(history, iteration, read_jsonl(run.iteration(iteration).trajectories, Trajectory), earlier, counted)

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


def rare_chart(read: ReadRound, found: Extraction, settings: SignalSettings, patterns: int = 7) -> Chart:
    """Draw the counts c_p of the rarest patterns that recur and of the first that are not rare, with the line between.

    Rare are patterns with less than theta per cent of N, seen in ``rare_min_trajectories`` or more (ours); none is
    before N has reached ``rare_min_patterns``. Raises InputError for a round without a pattern.
    """
    counts = read.pattern_counts(found)
    if not counts:
        raise InputError("no rollout of the round has an action pattern")
    total = len(counts)
    line = settings.rare_percent * total / 100
    recurring = {pattern: count for pattern, count in counts.items() if count >= settings.rare_min_trajectories}
    ordered = sorted(recurring.items(), key=lambda item: (item[1], item[0]))
    enough = total >= settings.rare_min_patterns
    rare = [one for one in ordered if enough and one[1] < line]
    others = [one for one in ordered if one not in rare]
    bars = [Bar(" + ".join(pattern), count, marked=True) for pattern, count in rare[:patterns]]
    bars += [Bar(" + ".join(pattern), count) for pattern, count in others[:patterns]]
    title = (
        f"Rare: {len(rare)} patterns below the line, {len(others)} above, {len(counts) - len(ordered)} seen too seldom"
    )
    label = f"c_p: rollouts with the pattern since the run began (N = {total} patterns)"
    return bar_chart(title, label, bars, (line, f"theta / 100 * N = {line:.3g}"))


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
