"""Computes an arm's success on an evaluation set, and its paired difference to another arm, with intervals."""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from pydantic import Field

from environments.base import Record
from environments.metrics import Attempted, Metric
from evaluation.call_shapes import Shape, numbered, rarest_functions
from evaluation.statistics import Counts, shared_interval, t_interval
from evaluation.study.breakdown import Breakdown, broken_down
from evaluation.study.records import ArmOutcome, ArmResult

Interval = tuple[float, float]
Shapes = Mapping[str, Shape]
Attempts = Mapping[int, Sequence[ArmOutcome]]


class Rest(Record):
    """The same mean over the ``tasks`` tasks whose references do not call one function; Student's t over seeds."""

    function: str
    tasks: int
    mean: float
    t_interval: Interval | None


class Comparison(Record):
    """A mean over ``seeds`` seeds, each printed in ``by_seed``, and its 95 % intervals, None for a single seed.

    ``interval`` covers other seeds, start states and functions (``statistics.shared_interval``), without functions
    where ``functions_known`` is False because the tasks' call shapes are not known. ``t_interval`` is Student's t over
    seeds, for these tasks. ``without``: without the function that decides most. ``breakdown``: by call shape, function
    and length, where the recipe asks for it.
    """

    mean: float
    interval: Interval | None
    functions_known: bool
    t_interval: Interval | None
    by_seed: dict[str, float]
    seeds: int
    without: Rest | None = None
    breakdown: Breakdown | None = Field(None, exclude_if=operator.not_)


class MetricBySeed(Record):
    """One of a benchmark's own metrics, in its unit, over the seeds for which it is defined."""

    mean: float
    by_seed: dict[str, float]


class Cell(Comparison):
    """An arm's success rate on one evaluation set.

    ``tasks`` and ``clusters`` are the set's; attempts with an infrastructure error are not evaluated. ``extra_calls``:
    mean calls beyond the reference's number of a solved task, None when none was solved or the number is unknown.
    ``metrics`` are the benchmark's own by name. ``differences`` are paired differences to other arms of the recipe's
    ``compare``.
    """

    tasks: int
    clusters: int
    infrastructure_errors: int
    extra_calls: float | None
    difference_to_grpo: Comparison | None = None
    differences: dict[str, Comparison] = {}
    metrics: dict[str, MetricBySeed] = Field({}, exclude_if=operator.not_)


def cell(
    results: Mapping[int, ArmResult],
    set_name: str,
    shapes: Shapes | None = None,
    function: str | None = None,
    metrics: Mapping[str, Metric] | None = None,
    *,
    breakdown: bool = False,
) -> Cell | None:
    """Return the success of one arm from its results by seed; None when it has none on the evaluation set ``set_name``.

    "SET/KEY=VALUE" means the tasks of a set with that label. ``shapes`` are the call shapes of the set's tasks by id,
    ``function`` is the one to leave out, ``metrics`` are those of the set's benchmark. ``breakdown``: break it down by
    call shape, function and length too.
    """
    attempts = {seed: _of_set(result, set_name) for seed, result in sorted(results.items())}
    attempts = {seed: outcomes for seed, outcomes in attempts.items() if any(_evaluated(one) for one in outcomes)}
    if not attempts:
        return None
    everything = [one for outcomes in attempts.values() for one in outcomes]
    solved = [one for one in everything if one.success and _evaluated(one)]
    evaluated = {seed: [one for one in outcomes if _evaluated(one)] for seed, outcomes in attempts.items()}
    extra = [max(0, one.calls - one.reference_calls) for one in solved if one.reference_calls is not None]
    return Cell(
        **_summary(evaluated, None, shapes, function, breakdown),
        metrics=_metrics(attempts, metrics or {}),
        tasks=len({one.task for one in everything}),
        clusters=len({one.cluster for one in everything}),
        infrastructure_errors=sum(not _evaluated(one) for one in everything),
        extra_calls=fmean(extra) if extra else None,
    )


def difference(
    arm: Mapping[int, ArmResult],
    other: Mapping[int, ArmResult],
    set_name: str,
    shapes: Shapes | None = None,
    function: str | None = None,
    *,
    breakdown: bool = False,
) -> Comparison | None:
    """Return ``arm`` minus ``other`` by seed, over the tasks that both were evaluated on; None without a seed of both.

    ``shapes``, ``function`` and ``breakdown`` as for ``cell``.
    """
    pair = _paired(arm, other, set_name)
    return None if pair is None else Comparison(**_summary(*pair, shapes, function, breakdown))


def _metrics(attempts: Attempts, metrics: Mapping[str, Metric]) -> dict[str, MetricBySeed]:
    """Return the metrics over the attempts that were evaluated; one that is defined for no seed is left out."""
    found: dict[str, dict[str, float]] = {name: {} for name in metrics}
    for seed, outcomes in attempts.items():
        broken = {one.cluster for one in outcomes if not _evaluated(one)}
        tried = [
            Attempted(id=one.task, group=one.cluster, success=one.success, group_evaluated=one.cluster not in broken)
            for one in outcomes
            if _evaluated(one)
        ]
        for name, metric in metrics.items():
            value = metric(tried)
            if not math.isnan(value):
                found[name][str(seed)] = value
    return {name: MetricBySeed(mean=fmean(by.values()), by_seed=by) for name, by in found.items() if by}


