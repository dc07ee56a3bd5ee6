"""Computes intervals of rates, of their differences and of other means, and p values of differences by seed.

What tasks share beyond their start state are functions: a policy mostly solves all or none of the tasks that call one,
so the functions that many tasks call dominate a mean over tasks. A task's *call shape* is the sequence of its
reference's calls without values; the macro mean gives each shape the same weight. For intervals, a task belongs to the
rarest function of its reference (ours: it is mostly the one that decides).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from math import atan, cos, pi, sin, sqrt
from statistics import fmean, stdev
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Counts: TypeAlias = NDArray[np.int64] | NDArray[np.float64]
"""Successes or attempts by seed (rows) and task (columns); or the two sums of another share of the attempts."""

Shape = tuple[str, ...]

DRAWS = 2000
"""Draws of a bootstrap interval (ours)."""

_ROUNDING = 1e-9  # a whole number of clusters may be a rounding error below it
_DECIMALS = 12  # a difference of two rates that are equal may be a rounding error away from zero


def wilson_interval(successes: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson score interval of a success rate, both ends in [0, 1]; (0, 1) when nothing was tried.

    It treats tasks as independent; slices of one BFCL path are not, so it is a lower bound on the uncertainty.
    Raises ValueError unless 0 <= successes <= n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    return _wilson(successes / n, z * z / n) if n else (0.0, 1.0)


def _wilson(rate: float, ratio: float) -> tuple[float, float]:
    """Return Wilson's interval of a rate, where ``ratio`` is the squared quantile over the number of tasks."""
    middle, half = rate + ratio / 2, sqrt(ratio * rate * (1 - rate) + ratio**2 / 4)
    return max(0.0, (middle - half) / (1 + ratio)), min(1.0, (middle + half) / (1 + ratio))


def t_quantile(p: float, degrees: int) -> float:
    """Return the ``p`` quantile of Student's t with whole degrees of freedom, to 1e-9 (relative, for large ones).

    By bisection of the closed form of the distribution function (Abramowitz and Stegun 26.7.3 and 26.7.4).
    Raises ValueError unless 0 < p < 1 and degrees >= 1.
    """
    if not 0 < p < 1 or degrees < 1:
        raise ValueError(f"no quantile {p} of {degrees} degrees of freedom")
    if p < 0.5:
        return -t_quantile(1 - p, degrees)
    low, high = 0.0, 1.0
    while _t_below(high, degrees) < p:
        low, high = high, high * 2
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(middle, degrees) < p else (low, middle)
    return (low + high) / 2


def _t_below(t: float, degrees: int) -> float:
    """P(T <= t) for t >= 0."""
    angle = atan(t / sqrt(degrees))
    term = total = 1.0
    odd = degrees % 2
    for k in range(2 + odd, degrees - 1 + odd, 2):
        term *= (k - 1) / k * cos(angle) ** 2
        total += term
    if not odd:
        return 0.5 + sin(angle) * total / 2
    inner = sin(angle) * cos(angle) * total if degrees > 1 else 0.0
    return 0.5 + (angle + inner) / pi


