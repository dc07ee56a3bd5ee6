"""The BFCL environment: what it opens, what it refuses, and where exploration may begin."""

import pytest
from support.bfcl_tasks import LIGHTS, task_of

from environments.base import InputError
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.official import indices


def test_exploration_begins_at_training_indices_only():
    starts = BFCLEnvironment().starts()
    assert [start.id for start in starts] == [f"base-{index}" for index in indices("train")]
    assert {start.split for start in starts} == {"train"}


def test_starts_are_restricted_to_the_classes():
    classes = ("VehicleControlAPI", "GorillaFileSystem")
    starts = BFCLEnvironment(classes).starts()
    assert len(starts) == 22
    for start in starts:
        assert set(start.classes) <= set(classes)
        assert set(start.initial_state) <= set(start.classes)
        assert start.initial_state
        groups = {spec.group for spec in BFCLEnvironment().tools(start.tools)}
        assert groups == set(start.classes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"environment": "appworld"}, "'appworld'"),
        ({"classes": ("Nothing",)}, "'Nothing' is not a class"),
        ({"classes": ()}, "no class is given"),
        ({"classes": ("VehicleControlAPI", "VehicleControlAPI")}, "given twice"),
        ({"tools": ("ls",)}, "'ls' belongs to none"),
        ({"withheld": {0: ("ls",)}}, "'ls' belongs to none"),
        ({"withheld": {3: ("startEngine",)}}, "until turn 3"),
        ({"turns": (), "reference": ()}, "no user turn"),
        ({"initial_state": {"VehicleControlAPI": "full"}}, "cannot load"),
    ],
)
def test_tasks_that_cannot_be_opened(change, reason):
    task = task_of((LIGHTS,)).model_copy(update=change)
    with pytest.raises(InputError, match=reason):
        BFCLEnvironment().open(task)


def test_unknown_names_are_the_users_mistake():
    with pytest.raises(InputError, match="no function 'fly'"):
        BFCLEnvironment().tools(["fly"])
    with pytest.raises(InputError, match="'Nothing' is not a class"):
        BFCLEnvironment(["Nothing"])
