"""Figure 5 and table 13: nearest targets, bins, and subsets of equal size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from environments.base import InputError
from evaluation.similarity import (
    NearestTarget,
    near_table,
    nearest_targets,
    similarity_subsets,
    similarity_table,
)


def unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / lengths


def nearest(cosines: list[float]) -> list[NearestTarget]:
    return [NearestTarget(task=f"t{n}", target="x", cosine=one) for n, one in enumerate(cosines)]


def test_each_task_is_paired_with_the_target_of_the_largest_cosine() -> None:
    targets = unit(np.array([[1.0, 0.0], [0.0, 1.0]]))
    rows = unit(np.array([[2.0, 1.0], [-1.0, 3.0], [0.0, 5.0]]))
    found = nearest_targets(["a", "b", "c"], rows, ["x", "y"], targets)
    assert [one.target for one in found] == ["x", "y", "y"]
    assert [one.cosine for one in found] == pytest.approx([2 / 5**0.5, 3 / 10**0.5, 1.0])


def test_many_rows_are_compared_in_parts() -> None:
    rng = np.random.default_rng(0)
    rows, targets = unit(rng.normal(size=(1100, 3))), unit(rng.normal(size=(7, 3)))
    found = nearest_targets([str(n) for n in range(1100)], rows, [str(n) for n in range(7)], targets)
    products = rows @ targets.T
    assert [int(one.target) for one in found] == products.argmax(axis=1).tolist()
    assert [one.cosine for one in found] == pytest.approx(products.max(axis=1))


def test_the_near_pairs_are_named_nearest_first() -> None:
    assert [row[0] for row in near_table(nearest([0.2, 0.95, 0.9, 0.97]), 0.9)[1]] == ["t3", "t1", "t2"]


def test_a_value_on_an_edge_belongs_to_the_bin_above() -> None:
    """0.15 / 0.05 is 2.9999999999999996."""
    rows = similarity_table(nearest([0.15, 0.05]))[1]
    assert [row[:2] for row in rows] == [("0.05 to 0.10", "1"), ("0.10 to 0.15", "0"), ("0.15 to 0.20", "1")]


@given(st.integers(3, 40), st.integers(0, 5), st.data())
def test_subsets_are_equal_in_size_and_ordered_by_similarity(count: int, seed: int, data: st.DataObject) -> None:
    cosines = data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))
    subsets = similarity_subsets(nearest(cosines), seed)
    assert list(subsets) == ["low", "medium", "high", "mixed"]
    assert {len({one.task for one in some}) for some in subsets.values()} == {count // 3}
    low, medium, high, _ = (sum(one.cosine for one in some) for some in subsets.values())
    assert low <= medium + 1e-9
    assert medium <= high + 1e-9
    assert not {one.task for one in subsets["low"]} & {one.task for one in subsets["high"]}
    assert subsets == similarity_subsets(nearest(cosines), seed)


def test_the_mixed_subset_takes_equal_parts_of_the_thirds() -> None:
    mixed = similarity_subsets(nearest([n / 27 for n in range(27)]))["mixed"]
    assert [sum(int(one.task[1:]) // 9 == third for one in mixed) for third in range(3)] == [3, 3, 3]


def test_too_few_tasks_are_refused() -> None:
    with pytest.raises(InputError, match="at least three"):
        similarity_subsets(nearest([0.5] * 2))
