"""How alike calls are: a table, and what holds of any calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import MalformedCall, ToolCall
from training.grpo.call_similarity import of_call, similarity


def call(name: str, /, **arguments: object) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


COPY = call("cp", source="a.txt", destination="b")
UNREAD = MalformedCall(text="cp(", reason="it does not end")


@pytest.mark.parametrize(
    ("own", "wanted", "expected"),
    [
        (COPY, COPY, 1.0),
        (call("ls"), call("ls"), 1.0),
        (call("mv", source="a.txt", destination="b"), COPY, 0.0),
        (UNREAD, COPY, 0.0),
        (call("cp", source="a.txt", destination="c"), COPY, 0.75),
        (call("cp", source="a.txt"), COPY, 0.75),
        (call("cp"), COPY, 0.5),
        (call("cp", source="a.txt", destination="b", force=True), COPY, 0.5 + 0.5 * 2 / 3),
        (call("say", text="see you on Monday"), call("say", text="see you Monday"), 0.5 + 0.5 * 6 / 7),
        (call("tag", names=["ana", "bo"]), call("tag", names=["bo", "cy"]), 0.75),
        (call("set", to=3.0), call("set", to=3), 1.0),
        (call("set", to=True), call("set", to=1), 0.5),
        (call("set", to={"a": 1, "b": 2}), call("set", to={"a": 1, "b": 3}), 0.75),
        (call("set", to=[]), call("set", to=[]), 1.0),
    ],
)
def test_one_call(own: ToolCall | MalformedCall, wanted: ToolCall, expected: float) -> None:
    assert of_call(own, wanted) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("own", "wanted", "expected"),
    [
        ([[COPY]], [[COPY]], 1.0),
        ([[COPY, call("ls")]], [[COPY]], 0.5),
        ([[call("ls"), COPY]], [[COPY, call("ls")]], 0.5),  # in the other order
        ([[COPY, UNREAD, call("ls")]], [[COPY, call("ls")]], 2 / 3),
        ([[COPY]], [[COPY], [COPY]], 0.5),  # the second turn was not reached
        ([[]], [[]], 1.0),
        ([[COPY]], [[]], 0.0),
        ([[]], [[COPY]], 0.0),
        ([], [[COPY]], 0.0),
        ([[COPY], [COPY]], [[COPY]], 1.0),
    ],
)
def test_turns(own: list, wanted: list, expected: float) -> None:
    assert similarity(own, wanted) == pytest.approx(expected)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(
    ToolCall, name=st.sampled_from("fgh"), arguments=st.dictionaries(st.sampled_from("abc"), values, max_size=3)
)
turns = st.lists(st.lists(calls, max_size=4), min_size=1, max_size=3)


@given(own=turns, wanted=turns)
def test_it_is_a_share_and_whole_for_the_reference_itself(own: list, wanted: list) -> None:
    assert 0.0 <= similarity(own, wanted) <= 1.0
    assert similarity(wanted, wanted) == pytest.approx(1.0)


def test_a_value_of_any_depth_and_length_is_compared() -> None:
    deep: object = "x"
    for _ in range(100_000):
        deep = [deep]
    assert of_call(ToolCall.model_construct(name="f", arguments={"a": deep}), call("f", a="x")) == 1.0
    assert of_call(call("f", a="word " * 1_000_000), call("f", a="word")) < 0.51
