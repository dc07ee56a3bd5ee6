"""Reads values from a parameter's documentation: choices, quoted constants, numbers with their gloss, ranges."""

from __future__ import annotations

import re
from typing import NamedTuple

from pydantic import JsonValue

from environments.base import Parameter
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


class DocumentedRange(NamedTuple):
    """The smallest and largest value a description allows, and the step between values (0: any)."""

    low: float
    high: float
    step: float


def constants(parameter: Parameter) -> tuple[JsonValue, ...]:
    """Documented values to be given literally: the choices, else the quoted words of a string's description.

    "Mode of operation ('l' for lines, 'w' for words)" documents 'l' and 'w'. Empty when any value may be given.
    """
    if parameter.choices:
        return parameter.choices
    if parameter.type == "boolean":
        return (True, False)
    if parameter.type != "string":
        return ()
    if date_format(parameter) is not None:
        return ()
    alternatives = _ALTERNATIVES.search(parameter.description)
    if alternatives is not None:
        return tuple(alternatives.group(1).split("/"))
    quoted = [single or double for single, double in _QUOTED.findall(parameter.description)]
    return tuple(dict.fromkeys(quoted)) if len(quoted) > 1 else ()


def date_format(parameter: Parameter) -> str | None:
    """Return the format of ``datetime.strftime`` that a text parameter documents ("YYYY-MM-DD"), None without one."""
    found = _DATE_FORMAT.search(parameter.description) if parameter.type == "string" else None
    if found is None:
        return None
    return re.sub("YYYY|MM|DD", lambda part: _DATE_PARTS[part.group()], found.group())


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


def number_range(parameter: Parameter) -> DocumentedRange | None:
    """Return the range of a numeric parameter ("between 0 and 120 and a multiple of 5"); None without one."""
    found = _RANGE.search(parameter.description)
    if found is None or parameter.type not in ("integer", "float"):
        return None
    low, high = sorted((float(found.group(1)), float(found.group(2))))
    multiple = _MULTIPLE.search(parameter.description)
    step = abs(float(multiple.group(1))) if multiple else (1.0 if parameter.type == "integer" else 0.0)
    return DocumentedRange(low, high, step)


def values_in(extent: DocumentedRange) -> tuple[float, ...]:
    """Values of a documented range: every step, or tenths of it where any value is allowed; at most a thousand."""
    step = extent.step or (extent.high - extent.low) / 10 or 1.0
    count = min(int((extent.high - extent.low) / step + 1e-9), _MOST_RANGE_VALUES)
    return tuple(round(extent.low + step * k, 6) for k in range(count + 1))
