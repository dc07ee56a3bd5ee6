"""Tools and their calls as chat models write them: schemas as input, the calls of a sampled message as output.

What is read can be written to a record again. Reading is the inverse of writing: what a string of a call spells is
text, and what cannot be read for certain is malformed, with the reason. Six readers, of which a rendering takes the
first one that reads its template's own call:

- ``HermesReader``: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Qwen2.5, Qwen3), call by call, so
  that one broken call does not hide its neighbours. A block ends where its JSON ends.
- ``PythonicReader``: a list of calls in Python.
- ``JsonReader``: one JSON object (Llama 3).
- ``TaggedReader``: tags around values in plain text (Qwen3.5, Nemotron 3, GLM), learnt from what the template writes.
  The tools' schemas say which values are not strings.
- ``HarmonyReader``: the channels of gpt-oss, several messages up to a call.
- ``ResponseTemplateReader``: any other format, by the parser of transformers, which follows the tokenizer's
  ``response_template`` (a model's own, or TRL's). The calls are written again and must account for the message.

Thinking is left out in front of a call only. Thinking that does not end hides what follows it, and makes a message with
a call in it malformed. A message without a call ends the turn, unless it looks like a call of any format.

A list, ``[cd(folder="document"), ls()]``, is the format of BFCL's own prompt, of Llama 4 and, between tags, of LFM2. It
counts at the beginning of a line: ``[``, a name and ``(``, and reaches to the end of the message, a code fence aside.
Arguments are literals, JSON's true, false and null among them; positional ones have the parameters' names in the order
of the documentation. The rules are ours.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Protocol

from environments.base import Action, MalformedCall, ToolCall
from environments.python_calls import call_of as python_call
from environments.python_calls import expression
from training.rendering.base import EndTurn
from training.rendering.code_blocks import block_action, block_text, takes_blocks
from training.rendering.json_calls import (
    ARGUMENTS,
    DUMMY_TOOL,
    Documentation,
    Message,
    Schema,
    call_id,
    call_message,
    call_of,
    read_json,
    read_json_at,
    tool_call,
    tool_schema,
)

__all__ = [
    "DUMMY_TOOL",
    "MAX_CHARACTERS",
    "MOST_CALLS",
    "CallReader",
    "Documentation",
    "HarmonyReader",
    "HermesReader",
    "JsonReader",
    "Message",
    "PythonicReader",
    "Schema",
    "behind_thinking",
    "block_action",
    "block_text",
    "call_id",
    "call_message",
    "call_of",
    "read_json",
    "read_json_at",
    "takes_blocks",
    "tool_call",
    "tool_schema",
]

OPEN_THINKING, CLOSE_THINKING = "<think>", "</think>"
_HERMES, _HERMES_END = "<tool_call>", "</tool_call>"
_LIST, _LIST_END = "<|tool_call_start|>", "<|tool_call_end|>"
_PYTHON_TAG = "<|python_tag|>"
_HARMONY_END = "<|end|>"
_HEADER = re.compile(
    r"\s*(?:<\|start\|>)?(?:assistant)?\s*(?:to=(?P<to>[^\s<]+))?\s*<\|channel\|>\s*(?P<channel>\w+)"
    r"\s*(?:to=(?P<for>[^\s<]+))?\s*(?:<\|constrain\|>)?\w*\s*<\|message\|>"
)
_KEYS = r"""["'](?:tool|function|tool_calls?|(?:tool_|function_)?(?:name|args|arguments|parameters))["']\s*:"""
_LIKE_A_CALL = re.compile(
    r"(?i:</?tool_calls?\b|<function=|<\|tool_call|<\|python_tag\|>|\[TOOL_CALLS\]|\bto=functions\.)"
    r"|\A\s*(?:\[\s*[^\W\d][\w.]*\((?:\w+\s*=|\)\s*[],])|call:\w+\{)"
    rf"|\A[\s\[]*+(?:```\w*+[\s\[]*+)?\{{(?=(?s:.*?){_KEYS})"
    r"""|\{\s*"(?:name"\s*:\s*"[^"]*"\s*,\s*"(?:arguments|parameters|args)"|(?:arguments|parameters)"\s*:\s*\{)"""
)
"""What is in a message that should be a call: an opening of any known format, or JSON with the keys of a call."""

MAX_CHARACTERS = 20_000
"""Characters of a list of calls (our choice): a longer one is malformed."""

MOST_CALLS = 200
"""Calls of one message (our choice), far above what an episode allows in a user turn."""

_LINE = rf"(?:^|(?<={CLOSE_THINKING}))[ \t]*"
_BEGIN = rf"(?:{_LINE}|<\|tool_call_start\|>\s*)\[\s*[^\W\d][\w.]*\s*\("
_SPACE = re.compile(r"\s*")
_OBJECT = r'\{\s*"(?:name|type|id|function|arguments|parameters|args)"\s*:'


class CallReader(Protocol):
    """Reads the actions of an assistant message."""

    def read(self, message: str, stop: str, head: str, tools: Sequence[Schema]) -> tuple[Action, ...] | EndTurn:
        """Return the calls of ``message`` in their order, or the end of the turn when it has none.

        ``message`` is the sampled text without the token ``stop`` that ended it; ``head`` is the text rendered before
        it, whose end may have opened a thinking block; ``tools`` are the schemas of the tools at hand.
        """
        ...


@cache
def _events(opening: str, blocks: bool) -> re.Pattern[str]:
    fence = rf"|(?P<fence>{_LINE}(?P<ticks>`{{3,}})[ \t]*\w*[ \t]*\r?$(?s:.*?)(?:^[ \t]*(?P=ticks)`*[ \t]*\r?$|\Z))"
    return re.compile(f"(?P<thinking>{OPEN_THINKING})|(?P<call>{opening}){fence if blocks else ''}", re.MULTILINE)


class Speech(NamedTuple):
    """What a message says up to a call: ``said``, without thinking; where the call begins, or ``unended`` thinking."""

    said: str
    call: int | None
    unended: str


def speech_of(text: str, at: int, opening: str, tools: Sequence[Schema]) -> Speech:
    """Read ``text`` from ``at`` up to the next ``opening``. Blocks of code are text, whatever their strings spell."""
    events, said = _events(opening, takes_blocks(tools)), ""
    while found := events.search(text, at):
        said += text[at : found.start()]
        at = found.end()
        if found["call"] is not None:
            return Speech(said, found.start(), "")
        if found["thinking"] is None:
            said += found[0]
            continue
        end = text.find(CLOSE_THINKING, at)
        if end < 0:
            return Speech(said, None, text[at:])
        at = end + len(CLOSE_THINKING)
    return Speech(said + text[at:], None, "")


def behind_thinking(text: str, tools: Sequence[Schema]) -> str:
    """Return what follows the thinking of an endpoint's message, whose opening tag may have been cut off."""
    speech = speech_of(text, 0, CLOSE_THINKING, tools)
    return text if speech.call is None else text[speech.call + len(CLOSE_THINKING) :]


def opened(message: str, head: str) -> str:
    """Return the message with the tag of the thinking block that ``head``, the text before it, has opened."""
    return OPEN_THINKING + message if head.rstrip().endswith(OPEN_THINKING) else message


def without_call(speech: Speech, message: str, tools: Sequence[Schema], opening: str) -> tuple[Action, ...] | EndTurn:
    """Return the end of the turn for a message without an ``opening``, a MalformedCall where it looks like a call."""
    said = speech.said.strip()
    if _LIKE_A_CALL.search(speech.unended) or re.search(opening, speech.unended, re.MULTILINE):
        return (MalformedCall(text=message, reason="the tool call is in thinking that does not end"),)
    if (found := _LIKE_A_CALL.search(said)) and not (takes_blocks(tools) and block_action(said)):
        reason = f"the message looks like a tool call, which cannot be read: it holds {found[0].strip()[:40]!r}"
        return (MalformedCall(text=message, reason=reason),)
    return EndTurn(text=said)


class HermesReader:
    """Reads ``<tool_call>`` blocks of JSON."""

    def read(self, message: str, stop: str, head: str, tools: Sequence[Schema]) -> tuple[Action, ...] | EndTurn:
        """See CallReader. A block that is not a call is a MalformedCall of its own.

        Where a broken block ends is not certain: unless nothing but blocks follows it, the whole message is malformed.
        """
        text = opened(message, head)
        speech = speech_of(text, 0, _HERMES, tools)
        if speech.call is None:
            return without_call(speech, message, tools, _HERMES)
        found: list[ToolCall | tuple[str, str]] = []
        while speech.call is not None:
            begin = speech.call + len(_HERMES)
            read, at = _read_block(text, begin)
            found.append(read)
            speech = speech_of(text, at, _HERMES, tools)
            reasons = [one[1] for one in found if not isinstance(one, ToolCall)]
            if _HERMES in speech.unended:
                reasons.append("a tool call is in thinking that does not end")
            if reasons and (speech.said.strip() or speech.unended):
                return (MalformedCall(text=message, reason=reasons[0]),)
        return tuple(
            one
            if isinstance(one, ToolCall)
            else MalformedCall(text=message if len(found) == 1 else one[0], reason=one[1])
            for one in found
        )


def _read_block(text: str, begin: int) -> tuple[ToolCall | tuple[str, str], int]:
    """Return the call of the block whose inside begins at ``begin``, or its text and why it is none; and its end."""
    try:
        content, end = read_json_at(text, _after_space(text, begin))
    except ValueError:
        content, end = None, begin
    close = text.find(_HERMES_END, end)
    inside = text[begin : close if close >= 0 else None]
    after = close + len(_HERMES_END) if close >= 0 else len(text)
    try:
        # The inside is read alone where it is broken: reasons count their places from its beginning.
        broken = content is None or text[end : begin + len(inside)].strip()
        return call_of(read_json(inside.strip()) if broken else content), after
    except ValueError as error:
        return (inside, str(error)), after


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


class PythonicReader:
    """Reads a list of calls in Python."""

    def read(self, message: str, stop: str, head: str, tools: Sequence[Schema]) -> tuple[Action, ...] | EndTurn:
        """See CallReader. A list that is not Python is one MalformedCall, a part that is not a call one of its own."""
        whole = opened(message, head)
        speech = speech_of(whole, 0, _BEGIN, tools)
        if speech.call is None:
            return without_call(speech, message, tools, _BEGIN)
        text = whole[speech.call :]
        if takes_blocks(tools) and block_action(speech.said + text) is not None:
            return EndTurn(text=(speech.said + text).strip())
        text = text.strip()
        try:
            if text.startswith(_LIST):
                text = _untagged(text)
            text = text.strip("` \t\r\n")
            if len(text) > MAX_CHARACTERS:
                raise ValueError(f"the list of calls is longer than {MAX_CHARACTERS} characters")
            tree = expression(text)
            if not isinstance(tree, ast.List):
                raise ValueError("the message is not one list of calls, as in [name(parameter=value)]")
            if len(tree.elts) > MOST_CALLS:
                raise ValueError(f"the list has more than {MOST_CALLS} calls")
        except ValueError as error:
            return (MalformedCall(text=message, reason=str(error)),)
        parameters = {tool["function"]["name"]: tuple(tool["function"]["parameters"]["properties"]) for tool in tools}
        shown = message if len(tree.elts) == 1 else None
        return tuple(
            _listed(node, text, shown or ast.get_source_segment(text, node) or text, parameters) for node in tree.elts
        )


def _untagged(text: str) -> str:
    """Return the list between LFM2's tags, whose strings are written as they are. Raises ValueError."""
    inside, closed, behind = text.removeprefix(_LIST).rpartition(_LIST_END)
    if closed and (found := _LIKE_A_CALL.search(behind)):
        raise ValueError(f"the message goes on with {found[0]!r} after its calls")
    listed = inside if closed else behind
    if "\\" in listed:  # the template escapes nothing, Python reads an escape
        raise ValueError("a backslash in the list of calls can be read in two ways")
    return listed


def _listed(node: ast.expr, source: str, text: str, parameters: dict[str, tuple[str, ...]]) -> ToolCall | MalformedCall:
    """Return the call that a part of the list is; ``text`` is what a MalformedCall shows."""
    try:
        call = tool_call(*python_call(node, parameters.get))
        # Python writes names in another form of Unicode (NFKC): such a name is not the one in the message.
        for part in ast.walk(node):
            name = part.arg if isinstance(part, ast.keyword) else part.id if isinstance(part, ast.Name) else None
            if name and not (ast.get_source_segment(source, part) or "").startswith(name):
                raise ValueError(f"the name {name!r} is written in other characters")
        return call
    except ValueError as error:
        return MalformedCall(text=text, reason=str(error))


class JsonReader:
    """Reads a message that is one call as a JSON object, with ``<|python_tag|>`` or words before it."""

    def read(self, message: str, stop: str, head: str, tools: Sequence[Schema]) -> tuple[Action, ...] | EndTurn:
        """See CallReader. A message with more than one call, or with text behind it, is one MalformedCall."""
        text = opened(message, head)
        speech = speech_of(text, 0, _OBJECT, tools)
        if speech.call is None:
            return without_call(speech, message, tools, _OBJECT)
        before = speech.said.replace(_PYTHON_TAG, "").strip()
        try:
            content, end = read_json_at(text, speech.call)
            keys = content.keys() if isinstance(content, dict) else set[str]()
            if not keys & {*ARGUMENTS, "function"} and (before or "name" not in keys):
                return without_call(Speech(speech.said + text[speech.call :], None, ""), message, tools, _OBJECT)
            if before.endswith("[") or text[end:].strip():
                raise ValueError("the message goes on after its call: write one call and nothing behind it")
            return (call_of(content),)
        except ValueError as error:
            return (MalformedCall(text=message, reason=f"the tool call cannot be read: {error}"),)


class HarmonyReader:
    """Reads gpt-oss's channels: thinking in ``analysis``, one call to ``functions.NAME``, or a ``final`` message."""

    def read(self, message: str, stop: str, head: str, tools: Sequence[Schema]) -> tuple[Action, ...] | EndTurn:
        """See CallReader. The message ends the turn in the channel ``final`` alone."""
        at = 0
        try:
            while header := _HEADER.match(message, at):
                to = header["to"] or header["for"] or ""
                if name := to.removeprefix("functions.") if to.startswith("functions.") else "":
                    arguments, end = read_json_at(message, _after_space(message, header.end()))
                    if message[end:].strip():
                        raise ValueError("the message goes on after its call")
                    return (call_of({"name": name, "arguments": arguments}),)
                if to:
                    raise ValueError(f"it is sent to {to!r:.60}, not to functions.NAME")
                end = message.find(_HARMONY_END, header.end())
                body = message[header.end() : end if end >= 0 else None]
                if header["channel"] == "final":
                    if end >= 0 and message[end + len(_HARMONY_END) :].strip():
                        raise ValueError("the message goes on after its channel final")
                    return EndTurn(text=body.strip())
                at = end + len(_HARMONY_END) if end >= 0 else len(message)
            raise ValueError("it has neither a call to functions.NAME nor a message in the channel final")
        except ValueError as error:
            return (MalformedCall(text=message, reason=f"the tool call cannot be read: {error}"),)
