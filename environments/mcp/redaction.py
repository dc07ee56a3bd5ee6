"""Leave the values of secrets out of what a server says, however it writes them.

A character may be escaped on its own (JSON, Python, URLs, HTML), a value as a whole (Base64, hexadecimal digits). Each
is recognised where it is, so that a text needs no parser, and may hold several of them, or one inside another.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import cache

from pydantic import JsonValue

SHORTEST_SECRET = 6
_SHORTEST_PART = 8  # characters of Base64 that identify a value
_NAMED = {'"': "quot", "'": "apos", "&": "amp", "<": "lt", ">": "gt"}
_LETTERS = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}


def redacted(text: str, variables: Mapping[str, str]) -> str:
    """Return ``text`` with the name in place of each value of ``variables`` that is long enough to be a secret."""
    for name, value in sorted(variables.items(), key=lambda one: -len(one[1])):  # one may be a part of another
        if len(value) >= SHORTEST_SECRET:
            text = _forms(value).sub(rf"${name}".replace("\\", r"\\"), text)
    return text


def each_text(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    """Return ``value`` with each text in it, keys among them, as ``change`` returns it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [each_text(one, change) for one in value]
    if isinstance(value, dict):
        return {change(key): each_text(one, change) for key, one in value.items()}
    return value


def spelling(value: str) -> str:
    """Return a regular expression of ``value`` where any of its characters may be escaped."""
    return "".join(_character(one[0], len(one)) for one in re.findall(r"\\+|[^\\]", value))


@cache
def _forms(value: str) -> re.Pattern[str]:
    data = value.encode(errors="replace")
    within = r"(?:\\+u[0-9A-Fa-f]{0,3})?"  # a value of digits may begin inside an escape, which is not left in halves
    return re.compile("|".join([within + spelling(value), f"(?i:{data.hex()})", *_in_base64(data)]))


def _character(one: str, times: int) -> str:
    code, octets = ord(one), one.encode(errors="replace")
    units = one.encode("utf-16-be", errors="replace")
    forms = [
        rf"\\*{re.escape(one)}" if one in "\"'/`$" else re.escape(one),
        "".join(rf"\\+(?i:u{units[at : at + 2].hex()})" for at in range(0, len(units), 2)),
        rf"\\+(?i:u\{{0*{code:x}\}}|U{code:08x}" + (rf"|x{code:02x})" if code < 256 else ")"),
        "".join(rf"%(?i:(?:25)*{octet:02x})" for octet in octets),
        "".join(rf"\\+(?i:x{octet:02x})" for octet in octets),
        rf"&(?i:amp;)*(?i:#0*{code}|#x0*{code:x}" + (f"|{_NAMED[one]});" if one in _NAMED else ");"),
    ]
    if one in _LETTERS:
        forms.append(rf"\\+{_LETTERS[one]}")
    if one == " ":
        forms.append(r"\+")
    each = f"(?:{'|'.join(forms)})"
    # The last backslash of a longer run may escape what follows.
    return rf"(?:(?:\\\\){{{times},}}|{each}{{{times}}})" if one == "\\" else each


def _in_base64(data: bytes) -> list[str]:
    """Return what Base64 has of ``data`` at each of the three places where it may begin in a longer text."""
    found = []
    for before in range(3):
        whole = before + len(data)
        letters = b64encode(bytes(before) + data).decode()[(0, 2, 3)[before] : whole // 3 * 4 + (0, 1, 2)[whole % 3]]
        if len(letters) >= _SHORTEST_PART:
            found.append("".join({"+": "[+-]", "/": r"(?:\\*/|_)"}.get(one, one) for one in letters))
    return found
