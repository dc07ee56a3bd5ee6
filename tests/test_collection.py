"""Collecting tests is cheap: every worker collects all of them, and imports what few of them need only for those."""

from __future__ import annotations

import pytest
from support.late import Late


@pytest.mark.parametrize("asked", ["_mock_name", "__wrapped__", "__test__", "__bases__"])
def test_what_pytest_asks_of_everything_imports_nothing(asked: str) -> None:
    assert not hasattr(Late("no_such_module"), asked)


def test_collecting_imports_nothing_large(collected_with: set[str]) -> None:
    assert collected_with == set()
