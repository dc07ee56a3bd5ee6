"""Draw a call from its tool's JSON Schema where the one drawn from the documentation does not fit (ours).

Of a combination one alternative is drawn, of a type a value: one that is known, a number within its bounds, or a text
of its format. Where there is neither, nothing is drawn.
Whatever the schema then refuses (exactly one of two, conditions, ``not``) is drawn again, a bounded number of times.
"""

from __future__ import annotations

import datetime
import json
import math
import random
import re
import uuid
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

from pydantic import JsonValue

from agents.scripted.values import Scalar
from environments.base import ToolCall, ToolSpec
from environments.json_schema import COMBINING, both, resolved
from environments.schema_check import Schema, pointed, schema_errors

_DRAWS = 24  # of one call, at most
_STEPS = 500  # schemas and values of one draw, at most
_LONGEST = 1000  # characters of a text
_MOST = 30  # items of a list, and entries of an object
_DEEPEST = 3  # level of values from which on nothing is given that is not required
_SPAN = 10  # multiples from a bound, where there is no other one
_FIRST = datetime.datetime(2024, 1, 1)
_KINDS = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "propertyNames", "dependentRequired"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}

Known = Callable[[str], Sequence[Scalar]]
"""The values that are known for a parameter or field of a name."""


_DAY, _HOUR = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"
_FORMATS = {
    "date": re.compile(_DAY),
    "date-time": re.compile(f"{_DAY}T{_HOUR}"),
    "time": re.compile(_HOUR),
    "email": re.compile(r"[^@\s]+@[^@\s]+"),
    "uri": re.compile(r"[a-z]+:\S+"),
    "uuid": re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    "ipv4": re.compile(r"\d{1,3}(\.\d{1,3}){3}"),
    "ipv6": re.compile(r"[0-9a-fA-F]*(:[0-9a-fA-F]*){2,7}"),
}
"""What a text of a format looks like. Other formats are not drawn, and not looked for."""


