"""Parse call texts, format calls, and enforce the caps of every call; a policy's text is never evaluated.

Caps (our choice, far above every official task; a call beyond one is answered with an error and not run):
a call text of 20,000 characters; arguments of 2,000 values, 20 levels and 20,000 characters that UTF-8 can write;
integers of 30 digits and finite floats; precisions and decimal places of 1,000; integer powers of 100,000 bits; no
exponents in text where mpmath would read a number (it expands "1e999999999" digit by digit).
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator

from pydantic import JsonValue

from environments.base import MalformedCall, ToolCall
from environments.bfcl.docs import all_tools, positional_names
from environments.verification.programs import syntax_tree

MAX_CHARACTERS = 20_000
MAX_VALUES = 2_000
MAX_DEPTH = 20
MAX_INTEGER = 10**30
MAX_PRECISION = 1_000
MAX_POWER_BITS = 100_000

_EXPONENT = re.compile(r"[\d.]e[+-]?\d", re.IGNORECASE)
_PRECISIONS = {"logarithm": "precision", "square_root": "precision", "round_number": "decimal_places"}


class _NotACall(Exception):
    """The reason why a text is not a call."""


def parse_call(text: str) -> ToolCall | MalformedCall:
    """Read one Python call ``f(a=1, b='x')`` with literal arguments.

    Positional arguments are named in the order of the function's signature. Everything else (other expressions,
    nested calls, attributes, ``*`` and ``**``, values that JSON does not have, a text beyond the caps) is a
    ``MalformedCall`` with its reason. A function that does not exist is still a call: the episode answers it.
    """
    if len(text) > MAX_CHARACTERS:
        return MalformedCall(text=text[:MAX_CHARACTERS], reason=f"longer than {MAX_CHARACTERS} characters")
    try:
        return _read_call(text)
    except _NotACall as error:
        return MalformedCall(text=text, reason=str(error))


def _read_call(text: str) -> ToolCall:
    try:
        tree = syntax_tree(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _NotACall(f"not a Python expression: {error}") from None
    node = tree.body if isinstance(tree, ast.Expression) else tree
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise _NotACall("not one plain call of a function by its name")
    arguments: dict[str, JsonValue] = {}
    for name, value in (*_positional(node), *_named(node)):
        if name in arguments:
            raise _NotACall(f"argument {name!r} is given twice")
        arguments[name] = _literal(name, value)
    call = ToolCall(name=node.func.id, arguments=arguments)
    if (reason := beyond_caps(call)) is not None:
        raise _NotACall(reason)
    return call


def _positional(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    assert isinstance(node.func, ast.Name)
    if not node.args:
        return
    tool = node.func.id
    if tool not in all_tools():
        raise _NotACall(f"{tool!r} is not documented, so its positional arguments have no names")
    names = positional_names(tool)
    if len(node.args) > len(names):
        raise _NotACall(f"{tool} takes at most {len(names)} arguments, not {len(node.args)}")
    yield from zip(names, node.args, strict=False)


def _named(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    for keyword in node.keywords:
        if keyword.arg is None:
            raise _NotACall("`**` is not allowed")
        yield keyword.arg, keyword.value


def _literal(name: str, node: ast.expr) -> JsonValue:
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise _NotACall(f"argument {name!r} is not a literal") from None
    return _json_value(name, value, 0)


def _json_value(name: str, value: object, depth: int) -> JsonValue:
    if depth > MAX_DEPTH:
        raise _NotACall(f"argument {name!r} is nested more than {MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_json_value(name, item, depth + 1) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _json_value(name, item, depth + 1) for key, item in value.items()}
    raise _NotACall(f"argument {name!r} is not a JSON value")


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
