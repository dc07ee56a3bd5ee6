"""Edits of contexts and drafts: what has their form, before any record is read."""

from __future__ import annotations

from typing import Any

import pytest

from environments.base import InputError
from graph.studio.forks import check_edits


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        ([], "is not a mapping of ids to changed fields"),
        ({"draft-1": {}}, "is not a mapping of ids to changed fields"),
        ({"draft-1": {1: "x"}}, "is not a mapping of ids to changed fields"),
        ({"draft-1": {"turns": ["\ud800"]}}, "not JSON, or half a character"),
        ({"draft-1": {"turns": [float("nan")]}}, "not JSON, or half a character"),
        ({"draft-1": {"turns": [{1, 2}]}}, "not JSON, or half a character"),
        ({"draft-1": {"turns": ["a" * 100_000]}}, "are more than the 100000 that edits may have"),
    ],
)
def test_what_is_not_an_edit_is_refused(edits: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        check_edits(edits)


def test_deep_values_are_refused() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InputError, match="not JSON"):
        check_edits({"draft-1": {"turns": deep}})


def test_edits_are_returned_as_they_are() -> None:
    assert check_edits({}) == {}
    assert check_edits({"draft-1": {"turns": ["a\u0000b"]}}) == {"draft-1": {"turns": ["a\u0000b"]}}
