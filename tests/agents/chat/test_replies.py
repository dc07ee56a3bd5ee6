"""Reading a message as a reply: tool calls, JSON in its text, and what is neither."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from pydantic import BaseModel, Field, JsonValue

from agents.chat.replies import LONGEST_PROBLEM, LONGEST_REPLY, LONGEST_SHOWN, Malformed, read_reply, shown


class Answer(BaseModel):
    """An answer."""

    number: int = Field(ge=0)
    extra: dict[str, JsonValue] = {}


def call(arguments: object, name: str = "Answer") -> AIMessage:
    return AIMessage(content="", tool_calls=[{"name": name, "args": arguments, "id": "1"}])


def broken_call(arguments: str, name: str = "Answer") -> AIMessage:
    return AIMessage(content="", invalid_tool_calls=[{"name": name, "args": arguments, "id": "1", "error": "no"}])


@pytest.mark.parametrize(
    "message",
    [
        call({"number": 4}),
        AIMessage(content='{"number": 4}'),
        AIMessage(content='  \n{"number": 4}\n'),
        AIMessage(content='```json\n{"number": 4}\n```'),
        AIMessage(content='```\n{"number": 4}\n```'),
        AIMessage(content='<think>{"number": 9}? No.</think>\n{"number": 4}'),
        AIMessage(content='It is nine? No.</think>```json\n{"number": 4}\n```'),
        AIMessage(content='{"number": 4, "extra": {"</think>": "```"}}'),
        AIMessage(content=[{"type": "text", "text": '{"number": 4}'}]),
    ],
)
def test_replies(message: AIMessage) -> None:
    assert read_reply(Answer, message).number == 4


@pytest.mark.parametrize(
    ("message", "told", "prose"),
    [
        (AIMessage(content=""), "malformed reply: it is empty", True),
        (AIMessage(content="I think it is 4"), "malformed JSON", True),
        (AIMessage(content='{"number": 4'), "malformed JSON", False),
        (AIMessage(content='{"number": 4} {"number": 5}'), "malformed JSON: Extra data", False),
        (AIMessage(content="[" * 100_000), "malformed JSON", True),
        (AIMessage(content='{"number": ' + "[" * 100_000), "malformed JSON", False),
        (AIMessage(content='{"number": -4}'), "wrong schema: number: Input should be greater", False),
        (AIMessage(content="[4]"), "wrong schema: reply: ", False),
        (call({"number": 4}, name="Other"), "wrong schema: 'Other' is no call of Answer", False),
        (broken_call("{"), "malformed JSON: the arguments of Answer", False),
        (AIMessage(content='{"number": 4, "extra": {"x": "\\ud800"}}'), "holds half of a surrogate pair", False),
        (call({"number": 4, "extra": {"\udc00": 1}}), "holds half of a surrogate pair", False),
        (AIMessage(content='{"number": 4, "extra": {"x": 1e999}}'), "malformed JSON: Out of range float", False),
        (call({"number": 4, "extra": {"x": float("nan")}}), "malformed JSON: Out of range float", False),
        (AIMessage(content=json.dumps({"number": 4, "extra": {"x": "y" * LONGEST_REPLY}})), "more than 200000", False),
        (call({"number": 4, "extra": {"x": "y" * LONGEST_REPLY}}), "more than 200000", False),
        (broken_call("x" * LONGEST_REPLY * 2), "more than 200000", False),
    ],
)
def test_what_is_no_reply(message: AIMessage, told: str, prose: bool) -> None:
    with pytest.raises(Malformed) as caught:
        read_reply(Answer, message)
    assert told in str(caught.value)
    assert caught.value.prose is prose
    assert len(str(caught.value)) <= LONGEST_PROBLEM
    assert len(shown(message)) <= LONGEST_SHOWN


@settings(deadline=None)
@given(st.text(max_size=200), st.booleans())
def test_any_text_is_a_reply_or_malformed(text: str, as_call: bool) -> None:
    """No other exception, whatever a model writes."""
    with suppress(Malformed):
        read_reply(Answer, broken_call(text) if as_call else AIMessage(content=text))


@pytest.mark.slow
@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.recursive(st.integers() | st.text(), st.lists, max_leaves=5)))
def test_what_was_meant_arrives(extra: dict) -> None:
    meant = Answer(number=1, extra=extra)
    assert read_reply(Answer, AIMessage(content=meant.model_dump_json())) == meant
    assert read_reply(Answer, AIMessage(content=f"```json\n{meant.model_dump_json()}\n```")) == meant


def test_a_broken_megabyte_is_read_in_no_time() -> None:
    """A parser that mends broken JSON takes minutes for it."""
    started = time.monotonic()
    with pytest.raises(Malformed):
        read_reply(Answer, AIMessage(content='{"number": "' + "x" * 2**20))
    with pytest.raises(Malformed):
        read_reply(Answer, AIMessage(content='{"number": "' + "x," * (LONGEST_REPLY // 4)))
    assert time.monotonic() - started < 20
