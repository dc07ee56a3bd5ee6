"""Tools and their calls as JSON: schemas as chat templates take them, and the call that a JSON value is."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from pydantic import JsonValue, ValidationError

from environments.base import Parameter, ToolCall, ToolSpec
from environments.json_schema import shown_schema

_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string", "code": "string"}
ARGUMENTS = ("arguments", "parameters", "args")

Schema = dict[str, Any]
Message = dict[str, Any]
Documentation = Schema | str
"""A tool as a prompt documents it: as a function schema, or as one line."""


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
    _refuse_keys(content, {*beside, "name", *ARGUMENTS})
    given = [_arguments(content[key]) for key in ARGUMENTS if content.get(key) is not None]
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
