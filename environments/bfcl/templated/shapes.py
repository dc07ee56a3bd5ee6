"""Define the parts of a wording: openings, objects and suffixes, and the calls that they are for.

A shape is a function, the set of its optional parameters that are given, and its documented constants where they change
the goal (engage or release, lock or unlock). A wording joins one of three openings ("delete", "get {it} locked"), one
of three objects ("the item {file_name}"), and a suffix for each optional parameter that needs one.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import JsonValue


class Phrase(NamedTuple):
    """Interchangeable texts for the calls of a function that give their slots, in braces, and the constants.

    ``openings`` begin a clause, which a suffix does not: the text follows them, or replaces their ``{it}``. A constant
    that is None stands for an argument that is not given.
    """

    function: str
    openings: tuple[str, ...]
    texts: tuple[str, ...]
    constants: Mapping[str, JsonValue]

    @property
    def slots(self) -> set[str]:
        """The parameters whose values each of the texts holds."""
        return slots(self.texts[0])

    def fits(self, arguments: Mapping[str, JsonValue]) -> bool:
        """Return whether a call with these arguments has the slots and the constants; 1 is not True."""
        found = [(arguments.get(name), value) for name, value in self.constants.items()]
        equal = all(type(given) is type(value) and given == value for given, value in found)
        return equal and self.slots <= arguments.keys()


def case(function: str, openings: str, texts: str, **constants: JsonValue) -> Phrase:
    """Make the openings and objects of a clause from alternatives separated by ``|``."""
    return Phrase(function, _alternatives(openings), _alternatives(texts), constants)


def suffix(function: str, texts: str, **constants: JsonValue) -> Phrase:
    """Make a suffix from alternatives separated by ``|``."""
    return Phrase(function, (), _alternatives(texts), constants)


def slots(text: str) -> set[str]:
    """Return the parameters whose values a text holds."""
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def _alternatives(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split("|"))
