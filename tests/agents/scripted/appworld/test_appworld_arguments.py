"""Arguments: seen values under the parameter's key, and what documentation asks of the others."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.shop import TOOLS, parameter, tool

from agents.scripted.appworld.explorer import AnswerValue, chosen_parameters, draw_value, known_values

SEEN = [
    AnswerValue("basket_id", 7, "shop", {}, 0),
    AnswerValue("basket_id", 3, "bank", {}, 0),
    AnswerValue("email", "eve@example.com", "shop", {}, 0),
    AnswerValue("phone_number", "5550001", "bank", {}, 0),
]


def test_an_id_comes_from_its_own_app_alone() -> None:
    wanted = parameter("basket_id", "integer")
    assert known_values(wanted, "shop", SEEN) == (7,)
    with pytest.raises(LookupError):
        draw_value(wanted, "post", SEEN, random.Random(0))


def test_an_address_is_one_that_was_seen() -> None:
    assert draw_value(parameter("receiver_email"), "bank", SEEN, random.Random(0)) == "eve@example.com"
    with pytest.raises(LookupError):
        draw_value(parameter("receiver_email"), "bank", [], random.Random(0))


@given(st.integers(0, 1000))
def test_numbers_keep_to_the_documented_bounds(seed: int) -> None:
    rng = random.Random(seed)
    within = parameter("month", "integer", "The month. (value >= 1.0, <= 12.0)")
    above = parameter("amount", "float", "How much. (value > 0.0)")
    digits = parameter("number", "integer", "16 digits. (value >= 1000000000000000.0, < 1e+16)")
    month, amount, number = (draw_value(one, "shop", [], rng) for one in (within, above, digits))
    assert isinstance(month, int)
    assert 1 <= month <= 12
    assert isinstance(amount, float)
    assert amount > 0
    assert isinstance(number, int)
    assert len(str(number)) == 16


@pytest.mark.parametrize(
    ("description", "form"),
    [("Time in HH:MM format.", r"\d\d:\d\d"), ("Birthday in YYYY-MM-DD format.", r"\d{4}-\d\d-\d\d"), ("Text.", r".+")],
)
def test_texts_have_the_documented_form(description: str, form: str) -> None:
    drawn = draw_value(parameter("it", description=description), "shop", [], random.Random(1))
    assert isinstance(drawn, str)
    assert re.fullmatch(form, drawn)


def test_required_parameters_are_given_and_tokens_and_pages_never() -> None:
    searching = tool(
        "shop.search", parameter("query"), parameter("page_index", "integer", required=False), parameter("sort_by")
    )
    for seed in range(30):
        assert [p.name for p in chosen_parameters(searching, random.Random(seed))] == ["query"]


def test_an_update_always_updates_something() -> None:
    update = tool("shop.update_basket", parameter("basket_id", "integer"), parameter("title", required=False))
    for seed in range(30):
        assert [p.name for p in chosen_parameters(update, random.Random(seed))] == ["basket_id", "title"]
    assert [p.name for p in chosen_parameters(TOOLS["shop.show_baskets"], random.Random(0))] == []
