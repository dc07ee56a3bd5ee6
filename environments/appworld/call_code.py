"""Writes the call of one API by name as the line of Python that an agent would write."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping

from pydantic import JsonValue

_NAME = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")


def call_code(name: str, arguments: Mapping[str, JsonValue]) -> str:
    """Code that calls ``app.api`` with the arguments and prints the answer.

    Raises ValueError for a name that is not of that form. Arguments that are no parameters' names are passed on too:
    the app answers what it thinks of them.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} names no API: write app.api")
    plain = {key: value for key, value in arguments.items() if _is_parameter(key)}
    parts = [f"{key}={value!r}" for key, value in plain.items()]
    other = {key: value for key, value in arguments.items() if key not in plain}
    if other:
        parts.append(f"**{other!r}")
    return f"print(apis.{name}({', '.join(parts)}))"


def _is_parameter(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")
