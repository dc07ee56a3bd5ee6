"""Intervals against published values, in simulations with a known truth, and at their degenerate ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.statistics import (
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


Drawn = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@st.composite
def studies(draw: st.DrawFn) -> Drawn:
    """Two arms' successes by seed and task, start states and functions, some of them with one level or one seed."""
    seeds, tasks = draw(st.integers(1, 4)), draw(st.integers(2, 20))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    rate = draw(st.sampled_from([0.0, 0.05, 0.5, 1.0]))
    starts, functions = (rng.integers(draw(st.integers(1, 6)), size=tasks) for _ in range(2))
    first, second = (rng.binomial(1, rate, size=(seeds, tasks)) for _ in range(2))
    return first, second, *(np.unique(numbers, return_inverse=True)[1] for numbers in (starts, functions))


@settings(deadline=None)
@given(studies(), st.booleans())
def test_an_interval_holds_its_mean_inside_its_bounds(study: Drawn, by_shape: bool) -> None:
    first, second, starts, functions = study
    tasks = np.ones_like(first)
    shapes = functions if by_shape else None
    sizes = np.bincount(functions)[functions] if by_shape else np.ones(len(starts))
    weights = 1 / sizes / (1 / sizes).sum()
    rate = shared_interval(first, tasks, starts, functions, shapes=shapes)
    difference = shared_interval(first, tasks, starts, functions, (second, tasks), shapes=shapes)
    if starts.max() == functions.max() == 0:
        assert rate is difference is None
        return
    assert 0.0 <= rate[0] <= (first @ weights).mean() + 1e-9
    assert (first @ weights).mean() - 1e-9 <= rate[1] <= 1.0
    assert rate[1] - rate[0] > 0.0, "none or all of a few tasks is no certainty"
    mean = ((first - second) @ weights).mean()
    assert -1.0 <= difference[0] <= mean + 1e-9
    assert mean - 1e-9 <= difference[1] <= 1.0
    mirrored = shared_interval(second, tasks, starts, functions, (first, tasks), shapes=shapes)
    assert mirrored == (pytest.approx(-difference[1]), pytest.approx(-difference[0]))
    failed = shared_interval(1 - first, tasks, starts, functions, shapes=shapes)
    assert failed == (pytest.approx(1 - rate[1]), pytest.approx(1 - rate[0]))


@settings(deadline=None)
@given(studies())
def test_a_rate_is_never_surer_than_wilsons_and_a_difference_than_students(study: Drawn) -> None:
    first, second, starts, functions = study
    tasks = np.ones_like(first)
    if starts.max() == functions.max() == 0:
        return
    one = shared_interval(first[:1], tasks[:1], starts, functions)
    wilson = wilson_interval(int(first[0].sum()), len(starts))
    assert one[0] <= wilson[0] + 1e-6
    assert wilson[1] - 1e-6 <= one[1]
    low, high = shared_interval(first, tasks, starts, functions, (second, tasks))
    student = t_interval(list(map(float, (first - second).mean(axis=1))))
    if student is not None:
        assert low <= max(-1.0, student[0]) + 1e-9
        assert min(1.0, student[1]) - 1e-9 <= high


@settings(deadline=None)
@given(studies(), st.integers(0, 2**31))
def test_the_order_and_the_numbers_of_tasks_do_not_matter(study: Drawn, draw: int) -> None:
    first, second, starts, functions = study
    rng = np.random.default_rng(draw)
    order, names = rng.permutation(len(starts)), rng.permutation(starts.max() + 1)
    tasks = np.ones_like(first)
    one = shared_interval(first, tasks, starts, functions, (second, tasks), shapes=functions)
    moved = first[:, order], tasks, names[starts][order], functions[order], (second[:, order], tasks)
    other = shared_interval(*moved, shapes=functions[order])
    assert (one is None) == (other is None)
    if one is not None:
        assert other == (pytest.approx(one[0]), pytest.approx(one[1]))


def test_independent_tasks_of_one_seed_have_the_usual_standard_error() -> None:
    successes = (np.arange(200) % 2)[None]
    alone = np.arange(200)
    low, high = shared_interval(successes, np.ones_like(successes), alone, alone)
    t = t_quantile(0.975, 199)
    assert (low, high) == (pytest.approx(0.5 - t / (4 * (200 + t**2)) ** 0.5, abs=2e-3), pytest.approx(1 - low))


