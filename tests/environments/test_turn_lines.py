"""Tests of the lines that a small language model reads and writes about one user turn."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import Parameter, ToolCall, ToolSpec
from environments.task_text import is_count
from environments.turn_lines import (
    FOUND,
    TurnView,
    calls_text,
    chosen_facts,
    known_values,
    read_calls,
    reader_prompt,
    with_found,
    words_prompt,
    writer_prompt,
)

WEIGH = ToolSpec(
    name="weigh",
    group="",
    description="Weigh one parcel. It takes a minute.",
    parameters=(Parameter(name="label", type="string", description="", required=True),),
)
CALL = ToolCall(name="weigh", arguments={"label": "lamp"})
VIEW = TurnView(
    (WEIGH,), (("label", "lamp"), ("label", "piano stool"), ("euros", "100")), ((CALL, '{"kilograms": 7}'),)
)
GIVEN = """Tools:
weigh(label: string) Weigh one parcel.
Known: label: lamp, piano stool; euros: 100
Done:
weigh(label="lamp") -> {"kilograms": 7}
"""


def test_the_prompts_of_both_directions() -> None:
    assert writer_prompt(VIEW) == f"{GIVEN}Calls:\n"
    assert words_prompt(VIEW, [CALL]) == f'{GIVEN}Calls:\nweigh(label="lamp")\nWords:'
    assert reader_prompt(VIEW, "How heavy\nis it?") == f"{GIVEN}Words: How heavy is it?\nCalls:\n"
    assert TurnView((WEIGH,)).lines() == "Tools:\nweigh(label: string) Weigh one parcel.\n"


def test_everything_is_cut_to_its_limit() -> None:
    long = ToolSpec(name="f", group="", description="word " * 500)
    facts = [(f"name {number} " + "n" * 90, "v" * 90) for number in range(50)]
    view = TurnView((long,), tuple(facts), ((ToolCall(name="f", arguments={"a": "x" * 9000}), "y" * 9000),) * 9)
    lines = writer_prompt(view).splitlines()
    assert max(map(len, lines)) < 320
    assert sum(line.startswith("f(a=") for line in lines) == 3, "the latest calls alone"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(-1e9, 1e9) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b_c"]), JSON, max_size=2), min_size=1, max_size=3))
def test_calls_are_read_as_they_are_written(arguments: list[dict[str, object]]) -> None:
    calls = tuple(ToolCall.model_validate({"name": "weigh", "arguments": one}) for one in arguments)
    assert read_calls(calls_text(calls) + "Words: please", {"weigh"}, 3) == calls


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('weigh(label="lamp")\nWords: How heavy is it?', ["weigh"]),
        (f'weigh(label="{FOUND}")\n\nweigh(', ["weigh"]),
        ("weigh()\nload()\n", ["weigh", "load"]),
        ("Words: nothing is called", None),
        ("", None),
        ("weigh()\nopen_gate()\n", None),
        ("weigh()\nweigh()\nload()\n", None),
        ("weigh(lamp)\n", None),
        ("weigh(label='lamp'\n", None),
        ("weigh(label=weigh())", None),
        ("weigh(label=" + "[" * 5000, None),
    ],
)
def test_what_a_model_wrote_is_calls_of_the_tools_or_nothing(text: str, names: list[str] | None) -> None:
    calls = read_calls(text, {"weigh", "load"}, 2)
    assert (None if calls is None else [call.name for call in calls]) == names


@pytest.mark.parametrize(
    ("number", "small"), [(0, True), (True, True), (-99.0, True), (99, True), (100, False), (-100, False), (0.5, False)]
)
def test_small_whole_numbers_are_counts(number: float, small: bool) -> None:
    assert is_count(number) is small
    assert not is_count(float("inf"))


def test_a_value_is_found_where_an_answer_has_it_and_the_user_does_not_say_it() -> None:
    look = ToolCall(name="find", arguments={"owner": "Ana"})
    use = ToolCall(
        name="pay", arguments={"invoice": 4711, "ids": ["a17", "b18"], "rate": 0.5, "paid": True, "days": 30}
    )
    answers = ['{"invoice": 4711, "days": 30, "rate": 0.5, "paid": true, "ids": ["a17", "b18"]}', "done"]
    shown = with_found([look, use], answers, "Pay Ana's invoice", ())
    assert shown[0] == look
    assert shown[1].arguments == {"invoice": FOUND, "ids": FOUND, "rate": FOUND, "paid": True, "days": 30}
    said = with_found([look, use], answers, "Pay invoice 4711, and a17", ())[1].arguments
    assert said["invoice"] == 4711
    assert said["ids"] == ["a17", "b18"], "one of them is said"
    assert with_found([use], ["done"], "", answers[:1])[0].arguments["invoice"] == FOUND
    assert with_found([use], ["done"], "", ())[0] == use, "its own answer is no source"


def test_values_of_a_state_have_the_key_under_which_they_are() -> None:
    state = {
        "orders": {"12446": {"symbol": "AAPL", "open": True, "note": None}},
        "names": ["Ana", "Bo\nb"],
        "balance": 5.5,
    }
    assert known_values(state) == (
        ("orders", "12446"),
        ("symbol", "AAPL"),
        ("names", "Ana"),
        ("names", "Bo b"),
        ("balance", "5.5"),
    )
    deep: dict[str, object] = {"value": 1}
    for _ in range(40):
        deep = {"inner": deep}
    assert ("value", "1") not in known_values(deep)  # type: ignore[arg-type]


def test_wanted_facts_come_before_others() -> None:
    facts = [("label", "lamp"), ("euros", "100"), ("van", "north"), ("label", "vase")]
    assert sorted(chosen_facts(facts, {"label"}, random.Random(1), 2)) == [("label", "lamp"), ("label", "vase")]
    assert ("van", "north") in chosen_facts(facts, {"north"}, random.Random(1), 1)
    assert sorted(chosen_facts(facts, (), random.Random(1), 9)) == sorted(facts)
