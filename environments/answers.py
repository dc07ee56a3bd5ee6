"""Read what tools answer by its value: whether it is empty, whether it is an error, and the form that is compared.

The rules are ours, and the same for Python classes, MCP servers and OpenEnv servers. BFCL and AppWorld go by their own
simulators and checkers.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import JsonValue

from environments.task_text import is_within

_WORDS_FOR_NOTHING = frozenset(("", "none", "null", "''"))
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_MOST_VALUES = 1000
_DEEPEST = 100
"""Most levels of nested lists and objects that are read, so that a function may recurse into a value (ours)."""


def decoded(text: str) -> JsonValue:
    """Return the value of a JSON text, the list of several values behind one another, or any other text as it is.

    MCP's SDK writes each item of a list as a text of its own. What is nested too deeply stays text.
    """
    values: list[JsonValue] = []
    written, place = text.strip(), 0
    try:
        while place < len(written):
            value, end = _DECODER.raw_decode(written, place)
            place = _SPACE.match(written, end).end()  # type: ignore[union-attr] # it matches nothing, too
            if place == end < len(written) or len(values) == _MOST_VALUES:
                return text
            values.append(value)
    except (ValueError, RecursionError):
        return text
    if not all(is_within(value, _DEEPEST) for value in values):
        return text
    return values if len(values) > 1 else values[0] if values else text


def is_empty(value: JsonValue) -> bool:
    """Return whether an answer holds nothing.

    Empty are null, blank text, the words "none" and "null", an empty object, a list whose items all are empty or blank,
    and any of these as JSON text or under the lone key ``result``, which SDKs put around it. Under other keys, and in
    numbers and booleans, there is information: 0, false, ``{"items": []}``. What is nested too deeply is not empty.
    """
    return is_within(value, _DEEPEST) and _is_empty(value)


def _is_empty(value: JsonValue) -> bool:
    if isinstance(value, str):
        inner = decoded(value)
        return value.strip().casefold() in _WORDS_FOR_NOTHING if inner == value else _is_empty(inner)
    if isinstance(value, list):
        return all(not item.strip() if isinstance(item, str) else _is_empty(item) for item in value)
    if isinstance(value, dict):
        return not value or (value.keys() == {"result"} and _is_empty(value["result"]))
    return value is None


_FLAGS = {"ok": True, "success": True, "iserror": False}
_FAILED = ("error", "fail")
_LONGEST_LINE = 300

_MARK = r"[^\w{(\"']{0,10}"  # "**Error**: ...", "[ERROR] ..."; a file may begin with a heading
_NOTHING = r"(?:none|null|false|0(?!\.))\b"
_NONE_FOLLOWS = rf"(?!\s*{_NOTHING}\W*(?:\n|$))"
_MEASURE = rf"\s*[-+±~<>=≈]*(?:{_NOTHING}|(?![45]\d\d\b)[\d.,]+(?:e[-+]?\d+)?\s*(?:[^\w\s.:]|\n|$))"
_ERROR = re.compile(
    rf"""[^\x00-\x7f]{{0,3}}\s*(?:
        error:(?=\s|$){_NONE_FOLLOWS}
        | (?:(?!no\b)\w+\ ){{1,2}}error(?:\ -?\d+)?:\s(?!{_MEASURE})
        | error\ (?:executing|calling)\ tool\b
        | traceback\ \(most\ recent\ call\ last\)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_ERROR_LINE = re.compile(
    rf"""{_MARK}(?:
        error(?:\W*$|(?:\]|\ -)\s|[*_\]]*[:!](?!:){_NONE_FOLLOWS})
        | error\ (?:[45]\d\d\b | (?:\w+ing|in|while|when|during|at|from|code|\d+)\b[^:]*:\s(?!{_MEASURE}))
        | (?-i:ERROR)[\]\s-]+(?!(?-i:[A-Z]{{2}}))
        | (?-i:(?:[\w.]*[A-Z]\w*)?(?:Error|Exception)):\s(?!{_MEASURE})
        | (?:an?\ (?:\w+\ )?)?error\ (?:has\ )?occurred\b
        | (?:failed|unable)\ to\ \w
        | fatal:\s
        | [^\s:]+:\ error(?:\ -|:)\s(?!{_MEASURE}){_NONE_FOLLOWS}
    )""",
    re.IGNORECASE | re.VERBOSE,
)


def says_error(value: JsonValue) -> bool:
    """Return whether an answer that its protocol does not mark as an error is one by its value.

    An object is an error where ``error`` or ``exception`` hold something (a message, a code; not null, false, "", 0, a
    fraction), whatever its flags say. Else ``ok``, ``success`` and ``isError`` decide where they are booleans. Else it
    is an error where ``errors`` holds something but a number, or where ``status`` is "error" or "fail". Only its own
    keys count, or those of an object under the lone key ``result``.

    A text is an error where it begins with "Error:", "Validation error: ..." or a traceback, but not with a measure,
    "Standard error: 0.03". A file may begin like "ValueError: ...", "Error opening ...: ...", "notes.txt: Error - ...",
    "Failed to ..." or "Unable to ...", so that these count only where the text is one line of at most 300 characters.
    """
    while isinstance(value, dict) and value.keys() == {"result"}:
        value = value["result"]
    if isinstance(value, str):
        return _text_says_error(value.strip())
    if not isinstance(value, dict):
        return False
    named = {key.replace("_", "").casefold(): item for key, item in value.items()}
    flags = ((_plain(named.get(flag)), good) for flag, good in _FLAGS.items())
    if _holds(named.get("error")) or _holds(named.get("exception")):
        return True
    fine = [said is good for said, good in flags if isinstance(said, bool)]
    if fine:
        return not all(fine)
    status, errors = named.get("status"), _plain(named.get("errors"))
    counted = isinstance(errors, int | float) and not isinstance(errors, bool)
    failed = isinstance(status, str) and status.casefold() in _FAILED
    return failed or (not counted and _holds(errors))


def _text_says_error(text: str) -> bool:
    value = decoded(text)
    if value == text and text.startswith("{"):  # an object with advice behind it
        try:
            value, _ = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            return False
    if isinstance(value, list) and not text.startswith("["):
        value = value[0]
    if value != text:
        return isinstance(value, str | dict) and says_error(value)
    line = len(text) <= _LONGEST_LINE and "\n" not in text
    return _ERROR.match(text) is not None or (line and _ERROR_LINE.match(text) is not None)


def _plain(value: JsonValue) -> JsonValue:
    return decoded(value) if isinstance(value, str) else value


def _holds(value: JsonValue) -> bool:
    """Return whether the value of an error's key says anything."""
    value = _plain(value)
    if isinstance(value, str):
        return value.strip().casefold() not in _WORDS_FOR_NOTHING
    if isinstance(value, list | dict):
        return not is_within(value, _DEEPEST) or any(map(_holds, value.values() if isinstance(value, dict) else value))
    return bool(value) and not (isinstance(value, float) and not value.is_integer())


_UNITS, _EXACT = 1e12, 2.0**53


def rounded(value: JsonValue) -> JsonValue:
    """Return a value with its floats to twelve significant digits, and whole ones as integers (3.0 as 3).

    So sums in another order are equal. Between 10^12 and 2^53 floats are rounded to whole numbers, which they hold
    exactly there. Two floats on both sides of a rounding boundary differ, however near they are, and so does a sum that
    cancels to almost 0. Integers, booleans and texts stay as they are, and infinity and NaN, which JSON does not have,
    become texts. Raises RecursionError for too deep a value.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        near = float(round(value)) if _UNITS <= abs(value) <= _EXACT else float(f"{value:.12g}")
        return int(near) if near.is_integer() else near
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return {key: rounded(item) for key, item in value.items()} if isinstance(value, dict) else value


def compared(text: str) -> str:
    """Return the form in which answers are compared: JSON as values that are ``rounded``, any other text as it is."""
    value = decoded(text)
    if not isinstance(value, list | dict) and json.dumps(value) != text.strip():
        return text  # 1.10 may be a version
    try:
        return json.dumps(rounded(value), ensure_ascii=False)
    except RecursionError:
        return text


def content_text(blocks: Iterable[Mapping[str, Any]]) -> str:
    """Return the texts of MCP's content blocks, and of any other content its kind, size and digest: it is not read."""
    return "\n".join(map(_block_text, blocks))


def _block_text(block: Mapping[str, Any]) -> str:
    inside = block.get("resource") if block.get("type") == "resource" else block
    if isinstance(inside, dict) and isinstance(inside.get("text"), str):
        return str(inside["text"])
    whole = json.dumps(block, sort_keys=True, ensure_ascii=False)
    return f"[{block.get('type')}, {len(whole)} characters, sha256 {hashlib.sha256(whole.encode()).hexdigest()[:16]}]"
