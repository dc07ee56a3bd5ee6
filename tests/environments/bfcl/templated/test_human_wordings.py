"""Turns in the words of people: what is learnt from training turns, and that what is written holds the reference."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from environments.base import TaskSpec, ToolCall
from environments.bfcl.benchmark import BENCHMARK
from environments.bfcl.official import load_category
from environments.bfcl.templated import human_wordings
from environments.bfcl.templated.human_wordings import STYLES, human_words
from environments.registry import benchmark_of
from environments.verification.replay import replay, ungrounded
from environments.verification.turn_text import foreign_text

ENVIRONMENT = BENCHMARK.open(BENCHMARK.parse({"wordings": "human", "classes": list(BENCHMARK.parse({}).classes)}))
TABLE = BENCHMARK.open(BENCHMARK.parse({}))
TRAINING = load_category("base", ("train",))
EVERY = human_words().patterns


def text_of(pattern):
    """The text with {parameter} in its slots."""
    filled = (f"{{{'='.join(name for _, name in slot.places)}}}" for slot in pattern.slots)
    return "".join(one for pair in zip(pattern.parts, (*filled, ""), strict=True) for one in pair)


def call(name: str, **arguments) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def task(like: str, *turns: list[ToolCall], setup: tuple[ToolCall, ...] = ()) -> TaskSpec:
    """A task at the start of a training task."""
    spec = next(one.spec for one in TRAINING if one.id == like)
    return spec.model_copy(update={"turns": ("",) * len(turns), "reference": tuple(map(tuple, turns)), "setup": setup})


def written(spec: TaskSpec, count: int = 40) -> list[TaskSpec]:
    return [benchmark_of(ENVIRONMENT).render(ENVIRONMENT, spec, random.Random(seed)) for seed in range(count)]


def test_the_table_stays_the_default() -> None:
    spec = task("base-101", [call("get_stock_info", symbol="AAPL")])
    table = [benchmark_of(TABLE).render(TABLE, spec, random.Random(seed)).turns for seed in range(5)]
    assert table == [BENCHMARK.render(TABLE, spec, random.Random(seed)).turns for seed in range(5)]
    assert not set(table) & {one.turns for one in written(spec)}


def test_patterns_are_learnt_from_training_turns_alone() -> None:
    ids = {one.id for one in TRAINING}
    assert {pattern.source for pattern in EVERY} <= ids
    texts = {one.id: "\n".join(one.spec.turns) for one in TRAINING}
    for pattern in EVERY:
        for part in pattern.parts:
            for piece in part.removesuffix(".").strip(" '\"").split(". "):
                assert piece in texts[pattern.source], pattern


def test_a_pattern_has_no_value_of_its_own() -> None:
    """No number, quote or tag is left of the turn that a pattern was learnt from."""
    for pattern in EVERY:
        assert not any(mark in "".join(pattern.parts) for mark in ("#", "@", '"', *map(str, range(10)))), text_of(
            pattern
        )


def test_many_functions_have_patterns_in_several_styles() -> None:
    assert len(EVERY) >= 90
    assert len({name for pattern in EVERY for name in pattern.names}) >= 40
    assert all(Counter(pattern.style for pattern in EVERY)[style] >= 7 for style in STYLES)
    assert {"After that", "Finally", "Also"} <= set(human_words().order)
    assert {"Could you", "Please"} <= set(human_words().asking)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("base-101", "under the symbol {symbol}"),
        ("base-154", "my birthdate is {date_of_birth}"),
        ("base-52", "using the hashtag {tags} while tagging {mentions}"),
        ("base-53", "filled up with {gallon} gallons"),
        ("base-10", "directory named {dir_name} right in {folder} folder"),
    ],
)
def test_texts_numbers_dates_and_lists_become_slots(source: str, text: str) -> None:
    assert any(text in text_of(pattern) for pattern in EVERY if pattern.source == source)


@pytest.mark.parametrize("index", range(len(TRAINING)))
def test_what_is_written_holds_the_reference(index: int) -> None:
    """Every value of a human reference that our rules ground in its values is grounded in the written turns, too."""
    spec = TRAINING[index].spec
    reference = tuple(calls for calls in spec.reference if calls)
    plain = spec.model_copy(update={"turns": ("",) * len(reference), "reference": reference})
    table = BENCHMARK.render(TABLE, plain, random.Random(0))
    for seed in range(3):
        human = human_wordings.render_task(ENVIRONMENT, plain, random.Random(seed))
        assert ungrounded(ENVIRONMENT, human, replay(ENVIRONMENT, human)) == ungrounded(
            TABLE, table, replay(TABLE, table)
        )
        assert foreign_text(ENVIRONMENT, human) is None


def test_an_identifier_that_the_turn_before_returned_can_be_left_unsaid() -> None:
    order = call("place_order", order_type="Buy", symbol="AAPL", price=10.0, amount=1)
    details = call("get_order_details", order_id=12446)
    texts = [one.turns[1] for one in written(task("base-101", [order], [details]))]
    assert any("12446" not in text and "order" in text for text in texts)
    alone = [one.turns[0] for one in written(task("base-101", [details]))]
    assert all("12446" in text for text in alone), "no turn before it"
    two = [one.turns[1] for one in written(task("base-101", [order, order], [details]))]
    assert all("12446" in text for text in two), "two orders: which one is meant is unknown"


def test_a_value_that_a_call_of_the_turn_answers_is_not_said() -> None:
    zipcodes = [call("get_zipcode_based_on_city", city=city) for city in ("Rivermist", "Stonebrook")]
    far = call("estimate_distance", cityA="83214", cityB="94016")
    for one in written(task("base-60", [zipcodes[0], far])):
        assert "that zipcode" in one.turns[0]
        assert "83214" not in one.turns[0]
        assert "94016" in one.turns[0]
    both = [one.turns[0] for one in written(task("base-60", [*zipcodes, far]))]
    assert all("83214" in text for text in both), "two zipcodes: which one is meant is unknown"
    said = [one.turns[1] for one in written(task("base-60", [far], [zipcodes[0], far]))]
    assert all("83214" in text for text in said)


def test_a_call_without_words_that_the_others_need_is_not_in_a_pattern() -> None:
    """The human turn says nothing of the directory that its reference changes to."""
    (pattern,) = [one for one in EVERY if one.source == "base-1" and one.names == ("grep",)]
    assert text_of(pattern) == "Investigate within {file_name} for the occurrence of the keyword {pattern}."


def test_a_value_of_the_turn_before_may_be_referred_to() -> None:
    touch, grep = call("touch", file_name="a.txt"), call("echo", content="Hello", file_name="a.txt")
    texts = [one.turns[1] for one in written(task("base-10", [touch], [grep]))]
    assert any("the same file" in text for text in texts)
    assert any("that file" in text for text in texts)
    assert any("a.txt" in text for text in texts)
    between = call("touch", file_name="b.txt")
    texts = [one.turns[1] for one in written(task("base-10", [touch, between], [grep]))]
    assert all("a.txt" in text for text in texts), "two files: which one is meant is unknown"


def test_one_user_keeps_a_style_and_users_differ() -> None:
    spec = task("base-60", [call("check_tire_pressure")], [call("check_tire_pressure")])
    texts = {one.turns for one in written(spec)}
    assert len(texts) >= 3

    def terse(text: str) -> bool:
        return not (text.endswith("?") or text.startswith(human_words().asking) or text.count(". "))

    assert {terse(turns[0]) for turns in texts} == {True, False}
    assert all(terse(turns[0]) == terse(turns[1]) for turns in texts)


def test_equal_draws_give_equal_text() -> None:
    spec = task("base-101", [call("get_stock_info", symbol="AAPL")])
    assert written(spec, 5) == written(spec, 5)
