"""Reads JSON that a policy wrote; whatever is accepted can be written to a record again."""

from __future__ import annotations

import json
import math
from typing import NoReturn

from pydantic import JsonValue, ValidationError

from environments.base import ToolCall


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
        _encodable(value)
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


def _encodable(value: JsonValue) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("the value holds half of a surrogate pair") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("the number is too large")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