def t_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Return the mean of ``values`` (one per seed) plus and minus Student's t times its standard error.

    None for fewer than two values. The tasks are fixed: the interval covers other seeds, not other tasks.
    """
    n = len(values)
    if n < 2:
        return None
    mean, half = fmean(values), t_quantile((1 + level) / 2, n - 1) * stdev(values) / sqrt(n)
    return mean - half, mean + half


def t_test(values: Sequence[float]) -> float | None:
    """Return the two-sided p value of Student's t test that the mean of ``values`` (one per seed) is zero.

    None for fewer than two values. Paired differences make it the paired t test. The tasks are fixed: as for
    ``t_interval``, it says how chance differences between seeds are, and nothing of other tasks. Equal values that are
    not zero have p = 0, and all zero p = 1.
    """
    n = len(values)
    if n < 2:
        return None
    exact = [round(value, _DECIMALS) for value in values]
    if len(set(exact)) == 1:
        return 0.0 if exact[0] else 1.0
    return max(0.0, 2 * (1 - _t_below(abs(fmean(exact)) / stdev(exact) * sqrt(n), n - 1)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p values adjusted for their number by Holm's step-down method, in the same order.

    The smallest is multiplied by the number of all, the next by one less, and so on; none is less than the one before,
    or more than 1. None is a hypothesis that was not tested yet: it counts as one with p = 1. Below 0.05, the chance
    that any true null hypothesis is among them is at most 0.05, however the tests depend on each other (Holm,
    Scandinavian Journal of Statistics 6, 1979). Raises ValueError for one outside of [0, 1].
    """
    if any(p is not None and not 0 <= p <= 1 for p in p_values):
        raise ValueError("a p value is outside of [0, 1]")
    adjusted: list[float | None] = [None] * len(p_values)
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    least = 0.0
    for rank, (p, place) in enumerate(known):
        least = max(least, min(1.0, (len(p_values) - rank) * p))
        adjusted[place] = least
    return adjusted


def shared_interval(
    successes: Counts,
    tasks: Counts,
    clusters: NDArray[np.int64],
    functions: NDArray[np.int64],
    minus: tuple[Counts, Counts] | None = None,
    *,
    shapes: NDArray[np.int64] | None = None,
    level: float = 0.95,
) -> tuple[float, float] | None:
    """Return an interval of the mean success rate over seeds, for other tasks and, from two seeds on, for other seeds.

    ``successes`` and ``tasks`` are by seed (rows) and task (columns); ``clusters`` and ``functions`` number the start
    state and the function that each column belongs to. With ``minus``, successes and tasks of another arm in the same
    rows and columns, it is the interval of the paired difference, within [-1, 1]. With ``shapes``, which number each
    column's call shape from 0, it is that of the mean over shapes: each task has the weight 1 / (tasks of its shape).
    None where there is one start state and one function. Raises ValueError for arrays of other sizes and a row without
    tasks.

    The half width is the root of the sum of the squares of two (Zou and Donner, Statistics in Medicine 27, 2008):

    - tasks: the standard error that is robust to what tasks of one start state or of one function share (Cameron,
      Gelbach and Miller, Journal of Business & Economic Statistics 29, 2011), times Student's t. Its degrees of freedom
      are one less than the effective number of start states or functions, the smaller one, in which a large one counts
      for more (Kish; Carter, Schnepel and Steigerwald, Review of Economics and Statistics 99, 2017).
    - seeds: the standard error of the mean over seeds, times Student's t for their number less one.

    A rate has Wilson's interval with the number of independent tasks that gives this half width, at most the effective
    number of its tasks, so that it is within [0, 1] and not a point where all or none succeed (Korn and Graubard,
    Survey Methodology 24, 1998). The choice is ours, by simulation: ``benchmarks/intervals.md``.
    """
    sides = [(successes, tasks)] if minus is None else [(successes, tasks), minus]
    if len({array.shape for side in sides for array in side}) != 1 or successes.ndim != 2:
        raise ValueError("counts must be by seed and task, of one shape")
    if any((side[1].sum(axis=1) == 0).any() for side in sides):
        raise ValueError("a seed has no task")
    if max(int(clusters.max()), int(functions.max())) < 1:
        return None
    weighed = [_weighed(*side, shapes) for side in sides]
    rates, parts = weighed[0][0], weighed[0][1]
    if minus is not None:
        rates, parts = rates - weighed[1][0], parts - weighed[1][1]
    mean = float(rates.mean())
    weights = weighed[0][2].mean(axis=0)
    kinds = [numbers for numbers in (clusters, functions) if numbers.max() > 0]
    fewest = min(_effective(weights, numbers) for numbers in kinds)
    degrees = max(1, int(fewest + _ROUNDING) - 1)
    t = t_quantile((1 + level) / 2, degrees)
    square = t**2 * _task_variance(parts.mean(axis=0), clusters, functions)
    if len(rates) > 1:
        square += t_quantile((1 + level) / 2, len(rates) - 1) ** 2 * float(rates.var(ddof=1)) / len(rates)
    if minus is not None:
        half = sqrt(square)
        return max(-1.0, mean - half), min(1.0, mean + half)
    mean = min(1.0, max(0.0, mean))  # a rate may be a rounding error outside
    spread = mean * (1 - mean)
    return _wilson(mean, max(square / spread if spread else 0.0, t**2 * float((weights**2).sum())))


