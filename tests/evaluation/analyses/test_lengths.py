"""Figures 6 and 7: shares of whole numbers, and references that are not known."""

from __future__ import annotations

import pytest

from evaluation.analyses.diversity import distribution, lengths_table, task_lengths


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


def test_the_table_has_a_row_for_each_number_and_says_what_is_unknown() -> None:
    head, rows = lengths_table([task_lengths("one", [2], [3]), task_lengths("two", [1, 1], [None, None])])
    assert head == ("", "one", "two")
    assert rows[:2] == [("1 turn", "0.0%", "100.0%"), ("2 turns", "100.0%", "0.0%")]
    assert rows[-2:] == [("mean calls", "3.00", "unknown"), ("tasks with known calls", "1", "0")]
