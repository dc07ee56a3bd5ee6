"""Reading a message as a reply: tool calls, JSON in its text, and what is neither."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from pydantic import BaseModel, Field, JsonValue, model_validator

from agents.chat.replies import (
    DEEPEST,
    LONGEST_PROBLEM,
    LONGEST_REPLY,
    LONGEST_SHOWN,
    MOST_TRIED,
    Malformed,
    ValueReader,
    read_reply,
    shown,
)


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
        AIMessage(content='  \n{"number": 4}\n'),
        AIMessage(content='<think>{"number": 9}? No.</think>\n{"number": 4}'),
        AIMessage(content='It is nine? No.</think>```json\n{"number": 4}\n```'),
        AIMessage(content='{"number": 4, "extra": {"</think>": "```"}}'),
        AIMessage(content='Sure:\n{"number": 4, "extra": {"x": "use </think> {\'number\': 5} here"}}'),
        AIMessage(content='Sure:\n```json\n{"number": 4, "extra": {"x": "a <think>b</think> c"}}\n```'),
        AIMessage(content='Is it {"number": 9, "extra": {"x": "</think>"}}? No.</think>{"number": 4}'),
        AIMessage(content='Is it {"number": 9, ...}? No.</think>{"number": 4}'),
        AIMessage(content='I call Answer(number=9, extra="</think>")? No.</think>\n{"number": 4}'),
        AIMessage(content='{"number": 4} </think>'),
        AIMessage(content=[{"type": "text", "text": '{"number": 4}'}]),
        AIMessage(content='It was {"number": "unknown"}, so it is {"number": 4}; the tool answered {"error": "no"}.'),
        AIMessage(content='{"number": 4}\nAs JSON: ```{"number": 4}```'),
        AIMessage(
            content="{'number': 4, 'extra': {'it\\'s': '\\x41\\\\ \"\\n', \"b\": 'line\nline', 'c': [None, False,],},}"
        ),
        AIMessage(content='{"name": "Answer", "parameters": {"number": 4}}'),
        AIMessage(content='{"answers": [{"Answer": {"number": 4}}]}'),
        broken_call("{'number': 4,}"),
    ],
)
def test_replies(message: AIMessage) -> None:
    assert read_reply(Answer, message).number == 4


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (AIMessage(content=""), "malformed reply: it is empty"),
        (AIMessage(content="I think it is 4"), "malformed JSON"),
        (AIMessage(content='{"number": 4'), "malformed JSON"),
        (AIMessage(content='{"number": 4} {"number": 5}'), "several different objects in it fit"),
        (AIMessage(content="[" * 100_000), "malformed JSON"),
        (AIMessage(content='{"number": ' + "[" * 100_000), "malformed JSON"),
        (AIMessage(content='{"number": -4}'), "wrong schema: number: Input should be greater"),
        (AIMessage(content="[4]"), "malformed JSON: there is no JSON object in it"),
        (AIMessage(content='[{"number": 4}, {"number": 5}]'), "several different objects in it fit"),
        (AIMessage(content='{"name": "Other", "arguments": {"number": 4}}'), "'Other' is no call of Answer"),
        (AIMessage(content='{"name": "Answer", "arguments": "{"}'), "malformed JSON: it breaks off"),
        # What is inside a broken value is not the reply.
        (AIMessage(content='{"number": 4, "extra": {"number": 5}'), "malformed JSON: it breaks off"),
        (AIMessage(content='{"extra": {"x": "I read "{"number": 5}" there"}, "number": 4}'), "is wrong at"),
        (AIMessage(content='<think>Perhaps {"number": 4}'), "its thinking does not end"),
        (AIMessage(content='{"number": 4, "number": 5}'), "malformed JSON: 'number' is there twice"),
        (AIMessage(content='{"number": 4, "extra": {"x": NaN}}'), "malformed JSON: Out of range float"),
        (AIMessage(content='{"number": 4, "extra": {"x": -Infinity}}'), "malformed JSON: '-Infinity"),
        (AIMessage(content='{"number": 1' + "0" * 5000 + "}"), "malformed JSON: '1000"),
        (AIMessage(content='{"number": 4, "extra": {"x": __import__("os")}}'), "malformed JSON: '__import__"),
        (AIMessage(content='{"number": 4, "extra": ' + '{"x":' * DEEPEST), "nested more than 64 levels"),
        (AIMessage(content='{"x": 1} ' * (MOST_TRIED + 1)), "too many objects that do not fit"),
        (call({"number": 4}, name="Other"), "wrong schema: 'Other' is no call of Answer"),
        (broken_call("{"), "malformed JSON: it breaks off"),
        (AIMessage(content='{"number": 4, "extra": {"x": "\\ud800"}}'), "holds half of a surrogate pair"),
        (call({"number": 4, "extra": {"\udc00": 1}}), "holds half of a surrogate pair"),
        (AIMessage(content='{"number": 4, "extra": {"x": 1e999}}'), "malformed JSON: Out of range float"),
        (call({"number": 4, "extra": {"x": float("nan")}}), "malformed JSON: Out of range float"),
        (AIMessage(content=json.dumps({"number": 4, "extra": {"x": "y" * LONGEST_REPLY}})), "more than 200000"),
        (call({"number": 4, "extra": {"x": "y" * LONGEST_REPLY}}), "more than 200000"),
        (broken_call("x" * LONGEST_REPLY * 2), "more than 200000"),
    ],
)
def test_what_is_no_reply(message: AIMessage, told: str) -> None:
    with pytest.raises(Malformed) as caught:
        read_reply(Answer, message)
    assert told in str(caught.value)
    assert len(str(caught.value)) <= LONGEST_PROBLEM
    assert len(shown(message)) <= LONGEST_SHOWN


@pytest.mark.slow
@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.recursive(st.integers() | st.text(), st.lists, max_leaves=5)))
def test_what_was_meant_arrives(extra: dict) -> None:
    meant = Answer(number=1, extra=extra)
    assert read_reply(Answer, AIMessage(content=meant.model_dump_json())) == meant
    assert read_reply(Answer, AIMessage(content=f"```json\n{meant.model_dump_json()}\n```")) == meant


PIECES = (*"{}[]\"'\\,:()= \n1a", "<think>", '{"a":', "```", "f(")


@given(st.lists(st.sampled_from(PIECES), max_size=80).map("".join), st.sampled_from(["{}", "1", '["x"]']))
def test_a_text_is_read_in_one_pass(text: str, value: str) -> None:
    """No character is read twice, whatever is broken, which is why the time is linear."""
    reader = ValueReader(text * 3 + value)
    with suppress(Malformed):
        list(reader.objects())
    assert reader.steps <= len(text * 3 + value) + 1


@pytest.mark.parametrize("text", ['{"x": 1} ' * 20_000, f"[{'[{}], ' * 20_000}{{}}]", f"[{'{}, ' * 40_000}]"])
def test_few_values_of_many_are_held_against_the_schema(text: str) -> None:
    tried = []

    class Counting(Answer):
        """An answer."""

        @model_validator(mode="before")
        @classmethod
        def _count(cls, value: object) -> object:
            tried.append(value)
            return value

    with pytest.raises(Malformed):
        read_reply(Counting, AIMessage(content=text))
    assert len(tried) <= MOST_TRIED
