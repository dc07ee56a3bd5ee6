"""The styles in which chat models write a reply: five schemas in twenty-one styles, and the papers' own formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from agents.chat.abstractor import ProposedTasks
from agents.chat.acting import NextCall, RunJudgement
from agents.chat.reflector import Reflection
from agents.chat.replies import Malformed, NextAction, read_reply


class Meant(NamedTuple):
    """A schema, what a model means, and that in the paper's format: its value, or a text without one."""

    schema: type[BaseModel]
    value: dict[str, Any]
    paper: str


FIGURE_11 = {
    "summary": 'It was asked to "load" the crate. It was refused.',
    "failure_cause": "The agent didn't insure it: {heavy} parcels need that.",
    "instability_pattern": "Right with light parcels.",
    "focus_pattern": ["insure_parcel, then load_parcel"],
    "exploration_objectives": ["Find out what insure_parcel takes."],
    "do_not_repeat": [],
}
PLACE = {
    "turn": 1,
    "action": 2,
    "cause": "unmet_precondition",
    "tool": "load_parcel",
    "how": "It was refused.",
    "explore": ["load_parcel"],
}
ACTION = {"tool": "insure_parcel", "arguments": {"label": 'the "red" crate', "euros": 200, "now": True, "note": None}}
CALL = "insure_parcel(label='the \"red\" crate', euros=200, now=True, note=None)"
BLOCK = f"""**Task 1**
- Description: a parcel is insured
- Query: Insure the "red" crate.
- Action sequence:
  1. {CALL}
  2. load_parcel(label='red crate')
"""
MEANT = [
    Meant(Reflection, FIGURE_11 | PLACE, json.dumps(FIGURE_11)),
    Meant(
        NextCall,
        {"purpose": "It's heavy: insure it.", **ACTION},
        f"It has to be insured {{first}}.\n<action>{CALL}</action>",
    ),
    Meant(NextAction, ACTION, f"It isn't insured yet.\n<action>{json.dumps(ACTION)}</action>"),
    Meant(
        ProposedTasks, {"tasks": [{"turns": [{"query": 'Insure the "red" crate, it\'s new.', "calls": [3, 4]}]}]}, BLOCK
    ),
    Meant(
        RunJudgement,
        {"reason": "It's insured: the answer {shows} it.", "success": True},
        "Success: true\nReason: It's insured, the answer shows it.",
    ),
]


def _as_texts(value: Any) -> Any:
    """The value with its numbers as texts."""
    if isinstance(value, dict):
        return {key: _as_texts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_as_texts(one) for one in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _written(meant: Meant, arguments: object) -> dict[str, object]:
    return {"name": meant.schema.__name__, "arguments": arguments}


STYLES: dict[str, Callable[[Meant, str], str]] = {
    "JSON": lambda meant, text: text,
    "fence first": lambda meant, text: f"```json\n{text}\n```",
    "fence without a language": lambda meant, text: f"```\n{text}\n```",
    "thinking, then JSON": lambda meant, text: f'<think>\nMaybe {{"tool": "x"? No.\n</think>\n\n{text}',
    "end of thinking, then JSON": lambda meant, text: f"It isn't {{so}}.\n</think>\n{text}",
    "thinking, prose, JSON": lambda meant, text: f"<think>Let's see.</think>\nHere's my answer:\n\n{text}",
    "field that nobody asked for": lambda meant, text: json.dumps(meant.value | {"confidence": 0.9}),
    "native call": lambda meant, text: "",
    "prose, then a fence": lambda meant, text: f"Here's what I found:\n\n```python\n{text}\n```",
    "prose around": lambda meant, text: f"Sure, that's {{easy}}: {text}. Let me know [if] it's right!",
    "prose after": lambda meant, text: f"{text}\n\nThis isn't certain, it's my best guess.",
    "call in tags": lambda meant, text: f"<tool_call>\n{json.dumps(_written(meant, meant.value))}\n</tool_call>",
    "call as text": lambda meant, text: json.dumps(_written(meant, meant.value), indent=2),
    "call as the protocol writes it": lambda meant, text: json.dumps(
        {"tool_calls": [{"id": "1", "type": "function", "function": _written(meant, text)}]}
    ),
    "commas at the end": lambda meant, text: json.dumps(meant.value, indent=1).replace("\n", ",\n").replace("{,", "{")
    .replace("[,", "[").replace(",,", ","),
    "Python": lambda meant, text: repr(meant.value),
    "numbers as texts": lambda meant, text: json.dumps(_as_texts(meant.value)),
    "list": lambda meant, text: f"[{text}]",
    "name": lambda meant, text: json.dumps({"FailureAnalysis": meant.value}),
    "the paper's": lambda meant, text: meant.paper,
    "cut off": lambda meant, text: text[: len(text) * 2 // 3],
}  # fmt: skip


def message_of(meant: Meant, style: str) -> dict[str, Any]:
    """The message of a reply as an endpoint sends it."""
    text = json.dumps(meant.value)
    if style == "native call":
        function = {"name": meant.schema.__name__, "arguments": text}
        return {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    return {"content": STYLES[style](meant, text)}


def read(meant: Meant, style: str) -> BaseModel:
    message = message_of(meant, style)
    calls = [
        {"name": one["function"]["name"], "args": json.loads(one["function"]["arguments"]), "id": "1"}
        for one in message.get("tool_calls", [])
    ]
    return read_reply(meant.schema, AIMessage(content=message["content"] or "", tool_calls=calls))


@pytest.mark.parametrize("style", [style for style in STYLES if style not in ("cut off", "the paper's")])
@pytest.mark.parametrize("meant", MEANT, ids=lambda meant: meant.schema.__name__)
def test_a_reply_is_read_in_whatever_style_it_is_written(meant: Meant, style: str) -> None:
    value = _as_texts(meant.value) if style == "numbers as texts" else meant.value
    assert read(meant, style) == meant.schema.model_validate(value)


@pytest.mark.parametrize("meant", MEANT, ids=lambda meant: meant.schema.__name__)
def test_a_reply_that_is_cut_off_is_refused_with_the_reason(meant: Meant) -> None:
    with pytest.raises(Malformed, match="malformed JSON: it breaks off"):
        read(meant, "cut off")


def test_the_papers_own_formats_are_read() -> None:
    reflection, step, action, tasks, judgement = (read(meant, "the paper's") for meant in MEANT)
    assert reflection.model_dump(include=set(FIGURE_11)) == FIGURE_11
    assert step.model_dump() == {"purpose": ""} | ACTION
    assert action == NextAction(**ACTION)
    second = {"tool": "load_parcel", "arguments": {"label": "red crate"}}
    turn = {"query": 'Insure the "red" crate.', "calls": [ACTION, second]}
    assert tasks.model_dump() == {"tasks": [{"turns": [turn]}]}
    assert judgement.model_dump() == {"reason": "It's insured, the answer shows it.", "success": True}


PIECES = (*"{}[]()\"'\\,:=1a\n ", "<action>f(", "Query:", "Actions: ", "Success: true\n", "Reason:", '{"name":', "None")


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), st.sampled_from(MEANT))
def test_any_text_is_a_reply_or_malformed(text: str, meant: Meant) -> None:
    """No other exception, whatever a model writes and in whatever a schema reads."""
    with suppress(Malformed):
        read_reply(meant.schema, AIMessage(content=text))
