"""Read calls that are written in Python with literal arguments, ``f(a=1, b='x')``; nothing is evaluated."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Sequence

from pydantic import JsonValue

from environments.verification.programs import syntax_tree

MAX_DEPTH = 20
"""Levels of lists and objects in an argument (our choice)."""

MAX_BITS = 4096
"""Bits of an integer (our choice): Python does not write much longer ones in decimal."""

_JSON_NAMES = {"true": True, "false": False, "null": None}


def expression(text: str) -> ast.expr:
    """Return the one expression that ``text`` is. Raises ValueError for text that is none or is nested too deeply."""
    try:
        tree = syntax_tree(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a Python expression: {error}") from None
    assert isinstance(tree, ast.Expression)
    return tree.body


def call_of(node: ast.expr, parameters: Callable[[str], Sequence[str] | None]) -> tuple[str, dict[str, JsonValue]]:
    """Return the function's name, which may be dotted, and the arguments of one call.

    ``parameters`` gives a function's parameters in the order of positional arguments, None for an unknown function.
    Arguments are literals, JSON's true, false and null beside Python's. Raises ValueError with the reason for
    everything else: other expressions, nested calls, ``*`` and ``**``, values that JSON does not have.
    """
    name = _name(node.func) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or name is None:
        raise ValueError("not one plain call of a function by its name")
    given: list[tuple[str, ast.expr]] = []
    if node.args:
        names = parameters(name)
        if names is None:
            raise ValueError(f"{name!r} is not documented, so its positional arguments have no names")
        if len(node.args) > len(names):
            raise ValueError(f"{name} takes at most {len(names)} arguments, not {len(node.args)}")
        given += zip(names, node.args, strict=False)
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("`**` is not allowed")
        given.append((keyword.arg, keyword.value))
    arguments: dict[str, JsonValue] = {}
    for parameter, value in given:
        if parameter in arguments:
            raise ValueError(f"argument {parameter!r} is given twice")
        arguments[parameter] = _literal(parameter, value, 0)
    try:
        json.dumps([name, arguments], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text has characters that UTF-8 cannot write") from None
    return name, arguments


def _name(node: ast.expr) -> str | None:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else None


def _literal(name: str, node: ast.expr, depth: int) -> JsonValue:
    if depth > MAX_DEPTH:
        raise ValueError(f"argument {name!r} is nested more than {MAX_DEPTH} levels deep")
    match node:
        case ast.List(elts=items):
            return [_literal(name, item, depth + 1) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(name, k): _literal(name, v, depth + 1) for k, v in zip(keys, values, strict=True)}
        case ast.Name(id=word) if word in _JSON_NAMES:
            return _JSON_NAMES[word]
        case ast.Constant(value=value):
            return _scalar(name, value)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as value)) if (
            not isinstance(value, bool)
        ):
            return _scalar(name, -value if isinstance(sign, ast.USub) else value)
        case ast.Tuple() | ast.Set():
            raise ValueError(f"argument {name!r} is not a JSON value")
    raise ValueError(f"argument {name!r} is not a literal")


def _key(name: str, node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError(f"argument {name!r} is not a JSON value")


def _scalar(name: str, value: object) -> JsonValue:
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ValueError(f"argument {name!r} is not a JSON value")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"argument {name!r} is a number that is not finite")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError(f"argument {name!r} is an integer of more than {MAX_BITS} bits")
    return value
