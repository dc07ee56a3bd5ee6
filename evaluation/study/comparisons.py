"""Computes an arm's success on an evaluation set, and its paired difference to another arm, with intervals."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from statistics import fmean

from pydantic import Field

from environments.base import Record
from environments.metrics import Metric, Ratio, success
from evaluation.call_shapes import macro_mean
from evaluation.outcomes import TaskOutcome, attempted, evaluated, metric_interval
from evaluation.statistics import t_interval
from evaluation.study.records import ArmResult

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


def _macro(attempts: Attempts, minus: Attempts | None) -> Macro:
    """Return the mean over call shapes; with ``minus``, an arm's attempts at the same tasks, the difference."""
    own, others = _macros(attempts), {} if minus is None else _macros(minus)
    by_seed = {seed: value - others.get(seed, 0.0) for seed, value in own.items()}
    return Macro(
        mean=fmean(by_seed.values()),
        interval=_interval(attempts, minus, by_shape=True),
        by_seed={str(seed): value for seed, value in by_seed.items()},
        shapes=len({one.shape for outcomes in attempts.values() for one in outcomes}),
    )


def _macros(attempts: Attempts) -> dict[int, float]:
    found = {seed: macro_mean([(one.shape, one.success) for one in outcomes]) for seed, outcomes in attempts.items()}
    return {seed: value for seed, value in found.items() if value is not None}


class MetricBySeed(Record):
    """One of a benchmark's own metrics or a paired difference, in its unit, over the seeds for which it is defined.

    ``interval`` covers what that of a ``Comparison`` does.
    """

    mean: float
    by_seed: dict[str, float]
    interval: Interval | None = Field(None, exclude_if=operator.not_)


class Comparison(Record):
    """A mean over ``seeds`` seeds, each printed in ``by_seed``, and its 95 % intervals, None for a single seed.

    ``interval`` covers other seeds, start states and functions (``statistics.shared_interval``), without functions
    where ``functions_known`` is False because the tasks' call shapes are not known. ``t_interval`` is Student's t over
    seeds, for these tasks. ``macro``: over call shapes, where call shapes are known. ``metrics`` are the
    benchmark's own by name.
    """

    mean: float
    interval: Interval | None
    functions_known: bool
    t_interval: Interval | None
    by_seed: dict[str, float]
    seeds: int
    macro: Macro | None = Field(None, exclude_if=operator.not_)
    metrics: dict[str, MetricBySeed] = Field({}, exclude_if=operator.not_)


class Cell(Comparison):
    """An arm's success rate on one evaluation set.

    ``tasks`` and ``clusters`` are the set's; attempts with an infrastructure error are not evaluated. ``extra_calls``:
    mean calls beyond the reference's number of a solved task, None when none was solved or the number is unknown.
    ``differences`` are paired differences to other arms: the baseline, and those of the recipe's ``compare``.
    """

    tasks: int
    clusters: int
    infrastructure_errors: int
    extra_calls: float | None
    differences: dict[str, Comparison] = {}


def cell(
    results: Mapping[int, ArmResult],
    set_name: str,
    metrics: Mapping[str, Metric] | None = None,
) -> Cell | None:
    """Return the success of one arm from its results by seed; None when it has none on the evaluation set ``set_name``.

    ``metrics`` are those of the set's benchmark.
    """
    attempts = {seed: _of_set(result, set_name) for seed, result in sorted(results.items())}
    attempts = {seed: outcomes for seed, outcomes in attempts.items() if evaluated(outcomes)}
    if not attempts:
        return None
    everything = [one for outcomes in attempts.values() for one in outcomes]
    solved = [one for one in evaluated(everything) if one.success]
    tried = {seed: evaluated(outcomes) for seed, outcomes in attempts.items()}
    extra = [max(0, one.calls - one.reference_calls) for one in solved if one.reference_calls is not None]
    return Cell(
        **_summary(tried, None),
        metrics=_metrics(attempts, metrics or {}),
        tasks=len({one.task_id for one in everything}),
        clusters=len({one.cluster for one in everything}),
        infrastructure_errors=len(everything) - len(evaluated(everything)),
        extra_calls=fmean(extra) if extra else None,
    )


def difference(
    arm: Mapping[int, ArmResult],
    other: Mapping[int, ArmResult],
    set_name: str,
    metrics: Mapping[str, Metric] | None = None,
) -> Comparison | None:
    """Return ``arm`` minus ``other`` by seed, over tasks that both were evaluated on; None without a seed of both."""
    pair = _paired(arm, other, set_name)
    if pair is None:
        return None
    return Comparison(**_summary(*pair), metrics=_metrics(pair[0], metrics or {}, pair[1]))


def _metrics(
    attempts: Attempts, metrics: Mapping[str, Metric], minus: Attempts | None = None
) -> dict[str, MetricBySeed]:
    """Return the metrics over the attempts that were evaluated, or their paired differences to those of ``minus``.

    One that is not defined for any seed is left out.
    """
    found = {}
    for name, metric in metrics.items():
        by_seed = {}
        for seed, outcomes in attempts.items():
            value = _value(metric, outcomes) - (_value(metric, minus[seed]) if minus else 0.0)
            if not math.isnan(value):
                by_seed[str(seed)] = value
        if by_seed:
            interval = _interval(attempts, minus, metric) if isinstance(metric, Ratio) else None
            found[name] = MetricBySeed(mean=fmean(by_seed.values()), by_seed=by_seed, interval=interval)
    return found


def _value(metric: Metric, outcomes: Sequence[TaskOutcome]) -> float:
    tried = attempted(outcomes)
    return metric(tried) if tried else math.nan


def _paired(
    arm: Mapping[int, ArmResult], other: Mapping[int, ArmResult], set_name: str
) -> tuple[Attempts, Attempts] | None:
    left: dict[int, list[TaskOutcome]] = {}
    right: dict[int, list[TaskOutcome]] = {}
    for seed in sorted(set(arm) & set(other)):
        ours, theirs = _of_set(arm[seed], set_name), _of_set(other[seed], set_name)
        both = {one.task_id for one in evaluated(ours)} & {one.task_id for one in evaluated(theirs)}
        if both:
            left[seed] = [one for one in ours if one.task_id in both]
            right[seed] = [one for one in theirs if one.task_id in both]
    return (left, right) if left else None


def _summary(attempts: Attempts, minus: Attempts | None) -> dict[str, object]:
    by_seed = {seed: _rate(tried) - (_rate(minus[seed]) if minus else 0.0) for seed, tried in attempts.items() if tried}
    known = any(one.shape for outcomes in attempts.values() for one in outcomes)
    values = list(by_seed.values())
    return {
        "mean": fmean(values),
        "interval": _interval(attempts, minus),
        "functions_known": known,
        "t_interval": t_interval(values),
        "by_seed": {str(seed): value for seed, value in by_seed.items()},
        "seeds": len(values),
        "macro": _macro(attempts, minus) if known else None,
    }


def _interval(
    attempts: Attempts, minus: Attempts | None, metric: Ratio = success, *, by_shape: bool = False
) -> Interval | None:
    """Return the interval of a metric over tasks, or of success over call shapes; None for a single seed."""
    if len(attempts) < 2:
        return None
    others = None if minus is None else [minus[seed] for seed in attempts]
    return metric_interval(metric, list(attempts.values()), others, by_shape=by_shape)


def _of_set(result: ArmResult, set_name: str) -> list[TaskOutcome]:
    return [one for one in result.outcomes if one.group == set_name]


def _rate(outcomes: Sequence[TaskOutcome]) -> float:
    return sum(one.success for one in outcomes) / len(outcomes)
