"""Write one call in the wording of its shape, for training or for evaluation sets.

Of the nine pairs of opening and object that a shape has, the three on a fixed diagonal are for evaluation sets, the
other six for training (our choice): a wording of an evaluation set is never used in training, but each of its words
is, in wordings of the same shape. Suffixes and connectives are shared. Free values are written so that they can be read
back: strings as JSON string literals in double quotes, numbers bare as JSON numbers, lists as their items joined by
commas.
"""

from __future__ import annotations

import json
import math
import random
import string
from itertools import product
from typing import Literal

from pydantic import JsonValue

from environments.base import InputError, ToolCall
from environments.bfcl.templated import file_wordings, vehicle_wordings
from environments.bfcl.templated.shapes import Case, Suffix

Wordings = Literal["train", "panel"]

CASES = {**file_wordings.CASES, **vehicle_wordings.CASES}
SUFFIXES = {**file_wordings.SUFFIXES, **vehicle_wordings.SUFFIXES}
CONSTANTS = vehicle_wordings.CONSTANTS


def templates(call: ToolCall, wordings: Wordings) -> tuple[str, ...]:
    """Return every wording of the call's shape, with {parameter} slots for its values.

    An argument that is null counts as not given. Raises InputError where the table has no words for the call: a
    function of another class, a parameter that is missing or that the function lacks, a constant that the
    documentation does not list.
    """
    case, suffixes = _shape(call.name, _given(call))
    cores = [
        opening.replace("{it}", it) if "{it}" in opening else f"{opening} {it}"
        for (i, opening), (j, it) in product(enumerate(case.openings), enumerate(case.objects))
        if ((i + j) % len(case.objects) == 0) == (wordings == "panel")
    ]
    return tuple(" ".join(parts) for parts in product(cores, *(suffix.phrases for suffix in suffixes)))


def clause(call: ToolCall, wordings: Wordings, rng: random.Random) -> str:
    """Return the call as one clause, in a wording drawn with ``rng``.

    Raises InputError like ``templates``, and for a value that a sentence cannot hold (an object, infinity).
    """
    template = rng.choice(templates(call, wordings))
    arguments = _given(call)
    return template.format(**{name: _words(call.name, name, arguments[name]) for name in _slots(template)})


def _given(call: ToolCall) -> dict[str, JsonValue]:
    return {name: value for name, value in call.arguments.items() if value is not None}


def _slots(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def _shape(function: str, arguments: dict[str, JsonValue]) -> tuple[Case, tuple[Suffix, ...]]:
    for case in CASES.get(function, ()):
        if all(condition.holds(arguments) for condition in case.conditions):
            suffixes = tuple(suffix for suffix in SUFFIXES.get(function, ()) if suffix.condition.holds(arguments))
            conditions = (*case.conditions, *(suffix.condition for suffix in suffixes))
            said = {condition.parameter for condition in conditions if condition.present}
            said |= _slots(" ".join((case.objects[0], *(suffix.phrases[0] for suffix in suffixes))))
            if said == arguments.keys():
                return case, suffixes
    raise InputError(
        f"no wording for {function}({', '.join(f'{name}={value!r}' for name, value in arguments.items())}): "
        "templated text covers documented calls of GorillaFileSystem and VehicleControlAPI, write this task's text"
    )


def _words(function: str, parameter: str, value: JsonValue) -> str:
    constants = CONSTANTS.get((function, parameter))
    if constants is None:
        return _literal(function, parameter, value)
    chosen = value if isinstance(value, list) else [value]
    if unknown := [item for item in chosen if not isinstance(item, str) or item not in constants]:
        raise InputError(
            f"no wording for {parameter}={unknown[0]!r} of {function}: "
            f"the documented constants are {', '.join(constants)}"
        )
    if isinstance(value, list) and set(value) == constants.keys():
        return "all"
    said = [constants[str(item)] for item in chosen]
    return " and ".join(filter(None, (", ".join(said[:-1]), said[-1]))) if said else "no"


def _literal(function: str, parameter: str, value: JsonValue) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(_literal(function, parameter, item) for item in value) or "nothing"
    if isinstance(value, str) or (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ):
        return json.dumps(value, ensure_ascii=False)
    raise InputError(f"no words for {parameter}={value!r} of {function}: give text, a number or a list of texts")
