"""Computes an arm's success on an evaluation set, and its paired difference to another arm, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from environments.metrics import Metric, Ratio, success
from evaluation.outcomes import Interval, TaskOutcome, attempted, evaluated, metric_interval
from evaluation.statistics import macro_mean, t_interval
from evaluation.study.records import ArmResult

Attempts = Mapping[int, Sequence[TaskOutcome]]


class Estimate(NamedTuple):
    """A metric of an arm, or its paired difference to another arm's, in the metric's unit.

    ``by_seed`` has the seeds for which it is defined. ``interval``, 95 %, covers other seeds, start states and
    functions (``outcomes.metric_interval``), without functions where the tasks' call shapes are not known. It is None
    for a single seed and for a metric that is no quotient.
    """

    by_seed: Mapping[int, float]
    interval: Interval | None

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.by_seed.values())

    @property
    def t_interval(self) -> Interval | None:
        """Student's t over seeds, for these tasks; None for a single seed."""
        return t_interval(list(self.by_seed.values()))


@dataclass(frozen=True)
class Comparison:
    """An arm on one evaluation set, alone or minus another one.

    ``macro`` is the mean over call shapes, each counted once however many tasks have it; None where call shapes are not
    known. ``metrics`` are the benchmark's own by name.
    """

    success: Estimate
    macro: Estimate | None
    metrics: Mapping[str, Estimate]


@dataclass(frozen=True)
class Cell(Comparison):
    """An arm on one evaluation set.

    ``tasks`` and ``clusters`` are the set's; attempts with an infrastructure error are not evaluated. ``extra_calls``:
    mean calls beyond the reference's number of a solved task, None when none was solved or the number is unknown.
    ``differences`` are paired differences to other arms: the baseline, and those of the recipe's ``compare``.
    """

    tasks: int
    clusters: int
    infrastructure_errors: int
    extra_calls: float | None
    differences: Mapping[str, Comparison]


def cell(
    results: Mapping[int, ArmResult],
    set_name: str,
    metrics: Mapping[str, Metric] | None = None,
    differences: Mapping[str, Comparison] | None = None,
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
    extra = [max(0, one.calls - one.reference_calls) for one in solved if one.reference_calls is not None]
    own = _compared(attempts, metrics or {})
    return Cell(
        own.success,
        own.macro,
        own.metrics,
        tasks=len({one.task_id for one in everything}),
        clusters=len({one.cluster for one in everything}),
        infrastructure_errors=len(everything) - len(evaluated(everything)),
        extra_calls=fmean(extra) if extra else None,
        differences=differences or {},
    )


def difference(
    arm: Mapping[int, ArmResult],
    other: Mapping[int, ArmResult],
    set_name: str,
    metrics: Mapping[str, Metric] | None = None,
) -> Comparison | None:
    """Return ``arm`` minus ``other`` by seed, over tasks that both were evaluated on; None without a seed of both."""
    left: dict[int, list[TaskOutcome]] = {}
    right: dict[int, list[TaskOutcome]] = {}
    for seed in sorted(set(arm) & set(other)):
        ours, theirs = _of_set(arm[seed], set_name), _of_set(other[seed], set_name)
        both = {one.task_id for one in evaluated(ours)} & {one.task_id for one in evaluated(theirs)}
        if both:
            left[seed] = [one for one in ours if one.task_id in both]
            right[seed] = [one for one in theirs if one.task_id in both]
    return _compared(left, metrics or {}, right) if left else None


def _compared(attempts: Attempts, metrics: Mapping[str, Metric], minus: Attempts | None = None) -> Comparison:
    """Return what the attempts are estimates of; a metric that is not defined for any seed is left out."""
    known = any(one.shape for outcomes in attempts.values() for one in outcomes)
    rate = _estimate(success, attempts, minus)
    assert rate is not None, "each seed has an attempt that was evaluated"
    found = {name: _estimate(metric, attempts, minus) for name, metric in metrics.items()}
    return Comparison(
        success=rate,
        macro=_estimate(success, attempts, minus, by_shape=True) if known else None,
        metrics={name: one for name, one in found.items() if one is not None},
    )


def _estimate(metric: Metric, attempts: Attempts, minus: Attempts | None, *, by_shape: bool = False) -> Estimate | None:
    """Return the metric over tasks, or success over call shapes; None where it is not defined for any seed."""
    values = {
        seed: _value(metric, outcomes, by_shape) - (_value(metric, minus[seed], by_shape) if minus else 0.0)
        for seed, outcomes in attempts.items()
    }
    by_seed = {seed: value for seed, value in values.items() if not math.isnan(value)}
    if not by_seed:
        return None
    interval = None
    if isinstance(metric, Ratio) and len(attempts) > 1:
        others = None if minus is None else [minus[seed] for seed in attempts]
        interval = metric_interval(metric, list(attempts.values()), others, by_shape=by_shape)
    return Estimate(by_seed, interval)


def _value(metric: Metric, outcomes: Sequence[TaskOutcome], by_shape: bool) -> float:
    tried = evaluated(outcomes)
    if by_shape:
        mean = macro_mean([(one.shape, one.success) for one in tried])
        return math.nan if mean is None else mean
    return metric(attempted(outcomes)) if tried else math.nan


def _of_set(result: ArmResult, set_name: str) -> list[TaskOutcome]:
    return [one for one in result.outcomes if one.group == set_name]
