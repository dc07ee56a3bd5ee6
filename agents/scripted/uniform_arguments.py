"""Draws arguments for a tool: documented choices, else values that are documented, given or seen."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from agents.scripted.documented import constants, mentioned, number_range, numbers, values_in
from agents.scripted.values import MAX_TEXT, Scalar
from environments.base import Parameter, ToolCall, ToolSpec

_OPTIONAL = 0.3
_CONVERSIONS = 8
_LARGEST = 1e6
_PLAIN_NUMBERS: tuple[Scalar, ...] = (1, 2, 3, 10, 50.0)


Given = Mapping[str, Sequence[Scalar]]
"""Values that people gave to each parameter of one tool."""
Chosen = Mapping[str, JsonValue]
"""Arguments of the same call that were drawn before."""


class ArgumentDraws:
    """Draws the arguments of calls; both scripted explorers draw with it.

    How a list, a documented value, a number and an optional parameter are drawn is decided here, so that what one
    explorer finds and the other does not comes from what they aim at and saw. A subclass decides which seen values are
    offered, which documented value is preferred, and how a text is chosen.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def draw(self, tool: ToolSpec) -> ToolCall:
        """A call of ``tool``: required parameters always, each optional one three times in ten."""
        arguments: dict[str, JsonValue] = {}
        for parameter in tool.parameters:
            if parameter.required or self._rng.random() < _OPTIONAL:
                arguments[parameter.name] = self._value(tool, parameter, arguments)
        return ToolCall(name=tool.name, arguments=arguments)

    def _value(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> JsonValue:
        if parameter.type == "array":
            return self._list(tool, parameter, chosen)
        known = constants(parameter)
        if known:
            return self._constant(tool, parameter, known)
        if parameter.type == "string":
            return self._text(tool, parameter, chosen)
        return self._drawn_from_a_source(tool, parameter, chosen)

    def _list(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> JsonValue:
        """Documented items: a uniform number of them, in the documented order. Else one or two values."""
        if parameter.choices:
            size = self._rng.randint(1, len(parameter.choices))
            picked = set(self._rng.sample(range(len(parameter.choices)), size))
            return [choice for place, choice in enumerate(parameter.choices) if place in picked]
        item = parameter.model_copy(update={"type": parameter.items or "string"})
        return [self._item(tool, item, chosen) for _ in range(self._rng.randint(1, 2))]

    def _drawn_from_a_source(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> JsonValue:
        """A value of one source that holds any: the description, its range, values given by people, values seen."""
        seen = (*self._seen(tool, parameter, chosen), *_PLAIN_NUMBERS)
        sources = (_mentioned(parameter), _in_range(parameter), self._given(parameter), seen)
        return drawn(parameter.type, self._rng.choice([source for source in sources if source]), self._rng)

    def _constant(self, tool: ToolSpec, parameter: Parameter, known: Sequence[JsonValue]) -> JsonValue:
        """One of the documented values, each as likely."""
        return self._rng.random() < 0.5 if parameter.type == "boolean" else self._rng.choice(known)

    def _item(self, tool: ToolSpec, item: Parameter, chosen: Chosen) -> JsonValue:
        """An item of a list without documented items."""
        return drawn(item.type, (*self._seen(tool, item, chosen), *_PLAIN_NUMBERS), self._rng)

    def _text(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> JsonValue:
        return self._drawn_from_a_source(tool, parameter, chosen)

    def _given(self, parameter: Parameter) -> Sequence[Scalar]:
        """Values that people gave to the parameter, where they are not among those seen."""
        return ()

    def _seen(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> Sequence[Scalar]:
        """Values seen in this episode that the parameter may take."""
        return ()


class UniformArguments(ArgumentDraws):
    """Draws every value with equal weight, of those ``seen`` in this episode and those ``given`` in the training split.

    One source of values that holds any is drawn (the description, the documented range, given, seen), then a value.
    """

    def __init__(self, seen: Sequence[Scalar], given: Given, rng: random.Random) -> None:
        super().__init__(rng)
        self._values = seen
        self._by_parameter = given

    def _given(self, parameter: Parameter) -> Sequence[Scalar]:
        return self._by_parameter.get(parameter.name, ())

    def _seen(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> Sequence[Scalar]:
        return self._values


def draw_uniform(tool: ToolSpec, values: Sequence[Scalar], given: Given, rng: random.Random) -> ToolCall:
    """A call of ``tool`` as ``UniformArguments`` draws it; ``values`` are those seen in this episode."""
    return UniformArguments(values, given, rng).draw(tool)


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


def _mentioned(parameter: Parameter) -> tuple[Scalar, ...]:
    return (*(number.value for number in numbers(parameter)), *mentioned(parameter))


def _in_range(parameter: Parameter) -> tuple[Scalar, ...]:
    extent = number_range(parameter)
    return values_in(extent) if extent else ()


def drawn(type_name: str, values: Sequence[Scalar], rng: random.Random) -> JsonValue:
    """One of ``values`` that has a form of the type, or a plain value of the type where none of a few draws has."""
    for _ in range(_CONVERSIONS):
        value = converted(rng.choice(values), type_name)
        if value is not None:
            return value
    plain: dict[str, JsonValue] = {"integer": rng.randint(0, 5), "float": float(rng.randint(0, 50)), "dict": {}}
    return plain.get(type_name, "x")
