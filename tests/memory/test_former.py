"""Former names of settings, moved to today's and back, and what a run did where it had no key."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from environments.base import InputError
from memory.former import FORMER_NAMES, fill_former_defaults, give_former_names, give_todays_names

EVERY_NAME = pytest.mark.parametrize(("former", "today"), FORMER_NAMES.items())


def stated(key: str, value: object) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


@EVERY_NAME
def test_a_key_moves_to_its_name_of_today_and_back(former: str, today: str) -> None:
    tree = stated(former, 3)
    assert give_todays_names(tree) == [former]
    assert tree == stated(today, 3)
    assert give_todays_names(tree) == []
    give_former_names(tree)
    assert tree == stated(former, 3)


def test_what_else_a_section_states_stays() -> None:
    tree = {"seed": 3, "training": {"kl": 0.1, "lend_weight": 0.5, "experimental": {"dynamic_sampling": 2}}}
    before = copy.deepcopy(tree)
    assert give_todays_names(tree) == ["training.lend_weight"]
    assert tree["training"] == {"kl": 0.1, "experimental": {"dynamic_sampling": 2, "lend_weight": 0.5}}
    give_former_names(tree)
    assert tree == before


def test_no_name_is_a_former_one_and_one_of_today() -> None:
    assert not FORMER_NAMES.keys() & FORMER_NAMES.values()
    assert len(set(FORMER_NAMES.values())) == len(FORMER_NAMES)


@EVERY_NAME
def test_a_setting_with_both_names_is_refused(former: str, today: str) -> None:
    tree = stated(former, 3)
    give_todays_names(tree)
    section, _, name = former.partition(".")
    tree[section][name] = 4
    with pytest.raises(InputError, match=f"^{former} is the former name of {today}: remove one of them$"):
        give_todays_names(tree)


@pytest.mark.parametrize(
    "tree", [{"tasks": 3}, {"tasks": None}, {"tasks": {"sampling": "uniform", "experimental": 3}}, {"seed": 1}]
)
def test_what_is_not_a_section_is_left_to_the_settings_own_checks(tree: dict[str, Any]) -> None:
    before = copy.deepcopy(tree)
    assert give_todays_names(tree) == []
    give_former_names(tree)
    assert tree == before


def test_only_sections_that_are_there_are_filled_with_former_defaults() -> None:
    tree: dict[str, Any] = {"training": {"loss": "dapo", "seal": None}}
    filled = fill_former_defaults(tree)
    assert filled == {"training.length_cost": 0.1}
    assert tree["training"] == {"loss": "dapo", "seal": None, "length_cost": 0.1}