def test_the_two_way_error_of_a_small_table_is_worked_out_by_hand() -> None:
    successes = np.array([[1, 1, 1, 1, 1, 1, 0, 0, 0]])
    none = np.zeros_like(successes)
    tasks, starts, functions = np.ones_like(successes), np.arange(9) // 3, np.arange(9) % 3
    low, high = shared_interval(successes, tasks, starts, functions, (none, tasks))
    # Deviations are 1/3, 1/3 and -2/3; a start state's three sum to 1, 1 and -2, each a ninth: 6 / 81 * 3/2 = 1/9.
    # Functions sum to 0. Pairs: (6 * 1/9 + 3 * 4/9) / 81 * 9/8 = 1/36, which is less; so the start states' decides.
    assert low == pytest.approx(2 / 3 - t_quantile(0.975, 2) * (1 / 9) ** 0.5)
    assert high == 1.0


def test_what_tasks_share_widens_the_interval() -> None:
    """Twenty functions of ten tasks each, solved wholly or not at all: twenty draws, not two hundred."""
    functions = np.repeat(np.arange(20), 10)
    successes = (functions < 10).astype(np.int64)[None]
    tasks, starts = np.ones_like(successes), np.arange(200)
    low, high = shared_interval(successes, tasks, starts, functions)
    assert high - low == pytest.approx(2 * 2.09 * (0.25 / 20) ** 0.5, abs=0.05)
    apart = shared_interval(successes, tasks, starts, np.arange(200))
    assert high - low > 1.9 * (apart[1] - apart[0])


def test_one_function_can_carry_a_difference() -> None:
    """Equal differences by task, all of one function: the interval says that a single one of them decides."""
    rng = np.random.default_rng(0)
    functions = np.arange(300) % 30
    base = rng.integers(2, size=(5, 300))
    carried = np.where(functions == 0, 1, base)
    tasks, starts = np.ones_like(base), np.arange(300) // 6
    low, high = shared_interval(carried, tasks, starts, functions, (base, tasks))
    mean = (carried - base).mean()
    assert low <= 0.0 < mean < high
    assert shared_interval(carried, tasks, starts, np.arange(300), (base, tasks))[0] > 0.0


def test_the_interval_over_shapes_is_of_their_mean() -> None:
    shapes = np.r_[np.zeros(30, dtype=np.int64), np.arange(1, 31)]
    successes = np.r_[np.ones(30, dtype=np.int64), np.arange(30) % 2][None]
    tasks, none = np.ones_like(successes), np.zeros_like(successes)
    low, high = shared_interval(successes, tasks, np.arange(60), shapes, (none, tasks), shapes=shapes)
    assert (low + high) / 2 == pytest.approx((1 + 15) / 31)


def test_a_task_that_one_seed_lacks_counts_in_the_others() -> None:
    successes, tasks = np.array([[1, 1, 0, 0], [1, 1, 0, 0]]), np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    none, starts = np.zeros_like(successes), np.arange(4)
    low, high = shared_interval(successes, tasks, starts, starts, (none, tasks))
    assert low < (0.5 + 1.0) / 2 < high
    assert shared_interval(none, tasks, starts, starts, (none, tasks)) == (0.0, 0.0)


def test_one_start_state_and_one_function_tell_no_interval() -> None:
    one, zeros = np.ones((1, 3), dtype=np.int64), np.zeros(3, dtype=np.int64)
    assert shared_interval(one, one, zeros, zeros) is None
    with pytest.raises(ValueError, match="one shape"):
        shared_interval(one, one[:, :2], zeros, zeros)
    with pytest.raises(ValueError, match="no task"):
        shared_interval(one, 0 * one, zeros, zeros)


def test_seeds_that_differ_widen_a_difference() -> None:
    rng = np.random.default_rng(1)
    shapes, starts = np.arange(60) % 12, np.arange(60) // 5
    base = rng.integers(2, size=(4, 60))
    tasks = np.ones_like(base)
    assert shared_interval(base, tasks, starts, shapes, (base, tasks), shapes=shapes) == (0.0, 0.0)
    spread = base.copy()
    spread[0], spread[1] = 1, 0
    wide = shared_interval(spread, tasks, starts, shapes, (base, tasks), shapes=shapes)
    one = shared_interval(spread[:1], tasks[:1], starts, shapes, (base[:1], tasks[:1]), shapes=shapes)
    assert wide[1] - wide[0] > one[1] - one[0]
