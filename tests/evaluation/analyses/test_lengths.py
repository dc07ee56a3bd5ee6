"""Figures 6 and 7: shares of whole numbers, and references that are not known."""

from __future__ import annotations

import pytest

from evaluation.analyses.lengths import distribution, lengths_table, task_lengths


def test_shares_are_by_number_in_order() -> None:
    found = distribution([3, 1, 3, 7])
    assert list(found.share.items()) == [(1, 0.25), (3, 0.5), (7, 0.25)]
    assert (found.mean, found.tasks) == (3.5, 4)
    with pytest.raises(ValueError, match="no value"):
        distribution([])


def test_unknown_references_are_left_out_of_calls_alone() -> None:
    found = task_lengths("official", [1, 2], [None, 4])
    assert found.turns.tasks == 2
    assert found.calls is not None
    assert (found.calls.tasks, found.calls.mean) == (1, 4.0)
    assert task_lengths("held out", [1, 1], [None, None]).calls is None


def test_the_table_counts_one_task_and_several() -> None:
    cells = list(lengths_table([task_lengths("one", [2], [3])]).columns[1].cells)
    assert "2.00 (1 task)" in cells
    others = list(lengths_table([task_lengths("two", [1, 1], [None, None])]).columns[1].cells)
    assert others == ["100.0%", "1.00 (2 tasks)", "unknown"]