def fitting_call(call: ToolCall, tool: ToolSpec, known: Known, rng: random.Random, optional: float) -> ToolCall | None:
    """Return the call where the tool's schema takes it, else one that it takes, or None if none is found.

    Arguments without an error are kept at first. Raises Unchecked where no result of the check is had.
    """
    errors = schema_errors(tool.name, call.arguments, tool.json_schema)
    odd = _of_other_formats(call.arguments, tool.json_schema, tool.json_schema)
    if not errors and not odd:
        return call
    wrong = odd | {str(path[0]) for path, _ in errors if path}
    kept = {name: value for name, value in call.arguments.items() if name not in wrong}
    for number in range(_DRAWS):
        drawing = _Drawing(tool.json_schema, known, rng, optional if number % 2 else 0.0)
        try:
            arguments = drawing.arguments(kept if number < _DRAWS // 2 else {})
        except (_Nothing, ArithmeticError, ValueError, RecursionError):
            continue
        if not schema_errors(tool.name, arguments, tool.json_schema):
            return ToolCall(name=tool.name, arguments=arguments)
    return None


class _Nothing(Exception):
    """There is no value, or none within the limits, on the way that was drawn."""


class _Drawing:
    """One draw; ``optional`` is the probability of a field that is not required."""

    def __init__(self, root: Schema, known: Known, rng: random.Random, optional: float) -> None:
        self._root = root
        self._known = known
        self._rng = rng
        self._optional = optional
        self._left = _STEPS
        self._depth = 0

    def arguments(self, kept: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Draw the arguments of a call, with those in ``kept``."""
        return self._object(self._plain(self._root), kept, "")

    def _plain(self, given: Any) -> Schema:  # noqa: ANN401 - a schema of a stranger
        """Return the schema without references and combinations, one alternative of each in their place."""
        self._left -= 1
        if given is False or self._left < 0:
            raise _Nothing
        if not isinstance(given, dict) or not COMBINING & given.keys():
            return given if isinstance(given, dict) else {}
        parts = [pointed(given["$ref"], self._root)] if "$ref" in given else []
        parts += given.get("allOf", [])
        parts += [self._rng.choice(given[key]) for key in ("anyOf", "oneOf") if given.get(key)]
        if "if" in given:
            met = self._rng.random() < 0.5
            parts += [given["if"], given.get("then", {})] if met else [given.get("else", {})]
        needs = {**given.get("dependencies", {}), **given.get("dependentRequired", {})}
        needs |= given.get("dependentSchemas", {})
        parts += [one for one in needs.values() if not isinstance(one, list) and self._rng.random() < 0.5]
        own = {key: value for key, value in given.items() if key not in COMBINING}
        own["dependentRequired"] = {name: one for name, one in needs.items() if isinstance(one, list)}
        return reduce(both, [*map(self._plain, parts), own])

    def _value(self, given: Any, name: str) -> JsonValue:  # noqa: ANN401 - a schema of a stranger
        self._depth += 1
        try:
            return self._of_type(self._plain(given), name)
        finally:
            self._depth -= 1

    def _of_type(self, schema: Schema, name: str) -> JsonValue:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            value: JsonValue = self._one_of(values)
            return value
        named = schema.get("type")
        if named is None:
            named = next((kind for kind, keywords in _KINDS.items() if keywords & schema.keys()), "string")
        kind = self._one_of([one for one in named if one != "null"] or named) if isinstance(named, list) else named
        if kind in ("integer", "number"):
            return self._number(schema, name, kind == "integer")
        if kind == "array":
            return self._list(schema, name)
        if kind == "object":
            return self._object(schema, {}, name)
        return (
            self._text(schema, name) if kind == "string" else self._one_of([None] if kind == "null" else [True, False])
        )

    def _one_of(self, values: Sequence[Any]) -> Any:  # noqa: ANN401 - of JSON values
        if not values:
            raise _Nothing
        return self._rng.choice(values)

    def _number(self, schema: Schema, name: str, whole: bool) -> JsonValue:
        low, high = max(_bounds(schema, "minimum", 1), default=None), min(_bounds(schema, "maximum", -1), default=None)
        step = Fraction(str(schema.get("multipleOf", 1)))
        if whole:
            step = Fraction(step.numerator)
        elif low and high and "multipleOf" not in schema:
            step = min(step, (high[0] - low[0]) / 8) or abs(low[0]) or step
        first = None if low is None else math.floor(low[0] / step) + 1 if low[1] else math.ceil(low[0] / step)
        last = None if high is None else math.ceil(high[0] / step) - 1 if high[1] else math.floor(high[0] / step)
        numbers = (Fraction(str(one)) / step for one in self._known(name) if type(one) in (int, float))
        fits = [
            one
            for one in numbers
            if (first is None or first <= one) and (last is None or one <= last)
            if one % 1 == 0 or not (whole or "multipleOf" in schema)
        ]
        if (fits and self._rng.random() < 0.5) or (first is None and last is None):
            drawn = self._one_of(fits)
        else:
            first = first if first is not None else (last or 0) - _SPAN
            last = last if last is not None else first + _SPAN
            if first > last:
                raise _Nothing
            drawn = self._rng.randint(first, last)
        return int(drawn * step) if whole else float(drawn * step)

    def _text(self, schema: Schema, name: str) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength", _LONGEST)
        if least > min(most, _LONGEST):
            raise _Nothing
        form = schema.get("format")
        known = [text for text in self._known(name) if isinstance(text, str)]
        samples = [one for one in (*schema.get("examples", ()), schema.get("default")) if isinstance(one, str)]
        fits, better = (
            [one for one in texts if least <= len(one) <= most and not _is_other(one, form)]
            for texts in (known, samples)
        )
        if form in _FORMATS and not ((better or fits) and self._rng.random() < 0.5):
            return self._formatted(form)
        return str(self._one_of(better or fits))

    def _formatted(self, form: str) -> str:
        moment = _FIRST + datetime.timedelta(minutes=self._rng.randrange(3 * 365 * 24 * 60))
        number = self._rng.randrange(1, 255)
        return {
            "date": f"{moment:%Y-%m-%d}",
            "date-time": f"{moment:%Y-%m-%dT%H:%M:%SZ}",
            "time": f"{moment:%H:%M:%SZ}",
            "email": f"name{number}@example.org",
            "uri": f"https://example.org/{number}",
            "uuid": str(uuid.UUID(int=self._rng.getrandbits(128), version=4)),
            "ipv4": f"192.0.2.{number}",
            "ipv6": f"2001:db8::{number:x}",
        }[form]

    def _list(self, schema: Schema, name: str) -> JsonValue:
        items = schema.get("items", True)
        placed = schema.get("prefixItems", items if isinstance(items, list) else [])
        rest = schema.get("additionalItems", True) if isinstance(items, list) else items
        most = min(schema.get("maxItems", _MOST), _MOST if rest is not False else len(placed))
        wanted = len(placed) or int(self._depth <= _DEEPEST)
        least = max(schema.get("minItems", 0), min(wanted, most))
        if least > most:
            raise _Nothing
        found: list[JsonValue] = []
        for place in range(self._rng.randint(least, min(least + (self._depth <= _DEEPEST), most))):
            one = self._value(placed[place] if place < len(placed) else rest, name)
            for _ in range(_MOST if schema.get("uniqueItems") else 0):
                if json.dumps(one) not in map(json.dumps, found):
                    break
                one = self._value(placed[place] if place < len(placed) else rest, name)
            found.append(one)
        wanted = schema.get("minContains", 1) if "contains" in schema else 0
        for place in range(min(wanted, _MOST)):
            one = self._value({"allOf": [rest, schema["contains"]]}, name)
            if len(placed) + place < len(found):
                found[len(placed) + place] = one
            else:
                found.append(one)
        return found

    def _object(self, schema: Schema, kept: dict[str, JsonValue], name: str) -> dict[str, JsonValue]:
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        required, optional = schema.get("required", []), self._optional if self._depth <= _DEEPEST else 0.0
        chosen = [one for one in (*properties, *kept) if one in kept or self._rng.random() < optional]
        chosen = list(dict.fromkeys([*required, *chosen]))[: max(len(required), schema.get("maxProperties", _MOST))]
        for one in chosen:  # the list grows while it is read
            chosen += [more for more in schema.get("dependentRequired", {}).get(one, ()) if more not in chosen]
        found: dict[str, JsonValue] = {}
        for one in [*(one for one in properties if one in chosen), *chosen]:
            if one not in found and (properties.get(one, others) is not False or one in required):
                found[one] = kept[one] if one in kept else self._value(properties.get(one, others), one)
        is_map = name and not properties and "additionalProperties" in schema and others is not False
        least = max(schema.get("minProperties", 0), int(bool(is_map)))
        if least > _MOST:
            raise _Nothing
        for _ in range(_MOST):
            if len(found) >= least:
                break
            more = [one for one in properties if one not in found and properties[one] is not False]
            key = self._one_of(more) if more else self._key(schema.get("propertyNames", {}), name)
            # A value under a free name is one of what the map is named after.
            found.setdefault(key, self._value(properties.get(key, others), key if key in properties else name))
        return found

    def _key(self, given: Any, name: str) -> str:  # noqa: ANN401 - a schema of a stranger
        return str(self._value({"allOf": [{"type": "string"}, given]}, name))


def _bounds(schema: Schema, name: str, sign: int) -> list[tuple[Fraction, int]]:
    """Return the bounds of one side, each with a number that is not 0 where the bound itself is left out."""
    bound, strict = schema.get(name), schema.get(f"exclusive{name.capitalize()}")
    pairs = [(bound, strict)] if isinstance(strict, bool) else [(bound, False), (strict, True)]  # draft 4, later ones
    return [(Fraction(str(one)), sign * left) for one, left in pairs if one is not None]


def _is_other(text: str, form: Any) -> bool:  # noqa: ANN401 - a value of a stranger's schema
    return form in _FORMATS and _FORMATS[form].fullmatch(text) is None


def _of_other_formats(value: JsonValue, given: Any, root: Schema, levels: int = 4) -> set[str]:  # noqa: ANN401
    """Return the keys of ``value`` within which a text is not of the format that its schema names."""
    if not levels or not isinstance(given, dict):
        return set()
    schema = resolved(given, root)
    if isinstance(value, str):
        return {""} if _is_other(value, schema.get("format")) else set()
    inside = (
        {str(place): (one, schema.get("items")) for place, one in enumerate(value)} if isinstance(value, list) else {}
    )
    if isinstance(value, dict):
        inside = {key: (one, schema.get("properties", {}).get(key)) for key, one in value.items()}
    return {key for key, (one, part) in inside.items() if _of_other_formats(one, part, root, levels - 1)}
