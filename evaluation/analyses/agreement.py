"""Table 8 of CoEvolve: on which tasks two evaluations agree, with a paired difference and McNemar's test."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import comb
from typing import Literal

from pydantic import Field

from environments.base import InputError, Record
from environments.metrics import OF_ANY_TASKS
from evaluation.outcomes import Interval, TaskOutcome, paired_change

CellName = Literal["both", "only_first", "only_second", "neither"]
CELLS: tuple[CellName, ...] = ("both", "only_first", "only_second", "neither")


class MetricPair(Record):
    """A metric of two evaluations, and the 95 % interval of the second less the first (``outcomes.paired_change``)."""

    first: float
    second: float
    interval: Interval | None


class Agreement(Record):
    """Two evaluations of the same tasks.

    ``pairs``: tasks that both were evaluated on, which ``cells`` counts by who solved them. ``difference``: success of
    the second less that of the first, with the interval of ``outcomes.paired_change``. ``mcnemar``: two-sided exact p
    of the tasks that only one solved; it takes tasks for independent, so that it errs on the small side where they
    share a start state. ``unpaired``: tasks of one file alone. ``unjudged``: pairs of which an infrastructure error
    ended an attempt. ``metrics``: other metrics of the calls and checks, where both files have them.
    """

    group: str
    pairs: int
    cells: dict[CellName, int]
    first: float
    second: float
    difference: float
    interval: Interval | None
    mcnemar: float
    unpaired: int
    unjudged: int
    metrics: dict[str, MetricPair] = Field({}, exclude_if=operator.not_)


def agreement(group: str, first: Sequence[TaskOutcome], second: Sequence[TaskOutcome]) -> Agreement:
    """Return the table of one group of tasks. Raises InputError for a task that occurs twice, and without a pair."""
    left, right = _by_task(first, "first"), _by_task(second, "second")
    names = [name for name in left if name in right]
    change = paired_change(first, second)
    if change is None:
        raise InputError(f"{group}: no task was evaluated in both files: name two evaluations of the same tasks")
    both = [(left[name], right[name]) for name in names]
    solved = [(a.success, b.success) for a, b in both if a.infrastructure_error is b.infrastructure_error is None]
    counts = [solved.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False))]
    return Agreement(
        group=group,
        pairs=change.tasks,
        cells=dict(zip(CELLS, counts, strict=True)),
        first=change.before,
        second=change.after,
        difference=change.after - change.before,
        interval=change.interval,
        mcnemar=mcnemar(counts[1], counts[2]),
        unpaired=len(left) + len(right) - 2 * len(names),
        unjudged=len(names) - change.tasks,
        metrics={
            name: MetricPair(first=found.before, second=found.after, interval=found.interval)
            for name, metric in OF_ANY_TASKS.items()
            if (found := paired_change(first, second, metric)) is not None
        },
    )


def agreements(first: Sequence[TaskOutcome], second: Sequence[TaskOutcome]) -> tuple[Agreement, ...]:
    """Return a table for each group that both files have, in the first's order. Raises InputError without one."""
    groups = [name for name in dict.fromkeys(one.group for one in first) if name in {one.group for one in second}]
    if not groups:
        raise InputError("the two files have no evaluation set in common: name two evaluations of the same tasks")
    return tuple(
        agreement(name, [one for one in first if one.group == name], [one for one in second if one.group == name])
        for name in groups
    )


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided exact p of McNemar's test: of the tasks that one solved alone, half are each one's.

    1 without such a task. Raises ValueError for a negative count.
    """
    if min(only_first, only_second) < 0:
        raise ValueError(f"{only_first} and {only_second} tasks")
    n = only_first + only_second
    tail = sum(comb(n, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, float(2 * tail / 2**n))


def _by_task(attempts: Sequence[TaskOutcome], which: str) -> dict[str, TaskOutcome]:
    found: dict[str, TaskOutcome] = {}
    for one in attempts:
        if one.task_id in found:
            raise InputError(f"the {which} file has task {one.task_id} of {one.group} twice: name one evaluation")
        found[one.task_id] = one
    return found


def agreement_table(found: Sequence[Agreement]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of a table with a column for each group of tasks."""
    words = {"both": "both right", "only_first": "only first", "only_second": "only second", "neither": "neither right"}
    rows: list[tuple[str, ...]] = []
    for name in CELLS:
        rows.append((words[name], *(f"{one.cells[name] / one.pairs:.2%} ({one.cells[name]})" for one in found)))
    rows.append(("first", *(f"{one.first:.2%}" for one in found)))
    rows.append(("second", *(f"{one.second:.2%}" for one in found)))
    rows.append(("second - first", *(f"{100 * one.difference:+.2f}{_ends(one.interval)}" for one in found)))
    for metric in dict.fromkeys(name for one in found for name in one.metrics):
        pairs = [one.metrics.get(metric) for one in found]
        rows.append((metric, *("" if pair is None else f"{pair.first:.3f}, {pair.second:.3f}" for pair in pairs)))
        rows.append((f"{metric}, second - first", *("" if pair is None else _difference(pair) for pair in pairs)))
    rows.append(("McNemar", *(f"p = {one.mcnemar:.3g}" for one in found)))
    rows.append(("pairs", *(str(one.pairs) for one in found)))
    rows.append(("left out", *(f"{one.unpaired} unpaired, {one.unjudged} not evaluated" for one in found)))
    return ("", *(one.group for one in found)), rows


def _difference(pair: MetricPair) -> str:
    ends = "" if pair.interval is None else f"  95 %: {pair.interval[0]:.3f} to {pair.interval[1]:.3f}"
    return f"{pair.second - pair.first:+.3f}{ends}"


def _ends(interval: Interval | None) -> str:
    return "" if interval is None else f"  95 %: {100 * interval[0]:.1f} to {100 * interval[1]:.1f}"
