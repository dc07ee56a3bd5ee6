"""Draws arguments for an API of AppWorld: values seen under the parameter's key, else documented ones."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from math import ceil, floor

from pydantic import JsonValue

from agents.scripted.appworld.sightings import AnswerValue, Scalar
from environments.base import Parameter, ToolSpec

_OPTIONAL = 0.25
_NEVER = re.compile(r"page_|sort_by|_order$|_?access_token$|file_path|overwrite|^min_|^max_|^status$|^answer$")
_BOUND = re.compile(r"value (>=|>|<=|<) (\d+(?:\.\d+)?(?:e\+\d+)?)|(?<=, )(<=|<) (\d+(?:\.\d+)?(?:e\+\d+)?)")
_SHORT = frozenset(("title", "name", "label", "tags", "query"))
_WORDS = (
    *("summary", "draft", "archive", "final", "copy", "record", "backup", "review", "garden", "winter", "lemon"),
    *("harbour", "window", "paper", "silver", "market", "morning", "river", "letter", "orange", "table", "travel"),
)
_MOST = 60
_ADDRESSES = ("email", "phone_number")


def is_id(parameter: Parameter) -> bool:
    """Return whether the parameter takes the id of an object of an app."""
    return parameter.name.endswith("_id") and parameter.type == "integer"


def chosen_parameters(tool: ToolSpec, rng: random.Random) -> tuple[Parameter, ...]:
    """Choose the parameters to give: the required ones, and now and then an optional one."""
    given = [p for p in tool.parameters if p.required and not _NEVER.search(p.name)]
    free = [p for p in tool.parameters if not p.required and not _NEVER.search(p.name) and not is_id(p)]
    changes = tool.name.partition(".")[2].startswith("update_")
    if free and (changes or rng.random() < _OPTIONAL):
        given.append(rng.choice(free))
    return tuple(given)


def known_values(parameter: Parameter, app: str, seen: Sequence[AnswerValue]) -> tuple[Scalar, ...]:
    """Return values seen under the parameter's key; an id only in its own app, others also by the key's last word."""
    if is_id(parameter):
        return tuple(dict.fromkeys(s.value for s in seen if s.key == parameter.name and s.app == app))
    same = [s for s in seen if s.key == parameter.name or parameter.name.endswith(f"_{s.key}")]
    of_type = [s.value for s in same if isinstance(s.value, str) == (parameter.type == "string")]
    return tuple(dict.fromkeys(of_type)) if parameter.type in ("string", "integer", "float") else ()


def draw_value(parameter: Parameter, app: str, seen: Sequence[AnswerValue], rng: random.Random) -> JsonValue:
    """Draw a value for ``parameter``, which is not a token.

    Raises LookupError for an id, an e-mail address or a telephone number where none was seen.
    """
    if parameter.choices:
        return rng.choice(parameter.choices)
    if is_id(parameter) or parameter.name.endswith(_ADDRESSES):
        values = known_values(parameter, app, seen)
        if not values:
            raise LookupError(parameter.name)
        return rng.choice(values)
    draw = _DRAWN.get(parameter.type, _written)
    return draw(parameter, rng)


def _number(parameter: Parameter, rng: random.Random) -> JsonValue:
    """Draw a number within the documented bounds; a small one without bounds."""
    low, high = 1.0, None
    for sign, bound, other_sign, other in _BOUND.findall(parameter.description):
        at = float(bound or other)
        if (sign or other_sign).startswith(">"):
            low = max(at, low)
        else:
            high = at
    top = min(high if high is not None else low + _MOST, low + 9 * max(low, _MOST))
    number = rng.randint(ceil(low), max(ceil(low), floor(top)))
    return float(number) if parameter.type == "float" else number


def _written(parameter: Parameter, rng: random.Random) -> JsonValue:
    if "HH:MM" in parameter.description:
        return f"{rng.randint(0, 23):02}:{rng.choice((0, 15, 30, 45)):02}"
    if "YYYY-MM-DD" in parameter.description:
        return f"{rng.randint(2019, 2025)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    short = not _SHORT.isdisjoint(parameter.name.split("_"))
    return " ".join(rng.sample(_WORDS, rng.randint(1, 2) if short else rng.randint(2, 4)))


_DRAWN: dict[str, Callable[[Parameter, random.Random], JsonValue]] = {
    "boolean": lambda parameter, rng: rng.random() < 0.5,
    "integer": _number,
    "float": _number,
    "array": lambda parameter, rng: [_written(parameter, rng)],
}
