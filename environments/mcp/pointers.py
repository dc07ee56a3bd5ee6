"""Read and leave out parts of JSON values by JSON Pointers (RFC 6901): ``/calls`` is the key ``calls`` of an object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, JsonValue


def _is_pointer(text: str) -> str:
    if not text.startswith("/") or "~" in text.replace("~0", "").replace("~1", ""):
        raise ValueError(f"{text!r:.80} is not a JSON Pointer: write /KEY, or /KEY/KEY for what is deeper")
    return text


Pointer = Annotated[str, AfterValidator(_is_pointer)]
"""A JSON Pointer to a part of a value, not to the whole."""


def part_of(value: JsonValue, pointer: Pointer) -> JsonValue:
    """Return the part of ``value`` that ``pointer`` names. Raises LookupError where it has none."""
    for key in _keys(pointer):
        value = _below(value, key)
    return value


def without(value: JsonValue, pointers: Sequence[Pointer]) -> JsonValue:
    """Remove the parts that ``pointers`` name from ``value``, which is changed, and return it."""
    for pointer in pointers:
        *way, last = _keys(pointer)
        holder = value
        try:
            for key in way:
                holder = _below(holder, key)
            _below(holder, last)
        except LookupError:
            continue
        if isinstance(holder, dict):
            del holder[last]
        elif isinstance(holder, list):
            del holder[int(last)]
    return value


def _keys(pointer: Pointer) -> list[str]:
    return [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:]]


def _below(value: JsonValue, key: str) -> JsonValue:
    if isinstance(value, dict):
        return value[key]
    if isinstance(value, list) and key.isascii() and key.isdigit():
        return value[int(key)]
    raise LookupError(key)
