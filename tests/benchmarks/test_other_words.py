"""Development tasks in other words: their references are kept, and no test set or index is opened."""

from __future__ import annotations

import pytest

from benchmarks.other_words import written
from environments.base import InputError
from environments.bfcl.official import split_of
from environments.registry import named_benchmark


def test_tasks_are_worded_by_the_documentation_and_by_people() -> None:
    documented, official = written("turns-dev", "base@dev")
    tasks = [one.spec for one in named_benchmark("bfcl").open_evaluation_set("turns-dev")]
    assert [one.reference for one in documented] == [one.reference for one in tasks]
    assert [len(one.turns) for one in documented] == [len(one.turns) for one in tasks]
    assert all(one.turns != other.turns for one, other in zip(documented, tasks, strict=True))
    assert len(official) == 10
    assert {split_of(int(one.id.rpartition("-")[2])) for one in official} == {"train", "dev"}
    assert {name for one in official for name in one.classes} == {"GorillaFileSystem", "VehicleControlAPI"}


def test_a_test_set_is_not_opened() -> None:
    with pytest.raises(InputError, match="turns-test is a test set: name a development set"):
        written("turns-test", "base@dev")
    with pytest.raises(InputError, match="base@test is a test set: name a development set"):
        written("turns-dev", "base@test")
