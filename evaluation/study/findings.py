"""What came of a study: arms compared on an evaluation set, and its hypotheses.

A hypothesis is tested on the study's main score: that of each mode's first evaluation set, the mean over call shapes
where they are known, else success. The rule of a conclusion is ours:

- **p** is that of the paired t test over seeds, two-sided. It covers seeds alone: how much the difference varies when
  an arm is trained again. It says nothing of other tasks.
- **Holm's p** corrects it for the number of hypotheses that were written down, run or not.
- **The interval** covers other seeds, start states and functions together, and so other tasks, but knows of no other
  hypotheses.

A difference is shown where both agree. Where a recipe states a margin of equality, equality is shown where the interval
is within it, which is stricter than two one-sided tests at 5 % (Schuirmann, Journal of Pharmacokinetics and
Biopharmaceutics 15, 1987).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

from environments.metrics import Metric, Ratio, success
from evaluation.outcomes import Interval, TaskOutcome, attempted, evaluated, metric_interval
from evaluation.statistics import holm, macro_mean, t_interval, t_test
from evaluation.study.recipe import Hypothesis
from evaluation.study.study import ArmResult

Conclusion = Literal["shown", "difference shown", "opposite shown", "equality shown", "not shown", "not run yet"]
Attempts = Mapping[int, Sequence[TaskOutcome]]

LEVEL = 0.05
"""Holm's p below which a difference is shown, where the interval agrees."""


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


Results = Mapping[int, ArmResult]
"""The results of one arm by seed."""


def cell(
    results: Results,
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
    arm: Results, other: Results, set_name: str, metrics: Mapping[str, Metric] | None = None
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


def _of_set(result: ArmResult, set_name: str) -> list[TaskOutcome]:
    return [one for one in result.outcomes if one.group == set_name]


def _compared(attempts: Attempts, metrics: Mapping[str, Metric], minus: Attempts | None = None) -> Comparison:
    """Return what the attempts are estimates of; a metric that is not defined for any seed is left out."""

    def value(metric: Metric, outcomes: Sequence[TaskOutcome], by_shape: bool) -> float:
        tried = evaluated(outcomes)
        if by_shape:
            mean = macro_mean([(one.shape, one.success) for one in tried])
            return math.nan if mean is None else mean
        return metric(attempted(outcomes)) if tried else math.nan

    def estimate(metric: Metric, by_shape: bool = False) -> Estimate | None:
        values = {
            seed: value(metric, outcomes, by_shape) - (value(metric, minus[seed], by_shape) if minus else 0.0)
            for seed, outcomes in attempts.items()
        }
        by_seed = {seed: one for seed, one in values.items() if not math.isnan(one)}
        interval = None
        if by_seed and isinstance(metric, Ratio) and len(attempts) > 1:
            others = None if minus is None else [minus[seed] for seed in attempts]
            interval = metric_interval(metric, list(attempts.values()), others, by_shape=by_shape)
        return Estimate(by_seed, interval) if by_seed else None

    known = any(one.shape for outcomes in attempts.values() for one in outcomes)
    rate = estimate(success)
    assert rate is not None, "each seed has an attempt that was evaluated"
    found = {name: estimate(metric) for name, metric in metrics.items()}
    return Comparison(
        success=rate,
        macro=estimate(success, by_shape=True) if known else None,
        metrics={name: one for name, one in found.items() if one is not None},
    )


class HypothesisFinding(NamedTuple):
    """A hypothesis and what came of it.

    ``score`` is the paired difference over the seeds of both arms, of ``planned`` ones; None without any.
    ``functions_drawn`` is False where its interval does not cover other functions, because call shapes are not known.
    ``p`` is that of the paired t test over seeds, ``holm`` the same corrected for the number of all hypotheses; None
    for fewer than two seeds.
    """

    stated: Hypothesis
    score: Estimate | None
    planned: int
    functions_drawn: bool
    p: float | None
    holm: float | None

    @property
    def seeds(self) -> int:
        """The number of paired seeds."""
        return 0 if self.score is None else len(self.score.by_seed)

    @property
    def verdict(self) -> Conclusion:
        """The conclusion; none before all seeds are there, as it would invite to stop at a good one."""
        if self.score is None or self.seeds < self.planned:
            return "not run yet"
        margin = None if self.stated.margin is None else self.stated.margin / 100
        return conclusion(self.stated.expected / 100, self.score.mean, self.score.interval, self.holm, margin)


class Findings(NamedTuple):
    """All hypotheses of a study with what came of them on the evaluation set ``set_name``.

    ``by_shape``: the score is the mean over call shapes, else success. ``other_results`` and ``other_openings`` count
    the arms and seeds that were scored, and the accesses to test sets, by another text of the recipe than today's; what
    is written in it now may have been written after them.
    """

    set_name: str
    by_shape: bool
    findings: tuple[HypothesisFinding, ...]
    other_results: int
    other_openings: int


def findings_of(
    hypotheses: Sequence[Hypothesis],
    differences: Sequence[Comparison | None],
    planned: Sequence[int],
    *,
    by_shape: bool = True,
) -> tuple[HypothesisFinding, ...]:
    """Return what came of each hypothesis.

    ``differences`` has the paired difference of each, None without a seed of both arms, and ``planned`` its number of
    seeds in the recipe. ``by_shape``: the score is the mean over call shapes where they are known, else success.
    """
    scores = [None if one is None else one.macro if one.macro and by_shape else one.success for one in differences]
    p_values = [None if one is None else t_test(list(one.by_seed.values())) for one in scores]
    return tuple(
        HypothesisFinding(stated, score, number, versus is not None and versus.macro is not None, p, corrected)
        for stated, score, number, versus, p, corrected in zip(
            hypotheses, scores, planned, differences, p_values, holm(p_values), strict=True
        )
    )


def conclusion(
    expected: float,
    found: float,
    interval: Interval | None,
    corrected: float | None,
    margin: float | None = None,
) -> Conclusion:
    """Return the conclusion on a difference whose seeds are all there.

    It is shown where Holm's p (``corrected``) is below 0.05 and the interval excludes zero on the side of the
    difference, which is the expected one; on the other side the opposite is shown, and where none was expected a
    difference. With a ``margin`` equality is shown where the whole interval is within it, whatever else it excludes.
    """
    if margin is not None and interval is not None and -margin < interval[0] and interval[1] < margin:
        return "equality shown"
    if corrected is None or corrected >= LEVEL or interval is None:
        return "not shown"
    low, high = interval
    if not (low > 0 and found > 0) and not (high < 0 and found < 0):
        return "not shown"
    if expected == 0:
        return "difference shown"
    return "shown" if found * expected > 0 else "opposite shown"
