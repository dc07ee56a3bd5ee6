"""Decide whether a value fits a parameter: by its kind, and by the words of the key under which it was seen (ours).

By name: the key's words are words of the parameter or its description, one of the parameter's name at least
("travel_date" of a booking is not a "travel_from"). A key without a meaning ("id"), a record's own key and an item of a
list are named after what holds them: the keys of "parcels" fit "label of the parcel". A description like "the zipcode
of the city" says what is wanted, whatever the name.

By kind: an identifier has a digit and no blanks, dates are for dates alone, sentences for prose, pieces of texts for
what is searched for. A number becomes a text, or a text a number, for identifiers alone.

A documented value is a choice, a quoted constant, a number with its gloss, or in a range of a parameter's description.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import NamedTuple

from pydantic import JsonValue

from agents.scripted.knowledge import name_words, parameter_words
from agents.scripted.values import CONTAINERS, MAX_TEXT, Scalar, Sighting
from environments.base import Parameter, ToolSpec
from environments.task_text import words

_NUMBER = r"-?\d+(?:\.\d+)?"
_GLOSSED = re.compile(rf"({_NUMBER})(?:\s*\(([^)]*)\))?")
_RANGE = re.compile(rf"(?:between|from)\s+({_NUMBER})(?:\s*\([^)]*\))?\s+(?:and|to)\s+({_NUMBER})", re.IGNORECASE)
_MULTIPLE = re.compile(rf"multiple of ({_NUMBER})", re.IGNORECASE)
_QUOTED = re.compile(r"(?<!\w)'([^'\s]{1,20})'(?!\w)|\"([^\"\s]{1,20})\"")
_ALTERNATIVES = re.compile(r"\((\w+(?:/\w+)+)\)")
_DATE_PARTS = {"YYYY": "%Y", "MM": "%m", "DD": "%d"}
_DATE_FORMAT = re.compile(r"(?<!\w)(?:YYYY|MM|DD)(?:[-/.](?:YYYY|MM|DD)){1,2}(?!\w)")
_NEGATIONS = frozenset({"not", "no", "without"})
_MOST_RANGE_VALUES = 1000


class DocumentedNumber(NamedTuple):
    """A number that a description mentions, the words that explain it, and whether they deny something."""

    value: float
    gloss: frozenset[str]
    denied: bool


def constants(parameter: Parameter) -> tuple[JsonValue, ...]:
    """Documented values to be given literally: the choices, else the quoted words of a string's description.

    "Mode of operation ('l' for lines, 'w' for words)" documents 'l' and 'w'. Empty when any value may be given.
    """
    if parameter.choices:
        return parameter.choices
    if parameter.type == "boolean":
        return (True, False)
    if parameter.type != "string" or date_format(parameter) is not None:
        return ()
    alternatives = _ALTERNATIVES.search(parameter.description)
    if alternatives is not None:
        return tuple(alternatives.group(1).split("/"))
    quoted = [single or double for single, double in _QUOTED.findall(parameter.description)]
    return tuple(dict.fromkeys(quoted)) if len(quoted) > 1 else ()


def date_format(parameter: Parameter) -> str | None:
    """Return the format of ``datetime.strftime`` that a text parameter documents ("YYYY-MM-DD"), None without one."""
    found = _DATE_FORMAT.search(parameter.description) if parameter.type == "string" else None
    return None if found is None else re.sub("YYYY|MM|DD", lambda part: _DATE_PARTS[part.group()], found.group())


def mentioned(parameter: Parameter) -> tuple[str, ...]:
    """Return the single quoted words of a string's description.

    Each is one value among others, such as the current directory ".".
    """
    if parameter.type != "string" or constants(parameter) or date_format(parameter):
        return ()
    return tuple(dict.fromkeys(single or double for single, double in _QUOTED.findall(parameter.description)))


def numbers(parameter: Parameter) -> tuple[DocumentedNumber, ...]:
    """Numbers that the description of a numeric parameter mentions, its documented default among them."""
    if parameter.type not in ("integer", "float"):
        return ()
    found = [
        DocumentedNumber(float(value), frozenset(words(gloss)), bool(_NEGATIONS & set(gloss.lower().split())))
        for value, gloss in _GLOSSED.findall(parameter.description)
    ]
    if isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool):
        found.append(DocumentedNumber(float(parameter.default), frozenset(), False))
    return tuple({number.value: number for number in reversed(found)}.values())[::-1]


def in_range(parameter: Parameter) -> tuple[float, ...]:
    """Return values of a numeric parameter's range ("between 0 and 120 and a multiple of 5"); empty without one.

    They are every step, or tenths of the range where any value is allowed; at most a thousand, the smallest first.
    """
    found = _RANGE.search(parameter.description)
    if found is None or parameter.type not in ("integer", "float"):
        return ()
    low, high = sorted((float(found.group(1)), float(found.group(2))))
    multiple = _MULTIPLE.search(parameter.description)
    step = abs(float(multiple.group(1))) if multiple else float(parameter.type == "integer")
    step = step or (high - low) / 10 or 1.0
    count = min(int((high - low) / step + 1e-9), _MOST_RANGE_VALUES)
    return tuple(round(low + step * k, 6) for k in range(count + 1))


_LARGEST = 1e6
_LONGEST_NAME = 4  # words
_IDENTIFIERS = frozenset(words("id identifier token"))
_IDENTITY = _IDENTIFIERS | frozenset(words("code symbol label name key number"))
_WEAK = frozenset(words("name number date type"))
_PROSE = frozenset(words("content message text title body description comment resolution note question answer"))
_SEARCHED = frozenset(words("pattern keyword query search term"))
_DATED = frozenset(words("date time day birth month year"))
_OF = re.compile(
    r"(.*?)\bof (?:the |an? |each |your )?(.+?)(?: (?:to|for|in|on|from|that|which|whose|with|at|is)\b|[.,;:(\[]|$)",
    re.IGNORECASE,
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d.*|\d\d?/(?:\d\d?/)?\d{4}")
_CODE = re.compile(r"(?=.*\d)[A-Z0-9_-]+")


class Wanted(NamedTuple):
    """The words of a parameter. ``core``: one of them is in a fitting key; ``allowed``: all words of the key are;
    ``things``: what a value without a telling key may be the identity of."""

    core: frozenset[str]
    allowed: frozenset[str]
    things: frozenset[str]
    identifier: bool
    named: bool
    prose: bool
    searched: bool
    dated: bool


@lru_cache(maxsize=4096)
def wanted(tool: str, name: str, description: str) -> Wanted:
    """Read what a parameter of a tool wants from its name and description."""
    own, said = name_words(name), parameter_words(description)
    found = _OF.match(description)
    what = [one for one in words(found.group(1)) if one not in CONTAINERS] if found else []
    whose = frozenset(words(found.group(2))) if found else frozenset[str]()
    core, things = own, own - _IDENTITY
    if what and what[-1] not in _IDENTITY and not own & frozenset(what):
        core, things = frozenset(what), frozenset()
    elif not what or what[-1] in _IDENTITY:
        things = things | whose or frozenset(words(tool)[1:])
    head = own | frozenset(what[-1:] or words(description)[:1])
    return Wanted(
        core=core - _IDENTIFIERS,
        allowed=own | said,
        things=things,
        identifier=bool(own & _IDENTIFIERS),
        named=bool(head & frozenset(words("name"))),
        prose=bool(head & _PROSE),
        searched=bool(head & _SEARCHED),
        dated=bool((own | said) & _DATED),
    )


def fitting(sighting: Sighting, tool: ToolSpec, parameter: Parameter) -> Scalar | None:
    """Return the value as ``parameter`` of ``tool`` takes it where it fits, else None."""
    if sighting.only_for is not None:
        return converted(sighting.value, parameter) if sighting.only_for == (tool.name, parameter.name) else None
    asked = wanted(tool.name, parameter.name, parameter.description)
    if sighting.piece:
        return converted(sighting.value, parameter) if asked.searched else None
    same_kind = isinstance(sighting.value, str) == (parameter.type == "string") or asked.identifier
    if not same_kind or not _is_named(asked, sighting.key, sighting.around):
        return None
    value = converted(sighting.value, parameter)
    return value if not isinstance(value, str) or _is_of_kind(value, asked) else None


@lru_cache(maxsize=65536)
def _is_named(asked: Wanted, key: tuple[str, ...], around: frozenset[str]) -> bool:
    if not key:
        return not (asked.prose or around.isdisjoint(asked.things))
    if asked.allowed.issuperset(key) and (shared := asked.core.intersection(key)):
        return bool(shared - _WEAK) or (asked.core <= _WEAK and (not around or not around.isdisjoint(asked.things)))
    return not asked.prose and key[-1] in asked.things


def _is_of_kind(text: str, asked: Wanted) -> bool:
    if asked.identifier:
        return " " not in text and any(map(str.isdigit, text))
    if bool(_DATE.fullmatch(text)) != asked.dated and not asked.prose:
        return False
    long = len(text.split()) > _LONGEST_NAME
    return asked.prose or not (long or (asked.named and _CODE.fullmatch(text)))


def converted(value: Scalar, parameter: Parameter) -> Scalar | None:
    """Convert ``value`` to an integer, float or string.

    Return None if it cannot be converted, is too long or large, or out of the documented range.
    """
    if parameter.type == "string":
        text = str(value)
        return text if text.strip() and len(text) <= MAX_TEXT and "\n" not in text else None
    try:
        number = float(value) if parameter.type in ("integer", "float") else math.nan
    except ValueError:
        return None
    allowed = in_range(parameter) or (-_LARGEST, _LARGEST)
    if not allowed[0] <= number <= allowed[-1] or (parameter.type == "integer" and not number.is_integer()):
        return None
    return int(number) if parameter.type == "integer" else number