def _weighed(
    successes: Counts, tasks: Counts, shapes: NDArray[np.int64] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return by seed the rate, what each task adds to its error, and each task's weight; both (seeds, tasks)."""
    own = tasks.astype(np.float64)
    if shapes is not None:  # the mean over tasks is then the mean over call shapes
        sizes = np.stack([np.bincount(shapes, weights=row) for row in tasks])[:, shapes]
        own = tasks * (1 / np.maximum(sizes, 1))
    weights = own / own.sum(axis=1, keepdims=True)
    solved = weights * successes / np.maximum(tasks, 1)
    rates = solved.sum(axis=1)
    return rates, solved - weights * rates[:, None], weights


def _task_variance(parts: NDArray[np.float64], clusters: NDArray[np.int64], functions: NDArray[np.int64]) -> float:
    """Return the variance of a mean from what each task adds to its error, robust to both kinds of clusters.

    Start states plus functions less their pairs, and not less than that of either alone.
    """
    _, pairs = np.unique(np.stack([clusters, functions]), axis=1, return_inverse=True)
    begins, calls, both = (_one_way(parts, numbers.ravel()) for numbers in (clusters, functions, pairs))
    return max(begins + calls - both, begins, calls)


def _one_way(parts: NDArray[np.float64], numbers: NDArray[np.int64]) -> float:
    groups = int(numbers.max()) + 1
    sums = np.bincount(numbers, weights=parts, minlength=groups)
    return float((sums**2).sum()) * groups / (groups - 1) if groups > 1 else 0.0


def _effective(weights: NDArray[np.float64], numbers: NDArray[np.int64]) -> float:
    """Return the number of equal clusters that are worth these unequal ones; the weights sum to 1."""
    return 1 / float((np.bincount(numbers, weights=weights) ** 2).sum())


def resampled_interval(
    sums: Counts, counts: Counts, clusters: NDArray[np.int64], level: float = 0.95
) -> tuple[float, float] | None:
    """Return a bootstrap interval of ``sum(sums) / sum(counts)``, a mean that is not a rate, for other clusters.

    ``sums`` and ``counts`` are by task; ``clusters`` number the start states from 0, which are drawn with replacement.
    It is the percentile interval of ``DRAWS`` draws, and equal for equal arguments. None for one cluster, and without a
    count.
    """
    groups = int(clusters.max(initial=0)) + 1
    totals, sizes = (np.bincount(clusters, weights=values, minlength=groups) for values in (sums, counts))
    if groups < 2 or not sizes.any():
        return None
    drawn = np.random.default_rng(0).multinomial(groups, np.full(groups, 1 / groups), size=DRAWS)
    counted = drawn @ sizes
    means = (drawn @ totals)[counted > 0] / counted[counted > 0]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def macro_mean(attempts: Sequence[tuple[Shape, bool]]) -> float | None:
    """Return the mean over call shapes of the share solved, in [0, 1]; None without a known shape."""
    found: dict[Shape, list[bool]] = {}
    for shape, success in attempts:
        found.setdefault(shape, []).append(success)
    return fmean(fmean(one) for one in found.values()) if any(found) else None


def rarest_functions(shapes: Sequence[Shape]) -> list[str | int]:
    """Return for each task the function of its shape that fewest tasks call; its own number where none is known."""
    calling = Counter(name for shape in shapes for name in set(shape))
    return [min(shape, key=lambda name: (calling[name], name)) if shape else n for n, shape in enumerate(shapes)]


def numbered(labels: Sequence[Hashable]) -> NDArray[np.int64]:
    """Return equal labels as equal numbers from 0, in the order in which they first appear."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)
