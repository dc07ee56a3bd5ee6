"""Table 15: the two formulas against their definitions, and the paper's means and variances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.similarity import (
    Vectors,
    diversity_table,
    lengths_table,
    redundancy,
    relative_energy_distance,
    spread,
)

PAPER_SR = [22.57, 28.61, 16.16, 19.11, 26.14, 21.24, 17.91, 19.82, 22.78, 14.76, 22.22, 25.92]
PAPER_ED = [0.92, 3.11, 0.76, 0.24, 1.65, 0.79, 0.37, 0.50, 1.20, -0.11, 0.46, 1.49]


def drawn(seed: int, rows: int) -> Vectors:
    made: Vectors = np.random.default_rng(seed).normal(size=(rows, 4))
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return made


def defined_sr(rows: Vectors, k: int) -> float:
    total = 0.0
    for i, row in enumerate(rows):
        others = sorted((float(row @ other) for j, other in enumerate(rows) if j != i), reverse=True)
        total += sum(others[:k]) / k
    return total / len(rows)


def defined_ed(x: Vectors, y: Vectors) -> float:
    def mean(left: Vectors, right: Vectors) -> float:
        return sum(float(np.linalg.norm(a - b)) for a in left for b in right) / (len(left) * len(right))

    apart = [float(np.linalg.norm(a - b)) for i, a in enumerate(x) for j, b in enumerate(x) if i != j]
    return (2 * mean(x, y) - mean(x, x) - mean(y, y)) / (sum(apart) / len(apart))


@given(st.integers(0, 50), st.integers(2, 9), st.integers(1, 8))
def test_redundancy_is_as_defined(seed: int, rows: int, k: int) -> None:
    vectors = drawn(seed, rows)
    found = redundancy(vectors, k)
    if k >= rows:
        assert found is None
    else:
        assert found == pytest.approx(defined_sr(vectors, k))


@given(st.integers(0, 50), st.integers(2, 6), st.integers(1, 6))
def test_energy_distance_is_as_defined(seed: int, targets: int, rows: int) -> None:
    x, y = drawn(seed, targets), drawn(seed + 1000, rows)
    assert relative_energy_distance(x, y) == pytest.approx(defined_ed(x, y), abs=1e-7)


def test_equal_tasks_are_wholly_redundant_and_lie_on_their_targets() -> None:
    rows = drawn(3, 6)
    assert redundancy(np.repeat(rows[:1], 4, axis=0), 2) == pytest.approx(1.0)
    assert redundancy(np.eye(4), 2) == 0.0
    assert relative_energy_distance(rows, rows.copy()) == pytest.approx(0.0, abs=1e-7)  # a root of rounding
    assert (relative_energy_distance(rows, -rows) or 0.0) > 0.0


def test_an_element_with_itself_counts_in_the_means_and_not_in_the_scale() -> None:
    """Two targets at a distance d: the mean over all ordered pairs is d / 2, the scale d."""
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    d = 2**0.5
    assert relative_energy_distance(x, x[:1]) == pytest.approx((2 * d / 2 - d / 2 - 0.0) / d)


def test_what_is_not_defined_is_none() -> None:
    assert relative_energy_distance(drawn(0, 1), drawn(1, 3)) is None
    assert relative_energy_distance(np.repeat(drawn(0, 1), 2, axis=0), drawn(1, 3)) is None


@pytest.mark.parametrize(("values", "mean", "var"), [(PAPER_SR, 21.44, 17.30), (PAPER_ED, 0.95, 0.73)])
def test_means_and_variances_are_the_papers(values: list[float], mean: float, var: float) -> None:
    assert spread(values) == (pytest.approx(mean, abs=6e-3), pytest.approx(var, abs=6e-3))
    assert spread(values[:1]) == (values[0], None)
    assert spread([]) == (None, None)


def test_evolutions_are_measured_on_their_own() -> None:
    texts, targets = ["open the door", "open the window", "lock the car", "send a message"], ["start it", "list files"]
    head, rows = diversity_table({2: texts[:1], 0: texts}, targets, 2)
    assert head == ("iteration", "tasks", "SR@2", "ED_rel")
    assert [(row[0], row[1], bool(row[2]), bool(row[3])) for row in rows] == [
        ("0", "4", True, True),
        ("2", "1", False, True),
        ("mean", "", True, True),
        ("variance", "", False, True),
    ]
    assert [row[3] for row in diversity_table({0: texts}, [], 2)[1]] == ["", "", ""]


def test_lengths_have_a_row_for_each_number_and_say_what_is_unknown() -> None:
    head, rows = lengths_table([("one", [2, 1], [None, 4]), ("two", [1, 1], [None, None])])
    assert head == ("", "one", "two")
    assert rows == [
        ("1 turn", "50.0%", "100.0%"),
        ("2 turns", "50.0%", "0.0%"),
        ("mean turns", "1.50", "1.00"),
        ("tasks with known turns", "2", "2"),
        ("4 calls", "100.0%", "unknown"),
        ("mean calls", "4.00", "unknown"),
        ("tasks with known calls", "1", "0"),
    ]