def deciding_function(
    arms: Sequence[Mapping[int, ArmResult]], other: Mapping[int, ArmResult], set_name: str, shapes: Shapes
) -> str | None:
    """Return the function without whose tasks the differences of ``arms`` to ``other`` change most, in absolute sum.

    None where no difference is known or none changes; arms with a task that is not in ``shapes`` are left out.
    """
    moved: defaultdict[str, float] = defaultdict(float)
    for arm in arms:
        pair = _paired(arm, other, set_name)
        if pair is None or not _known(pair[0], shapes):
            continue
        whole = fmean(_differences(*pair).values())
        for name in {name for outcomes in pair[0].values() for one in outcomes for name in shapes[one.task]}:
            rest = _differences(*(_without(side, shapes, name) for side in pair))
            moved[name] += abs(whole - fmean(rest.values())) if rest else 0.0
    return max(sorted(moved), key=lambda name: moved[name]) if any(moved.values()) else None


def _paired(
    arm: Mapping[int, ArmResult], other: Mapping[int, ArmResult], set_name: str
) -> tuple[Attempts, Attempts] | None:
    left: dict[int, list[ArmOutcome]] = {}
    right: dict[int, list[ArmOutcome]] = {}
    for seed in sorted(set(arm) & set(other)):
        ours, theirs = _of_set(arm[seed], set_name), _of_set(other[seed], set_name)
        both = {one.task for one in ours if _evaluated(one)} & {one.task for one in theirs if _evaluated(one)}
        if both:
            left[seed] = [one for one in ours if one.task in both]
            right[seed] = [one for one in theirs if one.task in both]
    return (left, right) if left else None


def _summary(
    attempts: Attempts,
    minus: Attempts | None,
    shapes: Shapes | None,
    function: str | None,
    breakdown: bool,
) -> dict[str, object]:
    by_seed = _differences(attempts, minus)
    known = shapes is not None and _known(attempts, shapes)
    values = list(by_seed.values())
    return {
        "mean": fmean(values),
        "interval": _interval(attempts, minus, shapes if known else None),
        "functions_known": known,
        "t_interval": t_interval(values),
        "by_seed": {str(seed): value for seed, value in by_seed.items()},
        "seeds": len(values),
        "without": _rest(attempts, minus, shapes, function) if known and shapes is not None and function else None,
        "breakdown": _broken_down(attempts, minus, shapes) if known and shapes and breakdown else None,
    }


def _differences(attempts: Attempts, minus: Attempts | None) -> dict[int, float]:
    """Return success by seed, less that of ``minus``."""
    return {seed: _rate(tried) - (_rate(minus[seed]) if minus else 0.0) for seed, tried in attempts.items() if tried}


def _broken_down(attempts: Attempts, minus: Attempts | None, shapes: Shapes) -> Breakdown:
    return broken_down(attempts, minus, shapes, _interval(attempts, minus, shapes, of_shapes=True))


def _interval(
    attempts: Attempts, minus: Attempts | None, shapes: Shapes | None, *, of_shapes: bool = False
) -> Interval | None:
    """Return the interval of the mean over tasks, or over call shapes; None for a single seed."""
    if len(attempts) < 2:
        return None
    tasks = sorted({(one.task, one.cluster) for outcomes in attempts.values() for one in outcomes})
    names = [task for task, _ in tasks]
    sides = [_counts(side, names) for side in (attempts, minus) if side is not None]
    known = [() if shapes is None else shapes[name] for name in names]
    return shared_interval(
        *sides[0],
        numbered([cluster for _, cluster in tasks]),
        numbered(rarest_functions(known)),
        sides[1] if minus is not None else None,
        shapes=numbered(known) if of_shapes else None,
    )


def _rest(attempts: Attempts, minus: Attempts | None, shapes: Shapes, function: str) -> Rest | None:
    left = _without(attempts, shapes, function)
    rates = list(_differences(left, None if minus is None else _without(minus, shapes, function)).values())
    if not rates:
        return None
    tasks = len({one.task for outcomes in left.values() for one in outcomes})
    return Rest(function=function, tasks=tasks, mean=fmean(rates), t_interval=t_interval(rates))


def _without(attempts: Attempts, shapes: Shapes, function: str) -> Attempts:
    return {seed: [one for one in outcomes if function not in shapes[one.task]] for seed, outcomes in attempts.items()}


def _known(attempts: Attempts, shapes: Shapes) -> bool:
    return all(one.task in shapes for outcomes in attempts.values() for one in outcomes)


def _counts(attempts: Attempts, names: Sequence[str]) -> tuple[Counts, Counts]:
    """Count successes and attempts by seed and task."""
    columns = {name: column for column, name in enumerate(names)}
    successes = np.zeros((len(attempts), len(names)), dtype=np.int64)
    tasks = np.zeros_like(successes)
    for row, outcomes in enumerate(attempts.values()):
        for one in outcomes:
            tasks[row, columns[one.task]] += 1
            successes[row, columns[one.task]] += one.success
    return successes, tasks


def _of_set(result: ArmResult, set_name: str) -> list[ArmOutcome]:
    name, _, stratum = set_name.partition("/")
    return [one for one in result.outcomes if one.panel == name and (not stratum or stratum in one.strata)]


def _evaluated(outcome: ArmOutcome) -> bool:
    return outcome.infrastructure_error is None


def _rate(outcomes: Sequence[ArmOutcome]) -> float:
    return sum(one.success for one in outcomes) / len(outcomes)
