"""The parts a wording is made of: openings, objects and suffixes, and when they apply.

A shape is a function, which of its optional parameters are given, and its documented constants where they change what
is wanted (engage or release, lock or unlock). A wording puts one of three openings ("delete", "get {it} locked") and
one of three objects ("the item {file_name}") together, and a suffix for each optional parameter that needs one.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import JsonValue


class Condition(NamedTuple):
    """On one argument: given (``present``) or not, and if given, equal to ``value`` unless that is None."""

    parameter: str
    present: bool = True
    value: JsonValue = None

    def holds(self, arguments: dict[str, JsonValue]) -> bool:
        """Whether a call with these arguments meets it."""
        if not self.present or self.parameter not in arguments:
            return self.present == (self.parameter in arguments)
        found = arguments[self.parameter]
        return self.value is None or (type(found) is type(self.value) and found == self.value)


class Case(NamedTuple):
    """Openings and objects for the calls that meet every condition. ``{it}`` in an opening stands for the object."""

    openings: tuple[str, ...]
    objects: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()


class Suffix(NamedTuple):
    """Interchangeable phrases that are appended when the condition is met."""

    condition: Condition
    phrases: tuple[str, ...]


def case(openings: str, objects: str, *conditions: Condition) -> Case:
    """A case from alternatives separated by ``|``."""
    return Case(_alternatives(openings), _alternatives(objects), conditions)


def suffix(condition: Condition, phrases: str) -> Suffix:
    """A suffix from alternatives separated by ``|``."""
    return Suffix(condition, _alternatives(phrases))


def given(parameter: str) -> Condition:
    """The argument is given, whatever its value."""
    return Condition(parameter)


def absent(parameter: str) -> Condition:
    """The argument is not given."""
    return Condition(parameter, present=False)


def equals(parameter: str, value: JsonValue) -> Condition:
    """The argument is given and has this value."""
    return Condition(parameter, value=value)


def _alternatives(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split("|"))
