"""Tools and their calls as chat models write them: schemas as input, the calls of a sampled message as output.

What is read can be written to a record again. Three readers: ``HermesReader`` reads
``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Qwen2.5, Qwen3, Hermes), call by call, so that one broken
call does not hide its neighbours. ``PythonicReader`` reads a list of calls in Python. ``ResponseTemplateReader`` leaves
any other format to the parser of transformers, which follows the tokenizer's ``response_template`` (a model's own, or
TRL's).

A list, ``[cd(folder="document"), ls()]``, is the format of BFCL's own prompt and of Llama 4. It counts at the beginning
of a line: ``[``, a name and ``(``, and reaches to the end of the message, a code fence aside. Arguments are literals,
JSON's true, false and null among them; positional ones have the parameters' names in the order of the documentation. A
message without a list ends the turn. The rules are ours.

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
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from pydantic import JsonValue, ValidationError

from environments.base import Action, MalformedCall, Parameter, ToolCall, ToolSpec
from environments.json_schema import shown_schema
from environments.python_calls import call_of as python_call
from environments.python_calls import expression
from training.rendering.base import EndTurn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_OPEN_THINKING = "<think>"
_THINKING = re.compile(r"<think>.*?(?:</think>|$)", re.DOTALL)
_TOOL_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string", "code": "string"}

MAX_CHARACTERS = 20_000
"""Characters of a list of calls (our choice): a longer one is malformed."""

MOST_CALLS = 200
"""Calls of one message (our choice), far above what an episode allows in a user turn."""

_BEGIN = re.compile(r"^[ \t]*\[\s*[^\W\d][\w.]*\s*\(", re.MULTILINE)

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


class HermesReader:
    """Reads ``<tool_call>`` blocks of JSON."""

    def read(self, message: str, stop: str, head: str, tools: Sequence[Schema]) -> tuple[Action, ...] | EndTurn:
        """See CallReader. Thinking is left out; a block that is not a call is a MalformedCall of its own."""
        said = without_thinking(message, head)
        blocks = _TOOL_CALL.findall(said)
        if not blocks:
            return EndTurn(text=said.strip())
        return tuple(_read_block(block, message if len(blocks) == 1 else block) for block in blocks)


def without_thinking(message: str, head: str) -> str:
    """Return ``message`` without its thinking; ``head``, the text before it, may have opened the block."""
    opened = _OPEN_THINKING if head.rstrip().endswith(_OPEN_THINKING) else ""
    return _THINKING.sub("", opened + message)


class PythonicReader:
    """Reads a list of calls in Python."""

    def read(self, message: str, stop: str, head: str, tools: Sequence[Schema]) -> tuple[Action, ...] | EndTurn:
        """See CallReader. A list that is not Python is one MalformedCall, a part that is not a call one of its own."""
        said = without_thinking(message, head)
        begin = _BEGIN.search(said)
        if begin is None or (takes_blocks(tools) and block_action(said) is not None):
            return EndTurn(text=said.strip())
        text = said[begin.start() :].strip("` \t\r\n")
        try:
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
        whole = message if len(tree.elts) == 1 else None
        return tuple(
            _listed(node, whole or ast.get_source_segment(text, node) or text, parameters) for node in tree.elts
        )


def _listed(node: ast.expr, text: str, parameters: dict[str, tuple[str, ...]]) -> ToolCall | MalformedCall:
    """Return the call that a part of the list is; ``text`` is what a MalformedCall shows."""
    try:
        return tool_call(*python_call(node, parameters.get))
    except ValueError as error:
        return MalformedCall(text=text, reason=str(error))


class ResponseTemplateReader:
    """Reads the format of the tokenizer's ``response_template`` through transformers."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    def read(self, message: str, stop: str, head: str, tools: Sequence[Schema]) -> tuple[Action, ...] | EndTurn:
        """See CallReader. One broken call makes the whole message malformed: the parser returns nothing of it."""
        try:
            parsed = self.tokenizer.parse_response(message + stop, prefix=head, tools=list(tools))
            made = parsed.get("tool_calls") or ()
            made = [call.get("function", call) if isinstance(call, dict) else call for call in made]
            calls = tuple(call_of(read_json(json.dumps(call))) for call in made)  # as a record can hold it
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return (MalformedCall(text=message, reason=f"the tool call cannot be read: {why}"),)
        return calls or EndTurn(text=str(parsed.get("content") or "").removesuffix(stop).strip())


def response_template_reader(tokenizer: PreTrainedTokenizerBase) -> ResponseTemplateReader | None:
    """Return a reader for a tokenizer with a ``response_template``, or a chat template that TRL knows; else None."""
    if getattr(tokenizer, "response_template", None) is None:
        from trl.chat_template_utils import add_response_schema

        try:
            add_response_schema(tokenizer)
        except ValueError:
            return None
    return ResponseTemplateReader(tokenizer)


def _read_block(block: str, text: str) -> Action:
    """Return the call in one block; ``text`` is what a MalformedCall shows."""
    try:
        return call_of(read_json(block.strip()))
    except ValueError as error:
        return MalformedCall(text=text, reason=str(error))


def call_of(content: JsonValue) -> ToolCall:
    """Return the call that a value read from JSON is. Raises ValueError for one that is not a call."""
    if not isinstance(content, dict):
        raise ValueError("the tool call is no JSON object")
    name, arguments = content.get("name"), content.get("arguments", {})
    if not isinstance(name, str):
        raise ValueError("the tool call has no name")
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of the tool call are no JSON object")
    return tool_call(name, arguments)


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
            "parameters": shown_schema(tool.json_schema)
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


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
