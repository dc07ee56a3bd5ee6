"""Intervals against published values, in simulations with a known truth, and at their degenerate ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.statistics import (
    bootstrap_interval,
    holm,
    shared_interval,
    t_interval,
    t_quantile,
    t_test,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_values(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_nothing_tried_says_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "n"), [(-1, 3), (4, 3)])
def test_impossible_counts_are_refused(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="successes of"):
        wilson_interval(successes, n)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_interval_holds_the_rate_and_mirrors(counts: tuple[int, int]) -> None:
    successes, n = counts
    low, high = wilson_interval(successes, n)
    assert 0.0 <= low <= successes / n + 1e-12
    assert successes / n - 1e-12 <= high <= 1.0
    mirrored = wilson_interval(n - successes, n)
    assert mirrored == (pytest.approx(1 - high), pytest.approx(1 - low))


@pytest.mark.parametrize(
    ("p", "degrees", "quantile"),
    [  # tables of Student's t
        (0.975, 1, 12.7062),
        (0.975, 2, 4.30265),
        (0.975, 3, 3.18245),
        (0.975, 4, 2.77645),
        (0.975, 7, 2.36462),
        (0.975, 30, 2.04227),
        (0.95, 5, 2.01505),
        (0.995, 9, 3.24984),
        (0.9, 120, 1.28865),
        (0.025, 4, -2.77645),
        (0.5, 6, 0.0),
    ],
)
def test_quantiles_of_t(p: float, degrees: int, quantile: float) -> None:
    assert t_quantile(p, degrees) == pytest.approx(quantile, abs=6e-5)


@pytest.mark.parametrize(("p", "degrees"), [(0.0, 3), (1.0, 3), (0.5, 0)])
def test_quantiles_that_are_none(p: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="quantile"):
        t_quantile(p, degrees)


@given(st.floats(0.51, 0.999), st.integers(1, 60))
def test_t_is_wider_than_the_next_and_mirrors(p: float, degrees: int) -> None:
    assert t_quantile(p, degrees) > t_quantile(p, degrees + 1) > 0
    assert t_quantile(1 - p, degrees) == pytest.approx(-t_quantile(p, degrees), rel=1e-6)


def test_t_interval_by_hand() -> None:
    # mean 2, standard deviation 1, standard error 1 / sqrt(3), quantile 4.30265
    assert t_interval([1.0, 2.0, 3.0]) == (pytest.approx(-0.48414, abs=1e-4), pytest.approx(4.48414, abs=1e-4))


@pytest.mark.parametrize(
    ("values", "p"),
    [
        # Student 1908: additional hours of sleep, one drug less the other; t = 4.0621 with 9 degrees of freedom
        ([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4], 0.002833),
        ([1.0, 2.0], 0.204833),  # t = 3, one degree: 1 - 2 atan(t) / pi
        ([-1.0, -2.0], 0.204833),
        ([1.0, 2.0, 3.0], 0.074180),  # t = 3.4641, two degrees: 1 - t / sqrt(2 + t^2)
        ([-1.0, 1.0, -2.0, 2.0], 1.0),
        ([0.0, 0.0, 0.0], 1.0),
        ([0.25, 0.25, 0.25], 0.0),
        ([0.1 + 0.2 - 0.3, 0.1 + 0.2 - 0.3], 1.0),  # zero but for rounding
        ([0.4], None),
        ([], None),
    ],
)
def test_p_values_of_t(values: list[float], p: float | None) -> None:
    assert t_test(values) == (None if p is None else pytest.approx(p, abs=6e-7))


@given(st.lists(st.integers(-20, 20).map(lambda n: n / 20), min_size=2, max_size=8).filter(lambda v: len(set(v)) > 1))
def test_p_is_below_0_05_where_the_interval_leaves_zero_out(values: list[float]) -> None:
    low, high = t_interval(values)
    assert (t_test(values) < 0.05) == (low > 0 or high < 0)


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # a common worked example
        ([0.01, 0.02, 0.03, 0.04, 0.05], [0.05, 0.08, 0.09, 0.09, 0.09]),
        ([0.6, 0.7], [1.0, 1.0]),
        ([0.02], [0.02]),
        ([0.02, None, None, 0.01], [0.06, None, None, 0.04]),  # what was not tested counts
        ([None, None], [None, None]),
        ([], []),
    ],
)
def test_p_values_are_corrected_for_their_number(p_values: list[float | None], adjusted: list[float | None]) -> None:
    assert holm(p_values) == [None if p is None else pytest.approx(p) for p in adjusted]


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_what_is_no_p_value_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="outside"):
        holm([0.5, p])


def test_one_seed_has_no_interval_and_equal_ones_an_empty_one() -> None:
    assert t_interval([0.4]) is None
    assert t_interval([0.4, 0.4, 0.4]) == (pytest.approx(0.4), pytest.approx(0.4))
    single = np.array([[3, 1]]), np.array([[4, 4]])
    assert bootstrap_interval(*single) is None
    assert bootstrap_interval(*single, crossed=True) is None


def counts(rng: np.random.Generator, rates: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.binomial(size, rates), np.full(rates.shape, size)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(1, 8), st.integers(0, 2**31), st.booleans())
def test_bootstrap_holds_its_mean_and_is_the_same_twice(seeds: int, clusters: int, draw: int, crossed: bool) -> None:
    rng = np.random.default_rng(draw)
    successes, tasks = counts(rng, rng.uniform(size=(seeds, clusters)), 5)
    found = bootstrap_interval(successes, tasks, crossed=crossed, replicates=600)
    assert found == bootstrap_interval(successes, tasks, crossed=crossed, replicates=600)
    assert found is not None
    rates = successes.sum(axis=1) / tasks.sum(axis=1)
    assert 0.0 <= found[0] <= rates.mean() + 1e-9
    assert rates.mean() - 1e-9 <= found[1] <= 1.0
    assert bootstrap_interval(successes, tasks, (successes, tasks), crossed=crossed, replicates=600) == (0.0, 0.0)


@given(st.integers(2, 5), st.integers(2, 6), st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_a_paired_difference_mirrors_when_the_arms_change_places(seeds: int, clusters: int, draw: int) -> None:
    rng = np.random.default_rng(draw)
    left, right = (counts(rng, rng.uniform(size=(seeds, clusters)), 4) for _ in range(2))
    found = bootstrap_interval(*left, right, replicates=400)
    other = bootstrap_interval(*right, left, replicates=400)
    assert found is not None
    assert other == (pytest.approx(-found[1]), pytest.approx(-found[0]))


def test_all_solved_and_none_solved_are_points() -> None:
    tasks = np.full((3, 4), 2)
    assert bootstrap_interval(tasks, tasks) == (1.0, 1.0)
    assert bootstrap_interval(0 * tasks, tasks) == (0.0, 0.0)


def test_counts_that_do_not_fit_are_refused() -> None:
    tasks = np.ones((2, 3), dtype=int)
    with pytest.raises(ValueError, match="one shape"):
        bootstrap_interval(tasks, tasks[:, :2])
    with pytest.raises(ValueError, match="no task"):
        bootstrap_interval(tasks, np.array([[1, 1, 1], [0, 0, 0]]))


def test_a_cluster_that_one_seed_lacks_is_no_failure() -> None:
    tasks = np.array([[2, 2], [2, 0], [2, 2]])
    assert bootstrap_interval(tasks, tasks) == (1.0, 1.0)


def coverage(shared_clusters: bool, crossed: bool) -> float:
    """How often the interval of a paired difference holds the truth, which is 0.1, in 150 simulated studies."""
    rng, held, seeds, clusters = np.random.default_rng(7), 0, 8, 24
    for _ in range(150):
        # Each arm's rate varies by seed; the difference varies by cluster, alike in all seeds or anew in each.
        by_cluster = rng.normal(0.0, 0.25, size=(1 if shared_clusters else seeds, clusters))
        base = 0.4 + rng.normal(0.0, 0.05, size=(seeds, 1))
        ours = np.clip(base + 0.1 + by_cluster, 0.0, 1.0)
        theirs = np.broadcast_to(base, ours.shape)
        interval = bootstrap_interval(*counts(rng, ours, 8), counts(rng, theirs, 8), crossed=crossed, replicates=400)
        assert interval is not None
        held += interval[0] <= 0.1 <= interval[1]
    return held / 150


def test_coverage_where_clusters_are_drawn_in_each_seed() -> None:
    assert 0.85 <= coverage(shared_clusters=False, crossed=False) <= 1.0


def test_only_the_crossed_interval_covers_other_clusters_when_seeds_share_them() -> None:
    nested, crossed = (coverage(shared_clusters=True, crossed=how) for how in (False, True))
    assert nested < 0.8
    assert crossed > 0.88


def test_what_tasks_share_widens_the_interval() -> None:
    """Twenty functions of ten tasks each, solved wholly or not at all: twenty draws, not two hundred."""
    functions = np.repeat(np.arange(20), 10)
    successes = (functions < 10).astype(np.int64)[None]
    tasks, starts = np.ones_like(successes), np.arange(200)
    low, high = shared_interval(successes, tasks, starts, functions)
    assert high - low == pytest.approx(2 * 1.96 * (0.25 / 20) ** 0.5, abs=0.08)
    apart = shared_interval(successes, tasks, starts, np.arange(200))
    assert high - low > 1.9 * (apart[1] - apart[0])
    assert shared_interval(successes, tasks, starts, functions) == (low, high)


def test_one_function_can_carry_a_difference() -> None:
    """Equal differences by task: the interval that resamples functions says that a single one of them decides."""
    rng = np.random.default_rng(0)
    functions = np.arange(300) % 30
    base = rng.integers(2, size=(5, 300))
    carried = np.where(functions == 0, 1, base)
    tasks, starts = np.ones_like(base), np.arange(300) // 6
    low, high = shared_interval(carried, tasks, starts, functions, (base, tasks))
    mean = (carried - base).mean()
    assert low <= 0.0 + 1e-9 < mean < high
    assert bootstrap_interval(carried, tasks, (base, tasks))[0] > 0.0


def test_the_interval_over_shapes_holds_their_mean() -> None:
    shapes = np.array([0, 0, 0, 0, 0, 0, 1, 2, 3, 4])
    successes = np.array([[1, 1, 1, 1, 1, 1, 0, 1, 0, 0]])
    starts = np.arange(10) % 3
    low, high = shared_interval(successes, np.ones_like(successes), starts, shapes, shapes=shapes)
    assert low <= 2 / 5 <= high


def test_one_start_state_and_one_function_tell_no_interval() -> None:
    one, zeros = np.ones((1, 3), dtype=np.int64), np.zeros(3, dtype=np.int64)
    assert shared_interval(one, one, zeros, zeros) is None
    with pytest.raises(ValueError, match="one shape"):
        shared_interval(one, one[:, :2], zeros, zeros)
    with pytest.raises(ValueError, match="no task"):
        shared_interval(one, 0 * one, zeros, zeros)


def test_the_interval_of_a_difference_over_shapes_resamples_seeds_too() -> None:
    rng = np.random.default_rng(1)
    shapes = np.arange(60) % 12
    starts = np.arange(60) // 5
    base = rng.integers(2, size=(4, 60))
    tasks = np.ones_like(base)
    same = shared_interval(base, tasks, starts, shapes, (base, tasks), shapes=shapes, replicates=400)
    assert same == (0.0, 0.0)
    better = np.where(shapes < 6, 1, base)
    low, high = shared_interval(better, tasks, starts, shapes, (base, tasks), shapes=shapes, replicates=2000)
    by_shape = [(better[:, shapes == one].mean(axis=1) - base[:, shapes == one].mean(axis=1)) for one in range(12)]
    assert 0.0 < low < np.mean(by_shape) < high
    # Seeds that differ make the interval wider.
    spread = base.copy()
    spread[0], spread[1] = 1, 0
    wide = shared_interval(spread, tasks, starts, shapes, (base, tasks), shapes=shapes, replicates=2000)
    one = shared_interval(spread[:1], tasks[:1], starts, shapes, (base[:1], tasks[:1]), shapes=shapes, replicates=2000)
    assert wide[1] - wide[0] > one[1] - one[0]
