"""Check calls against the documentation of their tool: arguments are known, complete and of the documented type."""

from __future__ import annotations

import sys

from pydantic import JsonValue

from environments.base import Parameter, ToolCall, ToolSpec


def argument_problem(call: ToolCall, tool: ToolSpec) -> str | None:
    """Return a phrase for the first error in the arguments of ``call`` by the documentation of ``tool``, else None.

    A whole number is accepted where a float is documented, and a whole float where an integer is. Null is accepted for
    an optional parameter whose default is null.
    """
    for name, value in call.arguments.items():
        parameter = tool.parameter(name)
        if parameter is None:
            return f"{call.name} has no parameter {name!r}"
        if value is None and not parameter.required and parameter.default is None:
            continue
        problem = _value_problem(value, parameter)
        if problem:
            return f"{name}={value!r:.80} of {call.name} {problem}"
    missing = [p.name for p in tool.parameters if p.required and p.name not in call.arguments]
    return f"{call.name} requires {missing[0]!r}" if missing else None


def _value_problem(value: JsonValue, parameter: Parameter) -> str | None:
    if not _has_type(value, parameter.type):
        return f"is not of type {parameter.type}"
    items = value if isinstance(value, list) else [value]
    if isinstance(value, list) and parameter.items:
        for item in items:
            if not _has_type(item, parameter.items):
                return f"has the item {item!r:.80}, which is not of type {parameter.items}"
    if parameter.choices:
        for item in items:
            if item not in parameter.choices:
                return f"is outside the documented choices {list(parameter.choices)}"
    return None


def _has_type(value: JsonValue, name: str) -> bool:
    if name == "integer":
        return _finite(value) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    if name == "float":
        return _finite(value)
    kinds: dict[str, type] = {"string": str, "boolean": bool, "array": list, "dict": dict, "code": str}
    return isinstance(value, kinds.get(name, object))


def _finite(value: JsonValue) -> bool:
    """Return whether the value is a number that a float can hold: infinity and NaN are not JSON."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max
