"""Table 8 of CoEvolve: on which tasks two evaluations agree, with a paired difference and McNemar's test."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from environments.base import InputError, Record
from evaluation.call_shapes import numbered, rarest_functions
from evaluation.outcomes import TaskOutcome
from evaluation.statistics import Counts, shared_interval

Interval = tuple[float, float]
CellName = Literal["both", "only_first", "only_second", "neither"]
CELLS: tuple[CellName, ...] = ("both", "only_first", "only_second", "neither")


class AgreementCell(Record):
    """Tasks of one cell, their share of all pairs, and its 95 % interval (None for a single task)."""

    tasks: int
    share: float
    interval: Interval | None


class Agreement(Record):
    """Two evaluations of the same tasks.

    ``pairs``: tasks that both were evaluated on. ``difference``: success of the second less that of the first, with an
    interval for other start states and functions (``statistics.shared_interval``). ``mcnemar``: two-sided exact p of
    the tasks that only one solved; it takes tasks for independent, so that it errs on the small side where they share a
    start state. ``unpaired``: tasks of one file alone. ``unjudged``: pairs of which an infrastructure error ended an
    attempt.
    """

    group: str
    pairs: int
    cells: dict[CellName, AgreementCell]
    first: float
    second: float
    difference: float
    interval: Interval | None
    mcnemar: float
    clusters: int
    unpaired: int
    unjudged: int


def agreement(group: str, first: Sequence[TaskOutcome], second: Sequence[TaskOutcome]) -> Agreement:
    """Return the table of one group of tasks. Raises InputError for a task that occurs twice, and without a pair."""
    left, right = _by_task(first, "first"), _by_task(second, "second")
    names = [name for name in left if name in right]
    both = [(left[name], right[name]) for name in names]
    pairs = [two for two in both if all(one.infrastructure_error is None for one in two)]
    if not pairs:
        raise InputError(f"{group}: no task was evaluated in both files: name two evaluations of the same tasks")
    solved = np.array([[int(one.success) for one, _ in pairs], [int(other.success) for _, other in pairs]])
    clusters = numbered([one.cluster for one, _ in pairs])
    functions = numbered(rarest_functions([one.shape or other.shape for one, other in pairs]))
    ones = np.ones((1, len(pairs)), dtype=np.int64)

    def interval(counts: Counts, minus: Counts | None = None) -> Interval | None:
        if len(pairs) < 2:
            return None
        return shared_interval(counts, ones, clusters, functions, None if minus is None else (minus, ones))

    members: dict[CellName, NDArray[np.int64]] = {
        "both": solved[:1] * solved[1:],
        "only_first": solved[:1] * (1 - solved[1:]),
        "only_second": (1 - solved[:1]) * solved[1:],
        "neither": (1 - solved[:1]) * (1 - solved[1:]),
    }
    rates = solved.mean(axis=1)
    return Agreement(
        group=group,
        pairs=len(pairs),
        cells={
            name: AgreementCell(
                tasks=int(members[name].sum()), share=float(members[name].mean()), interval=interval(members[name])
            )
            for name in CELLS
        },
        first=float(rates[0]),
        second=float(rates[1]),
        difference=float(rates[1] - rates[0]),
        interval=interval(solved[1:], solved[:1]),
        mcnemar=mcnemar(int(members["only_first"].sum()), int(members["only_second"].sum())),
        clusters=int(clusters.max()) + 1,
        unpaired=len(left) + len(right) - 2 * len(names),
        unjudged=len(names) - len(pairs),
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
        cells = [one.cells[name] for one in found]
        rows.append((words[name], *(f"{one.share:.2%} ({one.tasks}){_ends(one.interval)}" for one in cells)))
    rows.append(("first", *(f"{one.first:.2%}" for one in found)))
    rows.append(("second", *(f"{one.second:.2%}" for one in found)))
    rows.append(("second - first", *(f"{100 * one.difference:+.2f}{_ends(one.interval)}" for one in found)))
    rows.append(("McNemar", *(f"p = {one.mcnemar:.3g}" for one in found)))
    rows.append(("pairs", *(str(one.pairs) for one in found)))
    rows.append(("left out", *(f"{one.unpaired} unpaired, {one.unjudged} not evaluated" for one in found)))
    return ("", *(one.group for one in found)), rows


def _ends(interval: Interval | None) -> str:
    return "" if interval is None else f"  95 %: {100 * interval[0]:.1f} to {100 * interval[1]:.1f}"
