"""Define the parts of a wording: openings, objects and suffixes, and their conditions.

A shape is a function, the set of its optional parameters that are given, and its documented constants where they change
the goal (engage or release, lock or unlock). A wording joins one of three openings ("delete", "get {it} locked"), one
of three objects ("the item {file_name}"), and a suffix for each optional parameter that needs one.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import JsonValue


class Condition(NamedTuple):
    """A condition on one argument: given (``present``) or not, and equal to ``value`` unless that is None."""

    parameter: str
    present: bool = True
    value: JsonValue = None

    def holds(self, arguments: dict[str, JsonValue]) -> bool:
        """Return whether a call with these arguments meets the condition."""
        if not self.present or self.parameter not in arguments:
            return self.present == (self.parameter in arguments)
        found = arguments[self.parameter]
        return self.value is None or (type(found) is type(self.value) and found == self.value)


class Case(NamedTuple):
    """Openings and objects for the calls that meet every condition. The object replaces ``{it}`` in an opening."""

    openings: tuple[str, ...]
    objects: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()


class Suffix(NamedTuple):
    """Interchangeable phrases that are appended when the condition is met."""

    condition: Condition
    phrases: tuple[str, ...]


def case(openings: str, objects: str, *conditions: Condition) -> Case:
    """Make a case from alternatives separated by ``|``."""
    return Case(_alternatives(openings), _alternatives(objects), conditions)


def suffix(condition: Condition, phrases: str) -> Suffix:
    """Make a suffix from alternatives separated by ``|``."""
    return Suffix(condition, _alternatives(phrases))


def given(parameter: str) -> Condition:
    """Make the condition that the argument is given, with any value."""
    return Condition(parameter)


def absent(parameter: str) -> Condition:
    """Make the condition that the argument is not given."""
    return Condition(parameter, present=False)


def equals(parameter: str, value: JsonValue) -> Condition:
    """Make the condition that the argument is given and has this value."""
    return Condition(parameter, value=value)


def _alternatives(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split("|"))
