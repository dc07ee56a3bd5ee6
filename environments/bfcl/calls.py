"""Parse call texts, format calls, and enforce the caps of every call; a policy's text is never evaluated.

Caps (our choice, far above every official task; a call beyond one is answered with an error and not run):
a call text of 20,000 characters; arguments of 2,000 values, 20 levels and 20,000 characters that UTF-8 can write;
integers of 30 digits and finite floats; precisions and decimal places of 1,000; integer powers of 100,000 bits; no
exponents in text where mpmath would read a number (it expands "1e999999999" digit by digit).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from pydantic import JsonValue

from environments.base import MalformedCall, ToolCall
from environments.bfcl.docs import all_tools, positional_names
from environments.python_calls import MAX_DEPTH, call_of, expression

MAX_CHARACTERS = 20_000
MAX_VALUES = 2_000
MAX_INTEGER = 10**30
MAX_PRECISION = 1_000
MAX_POWER_BITS = 100_000

_EXPONENT = re.compile(r"[\d.]e[+-]?\d", re.IGNORECASE)
_PRECISIONS = {"logarithm": "precision", "square_root": "precision", "round_number": "decimal_places"}


def parse_call(text: str) -> ToolCall | MalformedCall:
    """Read one Python call ``f(a=1, b='x')`` with literal arguments.

    Positional arguments are named in the order of the function's signature. Everything else (other expressions,
    nested calls, attributes, ``*`` and ``**``, values that JSON does not have, a text beyond the caps) is a
    ``MalformedCall`` with its reason. A function that does not exist is still a call: the episode answers it.
    """
    if len(text) > MAX_CHARACTERS:
        return MalformedCall(text=text[:MAX_CHARACTERS], reason=f"longer than {MAX_CHARACTERS} characters")
    try:
        name, arguments = call_of(expression(text), _positional_names)
    except ValueError as error:
        return MalformedCall(text=text, reason=str(error))
    call = ToolCall(name=name, arguments=arguments)
    reason = beyond_caps(call)
    return call if reason is None else MalformedCall(text=text, reason=reason)


def _positional_names(tool: str) -> tuple[str, ...] | None:
    return positional_names(tool) if tool in all_tools() else None


def beyond_caps(call: ToolCall) -> str | None:
    """Return the cap that the arguments of ``call`` exceed, in words, or None."""
    characters = 0
    for values, (value, depth) in enumerate(_walk(call.arguments, 0)):
        if isinstance(value, str):
            characters += len(value)
            if not _writable(value):
                return "a text has characters that UTF-8 cannot write"
        elif isinstance(value, float) and not math.isfinite(value):
            return "a number is not finite"
        elif isinstance(value, int) and abs(value) >= MAX_INTEGER:
            return "an integer has more than 30 digits"
        if values > MAX_VALUES or characters > MAX_CHARACTERS or depth > MAX_DEPTH:
            return f"arguments exceed {MAX_VALUES} values, {MAX_CHARACTERS} characters or {MAX_DEPTH} levels"
    return _beyond_tool_caps(call)


def _writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _walk(value: JsonValue, depth: int) -> Iterator[tuple[JsonValue, int]]:
    yield value, depth
    if depth > MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from _walk(item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key, depth
            yield from _walk(item, depth + 1)


def _beyond_tool_caps(call: ToolCall) -> str | None:
    # A precision given as text counts too: mpmath reads it.
    precision = _PRECISIONS.get(call.name)
    if precision is not None and abs(_integer(call.arguments.get(precision))) > MAX_PRECISION:
        return f"{precision} is beyond {MAX_PRECISION}"
    if call.name == "logarithm" and any(
        isinstance(value, str) and _EXPONENT.search(value) for value in call.arguments.values()
    ):
        return "a number is given as text with an exponent"
    if call.name == "power":
        base, exponent = call.arguments.get("base"), call.arguments.get("exponent")
        if isinstance(base, int) and isinstance(exponent, int) and abs(exponent) * base.bit_length() > MAX_POWER_BITS:
            return f"the power has more than {MAX_POWER_BITS} bits"
    return None


def _integer(value: JsonValue) -> int:
    """Return ``int`` of a number or a numeral, 0 for every other value."""
    if not isinstance(value, int | float | str):
        return 0
    try:
        return int(value)
    except (ValueError, OverflowError):
        return 0
