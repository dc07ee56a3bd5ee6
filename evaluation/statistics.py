"""Computes intervals of success rates and of their differences from counts, and p values of differences by seed."""

from __future__ import annotations

from collections.abc import Sequence
from math import atan, cos, pi, sin, sqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Counts: TypeAlias = NDArray[np.int64]
"""Tasks by seed (rows) and cluster (columns)."""

_REPLICATES_AT_ONCE = 500
_DECIMALS = 12  # a difference of two rates that are equal may be a rounding error away from zero


def wilson_interval(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson score interval of a success rate, both ends in [0, 1]; (0, 1) when nothing was tried.

    It treats tasks as independent; slices of one BFCL path are not, so it is a lower bound on the uncertainty.
    Raises ValueError unless 0 <= successes <= n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return 0.0, 1.0
    rate = successes / n
    centre = rate + z * z / (2 * n)
    spread = z * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


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
    mean, error = _mean_and_error(values)
    half = t_quantile((1 + level) / 2, n - 1) * error if error else 0.0
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
    mean, error = _mean_and_error(exact)
    if len(set(exact)) == 1:
        return 0.0 if mean else 1.0
    return max(0.0, 2 * (1 - _t_below(abs(mean) / error, n - 1)))


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of two values or more, and its standard error."""
    n = len(values)
    mean = sum(values) / n
    return mean, sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)


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


def bootstrap_interval(
    successes: Counts,
    tasks: Counts,
    minus: tuple[Counts, Counts] | None = None,
    *,
    crossed: bool = False,
    replicates: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float] | None:
    """Return the percentile interval of the mean success rate over seeds by a hierarchical bootstrap; None for one.

    ``successes`` and ``tasks`` are by seed (rows) and cluster (columns). Seeds are drawn with replacement, and inside
    each drawn seed its clusters; a seed's rate is its drawn successes over its drawn tasks. With ``minus``, successes
    and tasks of another arm in the same rows and columns, it is the interval of the paired difference: both arms
    are given the same draws. ``crossed`` draws the clusters once a replicate, the same for every seed. Clusters are
    the same tasks in each seed, so this is the wider one where clusters differ by more than chance: it covers other
    tasks, while the nested draw, whose cluster noise averages out over seeds, understates that. Equal arguments give
    equal intervals. Raises ValueError for shapes that differ and a seed without tasks.
    """
    sides = [(successes, tasks)] if minus is None else [(successes, tasks), minus]
    if len({array.shape for side in sides for array in side}) != 1 or successes.ndim != 2:
        raise ValueError("counts must be by seed and cluster, of one shape")
    if any((side[1].sum(axis=1) == 0).any() for side in sides):
        raise ValueError("a seed has no task")
    seeds, clusters = successes.shape
    if seeds < 2:
        return None
    rng = np.random.default_rng(seed)
    means = []
    for begin in range(0, replicates, _REPLICATES_AT_ONCE):
        size = min(_REPLICATES_AT_ONCE, replicates - begin)
        rows = rng.integers(seeds, size=(size, seeds))
        shape = (size, 1, clusters) if crossed else (size, seeds, clusters)
        columns = rng.integers(clusters, size=shape)
        rates = [_drawn_rates(*side, rows, columns) for side in sides]
        means.append((rates[0] if minus is None else rates[0] - rates[1]).mean(axis=1))
    # A replicate whose clusters hold no evaluated task of some seed has no rate: it is left out.
    low, high = np.nanquantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def shared_interval(
    successes: Counts,
    tasks: Counts,
    clusters: NDArray[np.int64],
    functions: NDArray[np.int64],
    minus: tuple[Counts, Counts] | None = None,
    *,
    shapes: NDArray[np.int64] | None = None,
    replicates: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float] | None:
    """Return the percentile interval of a success rate by a bootstrap that resamples all that tasks share.

    ``successes`` and ``tasks`` are by seed (rows) and task (columns); ``clusters`` and ``functions`` number the start
    state and the function that each column belongs to. A replicate draws seeds (where there are several), start states
    and functions with replacement, and counts a task as often as its start state and its function were drawn, the one
    times the other (the pigeonhole bootstrap: Owen, Annals of Applied Statistics 1, 2007; it errs on the wide side).
    With ``minus``, successes and tasks of another arm in the same rows and columns, it is the interval of the paired
    difference. With ``shapes``, which number each column's call shape from 0, it is that of the mean over shapes: each
    task has the weight 1 / (tasks of its shape). Equal arguments give equal intervals; None where there is one start
    state and one function. Raises ValueError for arrays of other sizes and a row without tasks.
    """
    sides = [(successes, tasks)] if minus is None else [(successes, tasks), minus]
    if len({array.shape for side in sides for array in side}) != 1 or successes.ndim != 2:
        raise ValueError("counts must be by seed and task, of one shape")
    if any((side[1].sum(axis=1) == 0).any() for side in sides):
        raise ValueError("a seed has no task")
    each = [np.ones(tried.shape) if shapes is None else _of_shapes(tried, shapes) for _, tried in sides]
    seeds = len(successes)
    levels = int(clusters.max()) + 1, int(functions.max()) + 1
    if max(levels) < 2:
        return None
    rng = np.random.default_rng(seed)
    means = []
    for begin in range(0, replicates, _REPLICATES_AT_ONCE):
        size = min(_REPLICATES_AT_ONCE, replicates - begin)
        rows = _multiplicities(rng, size, seeds) / seeds
        begins, calls = (_multiplicities(rng, size, count) for count in levels)
        weights = begins[:, clusters] * calls[:, functions]
        with np.errstate(invalid="ignore"):
            rates = [
                weights @ (solved * own).T / (weights @ (tried * own).T)
                for (solved, tried), own in zip(sides, each, strict=True)
            ]
            drawn = rates[0] if minus is None else rates[0] - rates[1]
            means.append(np.where(rows > 0, rows * drawn, 0.0).sum(axis=1))
    low, high = np.nanquantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _of_shapes(tasks: Counts, shapes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the weight of each task, (seeds, tasks), with which a mean over tasks is the mean over call shapes."""
    sizes = np.stack([np.bincount(shapes, weights=row) for row in tasks])[:, shapes]
    weights: NDArray[np.float64] = 1 / np.maximum(sizes, 1)
    return weights


def _multiplicities(rng: np.random.Generator, size: int, count: int) -> NDArray[np.float64]:
    """Count how often each of ``count`` things is drawn in ``count`` draws with replacement, ``size`` times."""
    places = rng.integers(count, size=(size, count)) + np.arange(size)[:, None] * count
    return np.bincount(places.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)


def _drawn_rates(
    successes: Counts, tasks: Counts, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return rates by replicate and drawn seed."""
    drawn = tasks[rows[:, :, None], columns].sum(axis=2)
    with np.errstate(invalid="ignore"):
        rates: NDArray[np.float64] = successes[rows[:, :, None], columns].sum(axis=2) / drawn
    return rates
