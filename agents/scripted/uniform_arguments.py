"""Draws arguments for a tool uniformly: documented choices, else values that are documented, given or seen."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from agents.scripted.documented import mentioned, number_range, numbers, values_in
from agents.scripted.values import MAX_TEXT, Scalar
from environments.base import Parameter, ToolCall, ToolSpec

_OPTIONAL = 0.3
_CONVERSIONS = 8
_LARGEST = 1e6
_PLAIN_NUMBERS: tuple[Scalar, ...] = (1, 2, 3, 10, 50.0)


Given = Mapping[str, Sequence[Scalar]]
"""Values that people gave to each parameter of one tool."""


def draw_uniform(tool: ToolSpec, values: Sequence[Scalar], given: Given, rng: random.Random) -> ToolCall:
    """A call of ``tool`` whose arguments are drawn from documented choices, or from one source of values.

    The sources are the values that the parameter's description mentions, its documented range, the values that people
    gave to it in the training split (``given``), and those seen in this episode (``values``): one of those that hold
    anything is drawn, then a value of it.
    """
    offered = (*values, *_PLAIN_NUMBERS)
    arguments: dict[str, JsonValue] = {
        parameter.name: _value(parameter, offered, given.get(parameter.name, ()), rng)
        for parameter in tool.parameters
        if parameter.required or rng.random() < _OPTIONAL
    }
    return ToolCall(name=tool.name, arguments=arguments)


def converted(value: Scalar, type_name: str) -> Scalar | None:
    """``value`` as an integer, float or string, or None where it has no such form or is too long or large."""
    if type_name == "string":
        text = str(value)
        return text if text.strip() and len(text) <= MAX_TEXT and "\n" not in text else None
    if type_name not in ("integer", "float"):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if not math.isfinite(number) or abs(number) > _LARGEST:
        return None
    if type_name == "float":
        return number
    return int(number) if number.is_integer() else None


def _value(parameter: Parameter, seen: Sequence[Scalar], given: Sequence[Scalar], rng: random.Random) -> JsonValue:
    if parameter.type == "array":
        if parameter.choices:
            size = rng.randint(1, len(parameter.choices))
            chosen = set(rng.sample(range(len(parameter.choices)), size))
            return [choice for place, choice in enumerate(parameter.choices) if place in chosen]
        return [_drawn(parameter.items or "string", seen, rng) for _ in range(rng.randint(1, 2))]
    if parameter.choices:
        return rng.choice(parameter.choices)
    if parameter.type == "boolean":
        return rng.random() < 0.5
    sources = [source for source in (_mentioned(parameter), _in_range(parameter), given, seen) if source]
    return _drawn(parameter.type, rng.choice(sources), rng)


def _mentioned(parameter: Parameter) -> tuple[Scalar, ...]:
    return (*(number.value for number in numbers(parameter)), *mentioned(parameter))


def _in_range(parameter: Parameter) -> tuple[Scalar, ...]:
    extent = number_range(parameter)
    return values_in(extent) if extent else ()


def _drawn(type_name: str, values: Sequence[Scalar], rng: random.Random) -> JsonValue:
    for _ in range(_CONVERSIONS):
        value = converted(rng.choice(values), type_name)
        if value is not None:
            return value
    plain: dict[str, JsonValue] = {"integer": rng.randint(0, 5), "float": float(rng.randint(0, 50)), "dict": {}}
    return plain.get(type_name, "x")
