"""Read and leave out parts of JSON values by JSON Pointers (RFC 6901): ``/calls`` is the key ``calls`` of an object."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
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


_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_LONG = 100_000  # characters; a shorter text is parsed anew
_KEPT = 4


class Cutter:
    """Cuts one part out of one JSON text after another: texts of many megabytes that differ in little but that part.

    What stood around the part in the latest long texts is kept, so that the next one need not be parsed.
    """

    def __init__(self, pointer: Pointer) -> None:
        self._keys = _keys(pointer)
        self._around: deque[tuple[str, str]] = deque(maxlen=_KEPT)

    def cut(self, text: str) -> str:
        """Return ``text`` with null in place of the part; as it is where it has none, or is not JSON."""
        try:
            for before, after in self._around:
                if text.startswith(before) and text.endswith(after):
                    _, end = _DECODER.raw_decode(text, len(before))
                    if end + len(after) == len(text):
                        return f"{before}null{after}"
            begin, end = _span(text, self._keys, _space(text, 0))
        except (ValueError, LookupError, RecursionError):
            return text
        before, after = text[:begin], text[end:]
        if len(text) > _LONG:
            self._around.append((before, after))
        return f"{before}null{after}"


def _span(text: str, keys: Sequence[str], at: int) -> tuple[int, int]:
    """Return where the part begins and ends in the value that begins at ``at``. Raises LookupError, ValueError."""
    if not keys:
        return at, _DECODER.raw_decode(text, at)[1]
    for key, begin in _members(text, at):
        if key == keys[0]:
            return _span(text, keys[1:], begin)
    raise LookupError(keys[0])


def _members(text: str, at: int) -> Iterator[tuple[str, int]]:
    """Yield the key of each member of an object, or the place of each item of a list, and where its value begins."""
    kind, count = text[at], 0
    if kind not in "{[":
        return
    at = _space(text, at + 1)
    while text[at] not in "}]":
        key = str(count)
        if kind == "{":
            key, at = _DECODER.raw_decode(text, at)
            at = _space(text, _space(text, at) + 1)
        yield key, at
        at = _space(text, _DECODER.raw_decode(text, at)[1])
        at, count = _space(text, at + (text[at] == ",")), count + 1


def _space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr] # it matches nothing, too


def _keys(pointer: Pointer) -> list[str]:
    return [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:]]


def _below(value: JsonValue, key: str) -> JsonValue:
    if isinstance(value, dict):
        return value[key]
    if isinstance(value, list) and key.isascii() and key.isdigit():
        return value[int(key)]
    raise LookupError(key)
