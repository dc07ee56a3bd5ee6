"""Break an arm's success down: the mean over call shapes, rates by function and by length, and their tables (ours)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from environments.base import Record
from evaluation.call_shapes import Shape, by_function, macro_mean
from evaluation.outcomes import TaskOutcome

Interval = tuple[float, float]
Attempts = Mapping[int, Sequence[TaskOutcome]]


class Macro(Record):
    """The mean over call shapes, each counted once however many tasks have it, in [0, 1] or as a difference.

    ``interval`` covers other seeds, start states and functions; None for a single seed.
    """

    mean: float
    interval: Interval | None
    by_seed: dict[str, float]
    shapes: int


class Rate(Record):
    """Success over the seeds' attempts at the ``tasks`` tasks of one function or length."""

    tasks: int
    mean: float


class Breakdown(Record):
    """The success of an arm on one evaluation set by call shape, function (that references call) and length."""

    macro: Macro
    by_function: dict[str, Rate] = {}
    by_length: dict[str, Rate] = {}


def broken_down(attempts: Attempts, minus: Attempts | None, interval: Interval | None) -> Breakdown:
    """Return the breakdown of evaluated attempts; with ``minus``, an arm's attempts at the same tasks, differences.

    ``interval`` is that of the mean over call shapes.
    """
    everything = [(one.shape, one.success) for outcomes in attempts.values() for one in outcomes]
    own, others = _macros(attempts), {} if minus is None else _macros(minus)
    by_seed = {seed: value - others.get(seed, 0.0) for seed, value in own.items()}
    macro = Macro(
        mean=fmean(by_seed.values()),
        interval=interval,
        by_seed={str(seed): value for seed, value in by_seed.items()},
        shapes=len({shape for shape, _ in everything}),
    )
    if minus is not None:
        return Breakdown(macro=macro)
    seeds = len(attempts)
    functions = {
        name: Rate(tasks=round(found.n / seeds), mean=found.successes / found.n)
        for name, found in by_function(everything).items()
    }
    return Breakdown(macro=macro, by_function=functions, by_length=_by_length(everything, seeds))


def _macros(attempts: Attempts) -> dict[int, float]:
    found = {seed: macro_mean([(one.shape, one.success) for one in outcomes]) for seed, outcomes in attempts.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def _by_length(attempts: Iterable[tuple[Shape, bool]], seeds: int) -> dict[str, Rate]:
    found: defaultdict[int, list[bool]] = defaultdict(list)
    for shape, success in attempts:
        found[len(shape)].append(success)
    return {str(n): Rate(tasks=round(len(found[n]) / seeds), mean=fmean(found[n])) for n in sorted(found)}


def length_table(set_name: str, arms: Mapping[str, Breakdown]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of success by calls of the reference: arms in rows. Percent."""
    lengths = sorted({name for one in arms.values() for name in one.by_length}, key=int)
    tasks = {n: max(one.by_length[n].tasks for one in arms.values() if n in one.by_length) for n in lengths}
    head = (f"{set_name} by length", *(f"{n} (n = {tasks[n]})" for n in lengths))
    return head, [(name, *(_percent(one.by_length.get(n)) for n in lengths)) for name, one in arms.items()]


def function_table(set_name: str, arms: Mapping[str, Breakdown]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of success by function that references call: functions in rows. Percent."""
    names = list(dict.fromkeys(name for one in arms.values() for name in one.by_function))
    rows = []
    for name in names:
        tasks = max(one.by_function[name].tasks for one in arms.values() if name in one.by_function)
        rows.append((name, str(tasks), *(_percent(one.by_function.get(name)) for one in arms.values())))
    rows.sort(key=lambda row: (-int(row[1]), row[0]))
    return (f"{set_name} by function", "tasks", *arms), rows


def _percent(rate: Rate | None) -> str:
    return "" if rate is None else f"{100 * rate.mean:.0f}"
