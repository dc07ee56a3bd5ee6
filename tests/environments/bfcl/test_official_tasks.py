"""Official tasks as specifications: ids, splits, texts, withheld tools; and that reserved ones stay closed."""

import re

import pytest

from environments.base import InputError
from environments.bfcl.benchmark import BENCHMARK, BFCLEnvironment, BFCLOptions
from environments.bfcl.official import (
    CATEGORIES,
    CLASSES,
    UNPRODUCIBLE,
    added_functions_message,
    indices,
    load_category,
)
from environments.verification.replay import attempt, replay, ungrounded


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


def with_argument(spec, tool, **given):
    """Return the reference with another argument of one tool."""
    return [
        [call.model_copy(update={"arguments": call.arguments | given}) if call.name == tool else call for call in turn]
        for turn in spec.reference
    ]


def test_training_references_that_nobody_can_find_are_named():
    """Sentences that no text holds: any other value is a code, a name, a date or an amount that can be found."""
    environment, tasks = BFCLEnvironment(), {one.index: one.spec for one in load_category("base", ("train",))}
    missing = {index: ungrounded(environment, spec, replay(environment, spec)) for index, spec in tasks.items()}
    sentences = {index for index, phrases in missing.items() if re.search(r"='[^']* [^']*'", " ".join(phrases))}
    assert sentences == {4, 156}
    asking = with_argument(tasks[156], "contact_customer_support", message="Please help.")
    assert attempt(environment, tasks[156], asking).success, "the message is not compared"
    answered = "Initial report content Unsorted data More unsorted data"
    assert f'{{"sorted_content": "{answered}"}}' in replay(environment, tasks[4]).results(1)
    assert not attempt(environment, tasks[4], with_argument(tasks[4], "post_tweet", content=answered)).success
    flawed = {one.id for one in BENCHMARK.official_tasks(BFCLOptions(classes=CLASSES)).tasks if one.flaw}
    assert flawed == {f"{category}-{index}" for category in CATEGORIES for index in UNPRODUCIBLE}
