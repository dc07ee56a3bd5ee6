"""Official tasks as specifications: ids, splits, texts, withheld tools; and that reserved ones stay closed."""

import pytest

from environments.base import InputError
from environments.bfcl.official import CATEGORIES, added_functions_message, indices, load_category


@pytest.mark.parametrize("category", CATEGORIES)
def test_reserved_indices_are_refused(category):
    opened = {task.index for task in load_category(category)}
    assert opened.isdisjoint(indices("reserved"))
    assert len(opened) == 180
    with pytest.raises(InputError, match="reserved"):
        load_category(category, ("train", "reserved"))


def test_splits_are_chosen_by_index():
    tasks = load_category("miss_param", ("dev",))
    assert tuple(task.index for task in tasks) == indices("dev")
    assert {task.spec.split for task in tasks} == {"dev"}
    assert tasks[0].id == "miss_param-11"


def test_an_unknown_category_is_the_users_mistake():
    with pytest.raises(InputError, match="'simple' is not a BFCL multi-turn category"):
        load_category("simple")


def test_long_context_is_marked_and_nothing_else():
    assert all(task.spec.long_context for task in load_category("long_context"))
    assert not any(task.spec.long_context for task in load_category("base"))


def test_the_turn_that_reveals_tools_says_so():
    for task in load_category("miss_func"):
        (turn,) = task.spec.withheld
        assert task.spec.turns[turn] == added_functions_message()
        assert set(task.spec.withheld[turn]) <= set(task.spec.tools)
        assert all(task.spec.turns)
