"""Success of an arm on a panel, and its paired difference to another arm, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from environments.base import Record
from evaluation.arm_records import ArmOutcome, ArmResult
from evaluation.statistics import Counts, bootstrap_interval, t_interval

Interval = tuple[float, float]


class Comparison(Record):
    """A mean over ``seeds`` seeds, each printed in ``by_seed``, and its 95 % intervals, None for a single seed.

    ``interval``: hierarchical bootstrap, seeds outside and clusters inside. ``crossed_interval``: the same with one
    draw of clusters for all seeds. ``t_interval``: Student's t over seeds.
    """

    mean: float
    interval: Interval | None
    crossed_interval: Interval | None
    t_interval: Interval | None
    by_seed: dict[str, float]
    seeds: int


class Cell(Comparison):
    """An arm's success rate on one panel.

    ``tasks`` and ``clusters`` are the panel's; attempts with an infrastructure error are not judged. ``extra_calls``:
    mean calls beyond the reference's number of a solved task, None when none was solved. ``differences`` are paired
    differences to other arms of the recipe's ``compare``.
    """

    tasks: int
    clusters: int
    infrastructure_errors: int
    extra_calls: float | None
    difference_to_grpo: Comparison | None = None
    differences: dict[str, Comparison] = {}


def cell(results: Mapping[int, ArmResult], panel: str) -> Cell | None:
    """The success of one arm from its results by seed; None when it has none on the panel.

    "PANEL/KEY=VALUE" stands for the tasks of a panel with that label.
    """
    attempts = {seed: _of_panel(result, panel) for seed, result in sorted(results.items())}
    attempts = {seed: outcomes for seed, outcomes in attempts.items() if any(_judged(one) for one in outcomes)}
    if not attempts:
        return None
    everything = [one for outcomes in attempts.values() for one in outcomes]
    solved = [one for one in everything if one.success and _judged(one)]
    judged = {seed: [one for one in outcomes if _judged(one)] for seed, outcomes in attempts.items()}
    clusters = sorted({one.cluster for one in everything})
    counts = _counts(judged, clusters)
    rates = {seed: _rate(outcomes) for seed, outcomes in judged.items()}
    extra = [max(0, one.calls - one.reference_calls) for one in solved]
    return Cell(
        **_summary(rates, counts, None),
        tasks=len({one.task for one in everything}),
        clusters=len(clusters),
        infrastructure_errors=sum(not _judged(one) for one in everything),
        extra_calls=fmean(extra) if extra else None,
    )


def difference(arm: Mapping[int, ArmResult], other: Mapping[int, ArmResult], panel: str) -> Comparison | None:
    """``arm`` minus ``other`` by seed, over the tasks that both were judged on; None without a seed of both."""
    left: dict[int, list[ArmOutcome]] = {}
    right: dict[int, list[ArmOutcome]] = {}
    for seed in sorted(set(arm) & set(other)):
        ours, theirs = _of_panel(arm[seed], panel), _of_panel(other[seed], panel)
        both = {one.task for one in ours if _judged(one)} & {one.task for one in theirs if _judged(one)}
        if both:
            left[seed] = [one for one in ours if one.task in both]
            right[seed] = [one for one in theirs if one.task in both]
    if not left:
        return None
    clusters = sorted({one.cluster for outcomes in left.values() for one in outcomes})
    by_seed = {seed: _rate(left[seed]) - _rate(right[seed]) for seed in left}
    return Comparison(**_summary(by_seed, _counts(left, clusters), _counts(right, clusters)))


def _summary(
    by_seed: Mapping[int, float], counts: tuple[Counts, Counts], minus: tuple[Counts, Counts] | None
) -> dict[str, object]:
    values = list(by_seed.values())
    return {
        "mean": fmean(values),
        "interval": bootstrap_interval(*counts, minus),
        "crossed_interval": bootstrap_interval(*counts, minus, crossed=True),
        "t_interval": t_interval(values),
        "by_seed": {str(seed): value for seed, value in by_seed.items()},
        "seeds": len(values),
    }


def _counts(attempts: Mapping[int, Sequence[ArmOutcome]], clusters: Sequence[str]) -> tuple[Counts, Counts]:
    """Successes and tasks by seed and cluster."""
    columns = {name: column for column, name in enumerate(clusters)}
    successes = np.zeros((len(attempts), len(clusters)), dtype=np.int64)
    tasks = np.zeros_like(successes)
    for row, outcomes in enumerate(attempts.values()):
        for one in outcomes:
            tasks[row, columns[one.cluster]] += 1
            successes[row, columns[one.cluster]] += one.success
    return successes, tasks


def _of_panel(result: ArmResult, panel: str) -> list[ArmOutcome]:
    name, _, stratum = panel.partition("/")
    return [one for one in result.outcomes if one.panel == name and (not stratum or stratum in one.strata)]


def _judged(outcome: ArmOutcome) -> bool:
    return outcome.infrastructure_error is None


def _rate(outcomes: Sequence[ArmOutcome]) -> float:
    return sum(one.success for one in outcomes) / len(outcomes)
