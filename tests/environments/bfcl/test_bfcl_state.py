"""The canonical text of the state against Python's own equality of the instances."""

import random

import pytest

from environments.base import ToolCall
from environments.bfcl.official import load_category, simulator_class, state_checker
from environments.bfcl.simulators import IMPROPER_STATE, Simulators, state_text
from memory.jsonl import derive_seed


def file_system(*calls):
    simulators = Simulators(["GorillaFileSystem"], {}, False)
    for name, arguments in calls:
        simulators.run(ToolCall(name=name, arguments=arguments))
    return simulators


def test_equal_texts_are_equal_states_along_references():
    """Prefixes of references with some calls left out: texts are equal exactly where the official check agrees."""
    agreed = differed = 0
    for task in load_category("base"):
        draw = random.Random(derive_seed("states", task.id))
        calls = [call for turn in task.spec.reference for call in turn]
        one = Simulators(task.spec.classes, task.spec.initial_state, False)
        other = Simulators(task.spec.classes, task.spec.initial_state, False)
        for call in calls:
            one.run(call)
            if draw.random() < 0.8:
                other.run(call)
            equal = state_checker()(one.instances, other.instances)["valid"]
            assert equal == (one.state() == other.state()), task.id
            agreed += equal
            differed += not equal
    assert min(agreed, differed) > 50


def test_the_order_of_entries_and_of_attributes_does_not_matter():
    one = file_system(("touch", {"file_name": "a"}), ("touch", {"file_name": "b"}))
    other = file_system(("touch", {"file_name": "b"}), ("touch", {"file_name": "a"}))
    assert one.state() == other.state()


def test_private_state_is_not_in_the_text():
    one = file_system(("mkdir", {"dir_name": "a"}))
    other = file_system(("mkdir", {"dir_name": "a"}), ("cd", {"folder": "a"}))
    assert one.state() == other.state()


def test_numbers_that_python_holds_for_equal_have_one_text():
    class Tank:
        def __init__(self, level, seen):
            self.level = level
            self.seen = seen

    assert state_text({"Tank": Tank(1, {3, 1})}) == state_text({"Tank": Tank(1.0, {1, 3})})
    assert state_text({"Tank": Tank(1, set())}) != state_text({"Tank": Tank("1", set())})
    assert state_text({"Tank": Tank({1: 2}, set())}) != state_text({"Tank": Tank({"1": 2}, set())})


@pytest.mark.parametrize(
    "calls",
    [
        [("mkdir", {"dir_name": "a"}), ("cp", {"source": "a", "destination": "a"})],
        [("mkdir", {"dir_name": "a"}), *[("cp", {"source": "a", "destination": "a"})] * 30],
    ],
)
def test_a_directory_that_contains_itself_has_the_marker(calls):
    assert file_system(*calls).state() == IMPROPER_STATE


def test_the_marker_is_no_proper_state():
    assert not IMPROPER_STATE.startswith("{")
    assert file_system().state().startswith("{")
    assert simulator_class("GorillaFileSystem").__name__ in file_system().state()
