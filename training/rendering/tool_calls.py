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

``block_action`` reads a fenced block of Python as an action, AppWorld's way to act without a tool call, where the tool
``python`` requires one text, its ``code``, and nothing else. The rule (ours; the benchmark's own agents differ): a
block begins at a line of three or more backticks and ``python`` or ``py``, and ends at the next line of as many
backticks, or with the message; common indentation is removed. Two blocks are a malformed action and none of them runs:
the second was written before the first one's output was seen.
"""

from __future__ import annotations

import ast
import json
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from pydantic import JsonValue, ValidationError

from environments.base import Action, MalformedCall, Parameter, ToolCall, ToolSpec
from environments.json_schema import argument_types, json_type
from environments.python_calls import call_of as python_call
from environments.python_calls import expression
from training.rendering.base import EndTurn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_OPEN_THINKING, _CLOSE_THINKING = "<think>", "</think>"
_HERMES, _HERMES_END = "<tool_call>", "</tool_call>"
_LIST, _LIST_END = "<|tool_call_start|>", "<|tool_call_end|>"
_PYTHON_TAG = "<|python_tag|>"
_HARMONY_END = "<|end|>"
_HEADER = re.compile(
    r"\s*(?:<\|start\|>)?(?:assistant)?\s*(?:to=(?P<to>[^\s<]+))?\s*<\|channel\|>\s*(?P<channel>\w+)"
    r"\s*(?:to=(?P<for>[^\s<]+))?\s*(?:<\|constrain\|>)?\w*\s*<\|message\|>"
)
_ARGUMENTS = ("arguments", "parameters", "args")
_LIKE_A_CALL = re.compile(
    r"""</?tool_call\b|<function=|<\|tool_call|<\|python_tag\|>|\[TOOL_CALLS\]|\bto=functions\."""
    r"""|\A[\s\[]*+(?:```\w*+[\s\[]*+)?\{(?=(?s:.*?)["'](?:name|function)["']\s*:)"""
)
"""What is in a message that should be a call: an opening of any known format, or JSON with a name at the beginning."""
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string", "code": "string"}

MAX_CHARACTERS = 20_000
"""Characters of a list of calls (our choice): a longer one is malformed."""

MOST_CALLS = 200
"""Calls of one message (our choice), far above what an episode allows in a user turn."""

_LINE = rf"(?:^|(?<={_CLOSE_THINKING}))[ \t]*"
_BEGIN = rf"(?:{_LINE}|<\|tool_call_start\|>\s*)\[\s*[^\W\d][\w.]*\s*\("
_SPACE = re.compile(r"\s*")
_OBJECT = r'\{\s*"(?:name|type|id|function|arguments|parameters|args)"\s*:'

Schema = dict[str, Any]
Message = dict[str, Any]
Documentation = Schema | str
"""A tool as a prompt documents it: as a function schema, or as one line."""


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
    return re.compile(f"(?P<thinking>{_OPEN_THINKING})|(?P<call>{opening}){fence if blocks else ''}", re.MULTILINE)


class _Speech(NamedTuple):
    """What a message says up to a call: ``said``, without thinking; where the call begins, or ``unended`` thinking."""

    said: str
    call: int | None
    unended: str


def _speech(text: str, at: int, opening: str, tools: Sequence[Schema]) -> _Speech:
    """Read ``text`` from ``at`` up to the next ``opening``. Blocks of code are text, whatever their strings spell."""
    events, said = _events(opening, takes_blocks(tools)), ""
    while found := events.search(text, at):
        said += text[at : found.start()]
        at = found.end()
        if found["call"] is not None:
            return _Speech(said, found.start(), "")
        if found["thinking"] is None:
            said += found[0]
            continue
        end = text.find(_CLOSE_THINKING, at)
        if end < 0:
            return _Speech(said, None, text[at:])
        at = end + len(_CLOSE_THINKING)
    return _Speech(said + text[at:], None, "")


def _opened(message: str, head: str) -> str:
    """Return the message with the tag of the thinking block that ``head``, the text before it, has opened."""
    return _OPEN_THINKING + message if head.rstrip().endswith(_OPEN_THINKING) else message


def _without_call(speech: _Speech, message: str, tools: Sequence[Schema]) -> tuple[Action, ...] | EndTurn:
    """Return the end of the turn for a message without a call, a MalformedCall where it looks like one."""
    said = speech.said.strip()
    if _LIKE_A_CALL.search(speech.unended):
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
        text = _opened(message, head)
        speech = _speech(text, 0, _HERMES, tools)
        if speech.call is None:
            return _without_call(speech, message, tools)
        found: list[ToolCall | tuple[str, str]] = []
        broken = False
        while speech.call is not None:
            begin = speech.call + len(_HERMES)
            read, at = _read_block(text, begin)
            found.append(read)
            speech = _speech(text, at, _HERMES, tools)
            broken = broken or not isinstance(read, ToolCall)
            if broken and (speech.said.strip() or _HERMES in speech.unended):
                reason = next(one[1] for one in found if not isinstance(one, ToolCall))
                return (MalformedCall(text=message, reason=reason),)
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
        whole = _opened(message, head)
        speech = _speech(whole, 0, _BEGIN, tools)
        if speech.call is None:
            return _without_call(speech, message, tools)
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
        text = _opened(message, head)
        speech = _speech(text, 0, _OBJECT, tools)
        if speech.call is None:
            return _without_call(speech, message, tools)
        before = speech.said.replace(_PYTHON_TAG, "").strip()
        try:
            content, end = read_json_at(text, speech.call)
            keys = content.keys() if isinstance(content, dict) else set[str]()
            if not keys & {*_ARGUMENTS, "function"} and (before or "name" not in keys):
                return _without_call(_Speech(speech.said + text[speech.call :], None, ""), message, tools)
            if before.endswith("[") or text[end:].strip():
                raise ValueError("the message goes on after its call: write one call and nothing behind it")
            return (call_of(content),)
        except ValueError as error:
            return (MalformedCall(text=message, reason=f"the tool call cannot be read: {error}"),)


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
        self._parameter = re.compile(
            rf"{_loose(parameter)}(?>(?P<key>(?s:.+?)){_loose(keyed)})(?:{re.escape(begins)})?"
            rf"(?P<value>(?s:.*?))(?:{re.escape(ends)})?{_loose(valued)}\s*{follows}"
        )
        self._close = re.compile(_loose(close))
        tags = re.findall(r"</?[^\s<>=/]+", "".join((opening, named, parameter, keyed, valued, close)))
        self._marks = re.compile("|".join(map(re.escape, sorted({*tags, opening.strip()}))))

    def read(self, message: str, stop: str, head: str, tools: Sequence[Schema]) -> tuple[Action, ...] | EndTurn:
        """See CallReader. Where one call is broken, or a piece is left over, the whole message is one MalformedCall."""
        text = _opened(message, head)
        speech = _speech(text, 0, self.opening, tools)
        if speech.call is None and not self._marks.search(speech.said + speech.unended):
            return _without_call(speech, message, tools)
        calls = []
        said = speech.said
        try:
            while speech.call is not None:
                call, end = self._call(text, speech.call, tools)
                calls.append(call)
                speech = _speech(text, end, self.opening, tools)
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
        schema = next((one["function"].get("parameters", {}) for one in tools if one["function"]["name"] == name), {})
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
    opening = opening.rpartition(_CLOSE_THINKING)[2].strip()
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
                    return _without_call(_Speech(body, None, ""), message, tools)
                at = end + len(_HARMONY_END) if end >= 0 else len(message)
            raise ValueError("it has neither a call to functions.NAME nor a message in the channel final")
        except ValueError as error:
            return (MalformedCall(text=message, reason=f"the tool call cannot be read: {error}"),)


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
        return calls or _without_call(_Speech(said, None, ""), message, tools)

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
        tags = set(re.findall(r"<[^<>\s]*>|\[[A-Z_]+\]", text)) - {_OPEN_THINKING, _CLOSE_THINKING}
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


def call_of(content: JsonValue) -> ToolCall:
    """Return the call that a value read from JSON is. Raises ValueError for one that is not a call.

    OpenAI's form, with the call under ``function``, is one, too. Arguments may be a JSON text of an object. Any other
    key is refused, because it may be an argument.
    """
    beside = {"id", "index", "type"}
    while isinstance(content, dict) and isinstance(content.get("function"), dict):
        _refuse_keys(content, {*beside, "function"})
        content, beside = content["function"], set()
    if not isinstance(content, dict):
        raise ValueError("the tool call is no JSON object")
    name = content.get("name")
    if not isinstance(name, str):
        raise ValueError("the tool call has no name")
    _refuse_keys(content, {*beside, "name", *_ARGUMENTS})
    given = [_arguments(content[key]) for key in _ARGUMENTS if content.get(key) is not None]
    if len({json.dumps(one, sort_keys=True) for one in given}) > 1:
        raise ValueError("the tool call has two different objects of arguments")
    return tool_call(name, given[0] if given else {})


def _refuse_keys(content: dict[str, JsonValue], known: set[str]) -> None:
    if unknown := content.keys() - known:
        raise ValueError(f"the tool call has the key {min(unknown)!r:.60}: arguments belong under 'arguments'")
    if content.get("type", "function") != "function":
        raise ValueError(f"the tool call is of the type {content['type']!r:.60}, not 'function'")


def _arguments(value: JsonValue) -> dict[str, JsonValue]:
    if isinstance(value, str):
        try:
            value = read_json(value.strip())
        except ValueError as error:
            raise ValueError(f"the arguments of the tool call are a text that is no JSON object: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("the arguments of the tool call are no JSON object")
    return value


def call_id(place: int) -> str:
    """Return the id of a message's call: nine letters and digits, as Mistral's templates require."""
    return f"call{place:05d}"


def call_message(place: int, name: str, arguments: dict[str, Any] | str) -> Message:
    """Return a call as an entry of an assistant message's ``tool_calls``."""
    return {"id": call_id(place), "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_schema(tool: ToolSpec) -> Schema:
    """Return the tool as an OpenAI-style function schema, as chat templates expect it."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.json_schema
            or {
                "type": "object",
                "properties": {parameter.name: _schema(parameter) for parameter in tool.parameters},
                "required": [parameter.name for parameter in tool.parameters if parameter.required],
            },
        },
    }


def _schema(parameter: Parameter) -> Schema:
    schema: Schema = {
        "type": _JSON_TYPES.get(parameter.type, parameter.type),
        "description": parameter.description,
    }
    if parameter.default is not None:
        schema["default"] = parameter.default
    choices = {"enum": list(parameter.choices)} if parameter.choices else {}
    if parameter.type == "array":
        items = parameter.items or "string"
        return schema | {"items": {"type": _JSON_TYPES.get(items, items)} | choices}
    return schema | choices


DUMMY_TOOL = tool_schema(
    ToolSpec(
        name="get_weather",
        description="the weather of the next days",
        group="",
        parameters=(
            Parameter(name="city", type="string", description="city", required=True),
            Parameter(name="days", type="integer", description="days", required=False),
        ),
    )
)
"""The tool of dummy conversations: some models have a template of their own for conversations with tools."""

TOOL = "python"
_CODE = "code"
_OPENING = re.compile(r"[ \t]*(?P<fence>`{3,})[ \t]*(?P<language>\w*)[ \t]*")
_LANGUAGES = frozenset({"python", "py"})


def takes_blocks(tools: Sequence[Mapping[str, Any]]) -> bool:
    """Report whether blocks count with these tools, given as OpenAI-style function schemas."""
    for tool in tools:
        function = tool["function"]
        parameters = function.get("parameters", {})
        if function["name"] == TOOL and parameters.get("required") == [_CODE]:
            return bool(parameters["properties"][_CODE].get("type") == "string")
    return False


def block_action(text: str) -> Action | None:
    """Return the action of the text's block, or None for a text without one."""
    blocks = list(_blocks(text))
    if not blocks:
        return None
    if len(blocks) > 1:
        reason = f"{len(blocks)} blocks of Python in one message, nothing was run: write one and read what it prints"
        return MalformedCall(text=text, reason=reason)
    return ToolCall(name=TOOL, arguments={_CODE: blocks[0]})


def block_text(call: ToolCall) -> str:
    """Return the block of Python that ``block_action`` reads as ``call``."""
    return f"```python\n{call.arguments.get(_CODE, '')}\n```"


def _blocks(text: str) -> Iterator[str]:
    lines = iter(text.split("\n"))
    for line in lines:
        opening = _OPENING.fullmatch(line.rstrip("\r"))
        if opening is None:
            continue
        closing = re.compile(rf"[ \t]*`{{{len(opening['fence'])},}}[ \t]*\r?")
        code = []
        for inside in lines:
            if closing.fullmatch(inside):
                break
            code.append(inside.rstrip("\r"))
        if opening["language"].lower() in _LANGUAGES:
            yield textwrap.dedent("\n".join(code))


def read_json_at(text: str, at: int = 0) -> tuple[JsonValue, int]:
    """Return the JSON value that starts at ``at``, and the index of its end.

    Raises ValueError for text that is not JSON, and for values that Python reads but no record can hold: NaN,
    infinities, numbers that overflow, half of a surrogate pair, nesting beyond the parser's depth.
    """
    try:
        value, end = _DECODER.raw_decode(text, at)
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None
    if "\\u" in text[at:end].lower():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("the value holds half of a surrogate pair") from None
    return value, end


def read_json(text: str) -> JsonValue:
    """Return the JSON value of the whole ``text``. Raises ValueError like ``read_json_at``, and for text after it."""
    value, end = read_json_at(text)
    if end < len(text):
        raise ValueError(f"the tool call goes on after its JSON: {text[end : end + 12]!r}")
    return value


def tool_call(name: str, arguments: dict[str, JsonValue]) -> ToolCall:
    """Return a call. Raises ValueError when the arguments are nested deeper than a record can be."""
    try:
        return ToolCall(name=name, arguments=arguments)
    except ValidationError:
        raise ValueError("the arguments are nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("the number is too large")
    return number


def _distinct(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_distinct)
