"""Figures 6 and 7 of CoEvolve: user turns and calls of original and of synthetic tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from environments.base import Record


class Distribution(Record):
    """Whole numbers: ``share`` of tasks by number (a density over numbers one apart), and their mean."""

    tasks: int
    mean: float
    share: dict[int, float]


class TaskLengths(Record):
    """Lengths of one set of tasks.

    ``turns``: user turns. ``calls``: calls of the reference, a program counting as one; None where no task's reference
    is known, and over the ``tasks`` with a known one otherwise.
    """

    name: str
    turns: Distribution
    calls: Distribution | None


def task_lengths(name: str, turns: Sequence[int], calls: Sequence[int | None]) -> TaskLengths:
    """Return the lengths of a set, given by task. ``calls`` is None where a task's reference is not known."""
    known = [one for one in calls if one is not None]
    return TaskLengths(name=name, turns=distribution(turns), calls=distribution(known) if known else None)


def distribution(values: Sequence[int]) -> Distribution:
    """Return the shares of whole numbers, in order. Raises ValueError without a value."""
    counts = Counter(values)
    if not counts:
        raise ValueError("no value")
    return Distribution(
        tasks=len(values), mean=fmean(values), share={value: counts[value] / len(values) for value in sorted(counts)}
    )


def lengths_table(sets: Sequence[TaskLengths]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of a table: a row for each number of turns and of calls, a column for each set."""
    rows: list[tuple[str, ...]] = []
    for what in ("turns", "calls"):
        of: list[Distribution | None] = [getattr(one, what) for one in sets]
        numbers = sorted({number for one in of if one is not None for number in one.share})
        for number in numbers:
            shares = ["unknown" if one is None else f"{one.share.get(number, 0.0):.1%}" for one in of]
            rows.append((f"{number} {what if number != 1 else what.removesuffix('s')}", *shares))
        rows.append((f"mean {what}", *("unknown" if one is None else f"{one.mean:.2f}" for one in of)))
        rows.append((f"tasks with known {what}", *("0" if one is None else str(one.tasks) for one in of)))
    return ("", *(one.name for one in sets)), rows
