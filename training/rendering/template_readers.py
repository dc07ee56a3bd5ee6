"""Readers of formats that are learnt from a model's files: its chat template, or the response template beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING

from pydantic import JsonValue

from environments.base import Action, MalformedCall, ToolCall
from environments.json_schema import argument_types, json_type
from training.rendering.base import EndTurn
from training.rendering.json_calls import Schema, call_of, read_json
from training.rendering.tool_calls import CLOSE_THINKING, OPEN_THINKING, Speech, opened, speech_of, without_call

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Write = Callable[[Sequence[ToolCall]], str]
"""Returns what a chat template writes for the calls of a message. Raises InputError where it cannot."""


class TaggedReader:
    """Reads calls whose name, keys and values are plain text between fixed pieces, as ``write`` shows them.

    White space around a piece is free, but for one line feed beside a value where the template writes it: the rest of
    the value's own is kept. A value ends where the pieces of its end and of what may follow it stand.
    """

    def __init__(self, opening: str, named: str, parameter: str, keyed: str, valued: str, close: str) -> None:
        follows = f"(?={_loose(parameter)}|{_loose(close)})"
        begins, ends = keyed[len(keyed.rstrip()) :], valued[: len(valued) - len(valued.lstrip())]
        self.opening = _loose(opening)
        self._name = re.compile(rf"{self.opening}\s*(?P<name>\S+?)\s*{_loose(named)}\s*{follows}")
        # A key that holds the piece behind it would be cut short: then the piece ends the line once more.
        begun = rf"(?:{re.escape(begins)}|(?![^\n]*{re.escape(keyed.strip())}{re.escape(begins)}))" if begins else ""
        self._parameter = re.compile(
            rf"{_loose(parameter)}(?>(?P<key>[^<>\n]+?){_loose(keyed)}){begun}"
            rf"(?P<value>(?s:.*?))(?:{re.escape(ends)})?{_loose(valued)}\s*{follows}"
        )
        self._close = re.compile(_loose(close))
        tags = re.findall(r"</?[^\s<>=/]+", "".join((opening, named, parameter, keyed, valued, close)))
        self._marks = re.compile("|".join(map(re.escape, sorted({*tags, opening.strip()}))))

    def read(self, message: str, stop: str, head: str, tools: Sequence[Schema]) -> tuple[Action, ...] | EndTurn:
        """See CallReader. Where one call is broken, or a piece is left over, the whole message is one MalformedCall."""
        text = opened(message, head)
        speech = speech_of(text, 0, self.opening, tools)
        if speech.call is None and not self._marks.search(speech.said + speech.unended):
            return without_call(speech, message, tools, self.opening)
        calls = []
        said = speech.said
        try:
            while speech.call is not None:
                call, end = self._call(text, speech.call, tools)
                calls.append(call)
                speech = speech_of(text, end, self.opening, tools)
                said += speech.said
            if found := self._marks.search(said + speech.unended):
                raise ValueError(f"{found[0]!r} belongs to no call")
        except ValueError as error:
            return (MalformedCall(text=message, reason=f"the tool call cannot be read: {error}"),)
        return tuple(calls)

    def _call(self, text: str, at: int, tools: Sequence[Schema]) -> tuple[ToolCall, int]:
        found = self._name.match(text, at)
        if found is None:
            raise ValueError("its name, or its end, is missing")
        name, at, arguments = found["name"], found.end(), dict[str, JsonValue]()
        schema: Schema = next(
            (one["function"].get("parameters", {}) for one in tools if one["function"]["name"] == name), {}
        )
        types = argument_types(schema)
        while given := self._parameter.match(text, at):
            if given["key"] in arguments:
                raise ValueError(f"{given['key']!r} is there twice")
            arguments[given["key"]] = _typed(given["value"], types(given["key"]))
            at = given.end()
        close = self._close.match(text, at)
        if close is None:
            raise ValueError("it does not end")
        return call_of({"name": name, "arguments": arguments}), close.end()


def tagged_reader(write: Write) -> TaggedReader | None:
    """Return a reader of what ``write`` writes, None where values are not plain text between fixed pieces."""
    name, keys, values = "NAMEx", ("KEYx", "KEYz"), ("VALUEx", "VALUEz")
    full, number, text = (
        write((ToolCall(name=name, arguments=arguments),))
        for arguments in (dict(zip(keys, values, strict=True)), {keys[0]: 3}, {keys[0]: "3"})
    )
    marks = "(.*?)".join((name, keys[0], values[0], keys[1], values[1]))
    found = re.fullmatch(f"(.*?){marks}(.*)", full, re.DOTALL)
    if found is None or number != text:
        return None
    opening, named, keyed, following, again, end = found.groups()
    opening = opening.rpartition(CLOSE_THINKING)[2].strip()
    shared = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(following, end, strict=False)))
    shared = re.sub(r"[^\s>]*\Z", "", shared)  # whole tags
    parameter, close = following[len(shared) :], end[len(shared) :]
    named = named.rstrip().removesuffix(parameter.strip())
    if again != keyed or not all(map(str.strip, (opening, parameter, keyed, shared, close))):
        return None
    return TaggedReader(opening, named, parameter, keyed, shared, close)


def _loose(piece: str) -> str:
    return r"\s*".join(map(re.escape, piece.split()))


def _typed(text: str, types: frozenset[str]) -> JsonValue:
    """Return the value of a type among ``types`` that the text is in JSON or a constant of Python, else the text."""
    plain = text.strip()
    if "boolean" in types and plain.lower() in ("true", "false"):
        return plain.lower() == "true"
    try:
        value = None if plain == "None" else read_json(plain)
    except ValueError:
        return text
    if isinstance(value, float) and value.is_integer() and "number" not in types:
        value = int(value)
    kind = json_type(value)
    return value if kind in types or (kind == "integer" and "number" in types) else text


class ResponseTemplateReader:
    """Reads the format of the tokenizer's ``response_template`` through transformers.

    ``write`` is what the chat template writes: it must write what was read with the characters that the message has.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, write: Write | None = None) -> None:
        self.tokenizer = tokenizer
        self._write = write

    def read(self, message: str, stop: str, head: str, tools: Sequence[Schema]) -> tuple[Action, ...] | EndTurn:
        """See CallReader. One broken call makes the whole message malformed: the parser returns nothing of it."""
        try:
            parsed = self.tokenizer.parse_response(message + stop, prefix=head)
            made = parsed.get("tool_calls") or ()
            made = [call.get("function", call) if isinstance(call, dict) else call for call in made]
            calls = tuple(call_of(read_json(json.dumps(call))) for call in made)  # as a record can hold it
            outside = message
            for key, text in parsed.items():
                if key not in ("content", "role", "tool_calls") and isinstance(text, str):
                    outside = outside.replace(text, "", 1)
            if self._write is not None:
                self._account(outside, calls)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return (MalformedCall(text=message, reason=f"the tool call cannot be read: {why}"),)
        said = str(parsed.get("content") or "").removesuffix(stop)
        return calls or without_call(Speech(said, None, ""), message, tools, "(?!)")

    def _account(self, text: str, calls: tuple[ToolCall, ...]) -> None:
        """Raise ValueError where the part of ``text`` with tags of calls is not what the template writes for ``calls``.

        White space, the order of arguments and the digits of numbers are free.
        """
        if _characters(self._part(text)) != (_characters(self._part(self._written(calls))) if calls else []):
            raise ValueError("it holds more than the calls that are read from it")

    def _part(self, text: str) -> str:
        places = [found.span() for found in self._tags.finditer(text)]
        return text[places[0][0] : places[-1][1]] if places else ""

    def _written(self, calls: Sequence[ToolCall]) -> str:
        assert self._write is not None
        return self._write(calls)

    @cached_property
    def _tags(self) -> re.Pattern[str]:
        """The tags that the template writes around a call."""
        text = self._written((ToolCall(name="NAMEx", arguments={"KEYx": "VALUEx", "KEYz": 3}),))
        tags = set(re.findall(r"<[^<>\s]*>|\[[A-Z_]+\]", text)) - {OPEN_THINKING, CLOSE_THINKING}
        return re.compile("|".join(map(re.escape, sorted(tags, key=len, reverse=True))) or r"\A.*\Z", re.DOTALL)


def _characters(text: str) -> list[str]:
    numbers = re.sub(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", lambda found: repr(float(found[0])), text)
    return sorted("".join(numbers.split()))


def response_template_reader(
    tokenizer: PreTrainedTokenizerBase, write: Write | None = None
) -> ResponseTemplateReader | None:
    """Return a reader for a tokenizer with a ``response_template``, or a chat template that TRL knows; else None."""
    if getattr(tokenizer, "response_template", None) is None:
        from trl.chat_template_utils import add_response_schema

        try:
            add_response_schema(tokenizer)
        except ValueError:
            return None
    return ResponseTemplateReader(tokenizer, write)
