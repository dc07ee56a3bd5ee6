"""Figure 5 and table 13: nearest targets, bins, and subsets of equal size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import InputError
from evaluation.analyses.similarity import (
    LEVELS,
    NearestTarget,
    nearest_targets,
    similarity_bins,
    similarity_report,
    similarity_subsets,
    unit,
)


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


def test_a_text_without_a_vector_is_an_error() -> None:
    with pytest.raises(ValueError, match="no vector"):
        unit(np.zeros((1, 3)))


def test_the_report_names_the_near_pairs_nearest_first() -> None:
    report = similarity_report(nearest([0.2, 0.95, 0.9, 0.97]), 5)
    assert [one.task for one in report.above] == ["t3", "t1", "t2"]
    assert (report.tasks, report.targets, report.largest) == (4, 5, 0.97)
    assert (report.median, report.mean) == (pytest.approx(0.925), pytest.approx(0.755))
    assert {low: count for low, count in report.bins.items() if count} == {0.2: 1, 0.9: 1, 0.95: 2}


def test_a_value_on_an_edge_belongs_to_the_bin_above() -> None:
    """0.15 / 0.05 is 2.9999999999999996."""
    assert similarity_bins([0.15, 0.05]) == {0.05: 1, 0.1: 0, 0.15: 1}


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40))
def test_bins_hold_every_task_once(cosines: list[float]) -> None:
    bins = similarity_bins(cosines)
    assert sum(bins.values()) == len(cosines)
    assert min(bins) - 1e-6 <= min(cosines)
    assert max(cosines) <= max(bins) + 0.05 + 1e-6


@given(st.integers(3, 40), st.integers(0, 5), st.data())
def test_subsets_are_equal_in_size_and_ordered_by_similarity(count: int, seed: int, data: st.DataObject) -> None:
    cosines = data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))
    subsets = similarity_subsets(nearest(cosines), seed)
    assert tuple(one.level for one in subsets) == LEVELS
    assert {len(set(one.tasks)) for one in subsets} == {count // 3}
    low, medium, high, _ = (one.mean for one in subsets)
    assert low <= medium + 1e-9
    assert medium <= high + 1e-9
    assert not set(subsets[0].tasks) & set(subsets[2].tasks)
    assert subsets == similarity_subsets(nearest(cosines), seed)


def test_the_mixed_subset_takes_equal_parts_of_the_thirds() -> None:
    subsets = similarity_subsets(nearest([n / 27 for n in range(27)]))
    mixed = {int(name[1:]) // 9 for name in subsets[3].tasks}
    assert mixed == {0, 1, 2}
    counts = [sum(int(name[1:]) // 9 == third for name in subsets[3].tasks) for third in range(3)]
    assert counts == [3, 3, 3]


def test_too_few_tasks_are_refused() -> None:
    with pytest.raises(InputError, match="at least three"):
        similarity_subsets(nearest([0.5] * 2))
