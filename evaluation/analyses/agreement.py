"""Table 8 of CoEvolve: on which tasks two evaluations agree, with a paired difference and McNemar's test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb
from typing import NamedTuple

from environments.base import InputError
from environments.metrics import OF_ANY_TASKS
from evaluation.analyses import Table
from evaluation.outcomes import PairedChange, TaskOutcome, paired_change

CELLS = {
    "both right": (True, True),
    "only first": (True, False),
    "only second": (False, True),
    "neither right": (False, False),
}


class Agreement(NamedTuple):
    """Two evaluations of one group of tasks.

    ``cells`` counts tasks that both were evaluated on by who solved them, ``change`` is the success of both.
    ``mcnemar``: two-sided exact p of the tasks that only one solved; it takes tasks for independent, so that it errs on
    the small side where they share a start state. ``unpaired``: tasks of one file alone. ``unjudged``: pairs of which
    an infrastructure error ended an attempt. ``metrics``: those of calls and checks, where both files have them.
    """

    group: str
    cells: Mapping[str, int]
    change: PairedChange
    mcnemar: float
    unpaired: int
    unjudged: int
    metrics: Mapping[str, PairedChange]


def agreement(group: str, first: Sequence[TaskOutcome], second: Sequence[TaskOutcome]) -> Agreement:
    """Return the table of one group of tasks. Raises InputError for a task that occurs twice, and without a pair."""
    left, right = _by_task(first, "first"), _by_task(second, "second")
    both = [(left[name], right[name]) for name in left if name in right]
    change = paired_change(first, second)
    if change is None:
        raise InputError(f"{group}: no task was evaluated in both files: name two evaluations of the same tasks")
    solved = [(a.success, b.success) for a, b in both if a.infrastructure_error is b.infrastructure_error is None]
    cells = {name: solved.count(pair) for name, pair in CELLS.items()}
    metrics = {name: paired_change(first, second, metric) for name, metric in OF_ANY_TASKS.items()}
    return Agreement(
        group=group,
        cells=cells,
        change=change,
        mcnemar=mcnemar(cells["only first"], cells["only second"]),
        unpaired=len(left) + len(right) - 2 * len(both),
        unjudged=len(both) - change.tasks,
        metrics={name: one for name, one in metrics.items() if one is not None},
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
    """Return the two-sided exact p of McNemar's test: of the tasks that one solved alone, half are each one's."""
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


def agreement_table(found: Sequence[Agreement]) -> Table:
    """Return a table with a column for each group of tasks."""
    rows = [
        (name, *(f"{one.cells[name] / one.change.tasks:.2%} ({one.cells[name]})" for one in found)) for name in CELLS
    ]
    rows.append(("first", *(f"{one.change.before:.2%}" for one in found)))
    rows.append(("second", *(f"{one.change.after:.2%}" for one in found)))
    rows.append(("second - first", *(one.change.words() for one in found)))
    for metric in dict.fromkeys(name for one in found for name in one.metrics):
        pairs = [one.metrics.get(metric) for one in found]
        rows.append((metric, *("" if one is None else f"{one.before:.3f}, {one.after:.3f}" for one in pairs)))
        rows.append((f"{metric}, second - first", *("" if one is None else one.words() for one in pairs)))
    rows.append(("McNemar", *(f"p = {one.mcnemar:.3g}" for one in found)))
    rows.append(("pairs", *(str(one.change.tasks) for one in found)))
    rows.append(("left out", *(f"{one.unpaired} unpaired, {one.unjudged} not evaluated" for one in found)))
    return ("", *(one.group for one in found)), rows
