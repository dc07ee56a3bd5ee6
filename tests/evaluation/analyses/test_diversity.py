"""Table 15: the two formulas against their definitions, and the paper's means and variances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.analyses.diversity import (
    diversity_notes,
    diversity_report,
    redundancy,
    relative_energy_distance,
    spread,
)
from evaluation.analyses.similarity import EMBEDDER, Vectors, unit

PAPER_SR = [22.57, 28.61, 16.16, 19.11, 26.14, 21.24, 17.91, 19.82, 22.78, 14.76, 22.22, 25.92]
PAPER_ED = [0.92, 3.11, 0.76, 0.24, 1.65, 0.79, 0.37, 0.50, 1.20, -0.11, 0.46, 1.49]


def drawn(seed: int, rows: int) -> Vectors:
    return unit(np.random.default_rng(seed).normal(size=(rows, 4)))


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
    with pytest.raises(ValueError, match="0 neighbours"):
        redundancy(drawn(0, 3), 0)


@pytest.mark.parametrize(("values", "mean", "var"), [(PAPER_SR, 21.44, 17.30), (PAPER_ED, 0.95, 0.73)])
def test_means_and_variances_are_the_papers(values: list[float], mean: float, var: float) -> None:
    found = spread(values)
    assert found is not None
    assert found.variance is not None
    assert (found.mean, found.variance) == (pytest.approx(mean, abs=6e-3), pytest.approx(var, abs=6e-3))


def test_evolutions_are_measured_on_their_own() -> None:
    texts, targets = ["open the door", "open the window", "lock the car", "send a message"], ["start it", "list files"]
    report = diversity_report([(0, texts), (1, []), (2, texts[:1])], targets, 2)
    assert [one.sr is None for one in report.evolutions] == [False, True, True]
    assert [one.ed is None for one in report.evolutions] == [False, True, False]
    assert report.sr is not None
    assert report.sr.variance is None
    assert report.ed is not None
    assert report.ed.variance is not None
    assert diversity_notes(report) == f"{EMBEDDER}; 2 target tasks; SR@2 needs more than 2 tasks"
    alone = diversity_report([(0, texts)], [], 2)
    assert diversity_notes(alone) == f"{EMBEDDER}; no target tasks, so no ED_rel"
