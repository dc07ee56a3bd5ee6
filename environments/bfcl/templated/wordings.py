"""Write calls in the wordings of their shapes, and user turns of them.

A shape is a function, the set of its optional parameters that are given, and its documented constants where they change
the goal (engage or release, lock or unlock). ``phrases.json`` has the words: three openings ("delete", "get {it}
locked") and three objects ("the item {file_name}") for each, and a suffix for each optional parameter that needs one.

Of the nine pairs of opening and object that a shape has, the three on a fixed diagonal are those of the evaluation sets
(commit c09bae7), the other six are used here (our choice): a wording of an evaluation set is never used in training,
but each of its words is, in wordings of the same shape. Suffixes and connectives are shared.

Free values are written so that they can be read back: strings as JSON string literals in double quotes, numbers bare as
JSON numbers, lists as their items joined by commas, objects as their keys, bare, each with its value. Documented
constants that are plain words are bare words.

The words of GorillaFileSystem and VehicleControlAPI hold no name of a function or parameter of the two. Names of the
other classes are English words ("add", "mean", "message") that no text can avoid: their words hold no name of several
words, and not the name of the function that they stand for.
"""

from __future__ import annotations

import json
import math
import random
import re
import string
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from pydantic import JsonValue

from environments import task_text
from environments.base import Environment, InputError, Record, TaskSpec, ToolCall
from environments.bfcl.official import all_tools
from environments.task_text import Spec
from environments.verification.canonical import read_fixed


class Phrase(Record):
    """Interchangeable texts for the calls of a function that give their slots, in braces, and the constants.

    ``openings`` begin a clause, which a suffix does not: the text follows them, or replaces their ``{it}``. A constant
    that is None stands for an argument that is not given.
    """

    function: str
    openings: tuple[str, ...] = ()
    texts: tuple[str, ...]
    constants: dict[str, JsonValue] = {}

    @property
    def slots(self) -> set[str]:
        """The parameters whose values each of the texts holds."""
        return _slots(self.texts[0])

    def fits(self, arguments: Mapping[str, JsonValue]) -> bool:
        """Return whether a call with these arguments has the slots and the constants; 1 is not True."""
        found = [(arguments.get(name), value) for name, value in self.constants.items()]
        equal = all(type(given) is type(value) and given == value for given, value in found)
        return equal and self.slots <= arguments.keys()


class _Phrases(Record):
    """``phrases.json``: of a function's cases the first that fits is used, and every suffix that fits."""

    cases: tuple[Phrase, ...]
    suffixes: tuple[Phrase, ...]


_READ = read_fixed(Path(__file__).with_name("phrases.json"), _Phrases)
CASES, SUFFIXES = _READ.cases, _READ.suffixes

_CONSTANTS = {
    ("adjustClimateControl", "unit"),
    ("adjustClimateControl", "mode"),
    ("displayCarStatus", "option"),
    ("lockDoors", "door"),
    ("authenticate_travel", "grant_type"),
    ("compute_exchange_rate", "base_currency"),
    ("compute_exchange_rate", "target_currency"),
    ("get_flight_cost", "travel_class"),
    ("get_nearest_airport_by_city", "location"),
}
_NOT_A_WORD = {
    "parkingBrake": "parking brake",
    "brakePedal": "brake pedal",
    "rear_left": "rear left",
    "rear_right": "rear right",
}

# "No such file or directory" does not name a file to make, and may be caused by the user's text; echo's "No such file"
# means that a file must be made first.
_FILE_TO_MAKE = re.compile(r"No such file(?! or directory)")

_KEY = re.compile(r"[A-Za-z_]\w*")


def templates(call: ToolCall) -> tuple[str, ...]:
    """Return every wording of the call's shape for training, with {parameter} slots for its values.

    An argument that is null counts as not given. Raises InputError where the table has no words for the call: a
    function of another class, a parameter that is missing or that the function lacks, a constant that the
    documentation does not list.
    """
    case, suffixes = _shape(call.name, _given(call))
    cores = [
        opening.replace("{it}", it) if "{it}" in opening else f"{opening} {it}"
        for (i, opening), (j, it) in product(enumerate(case.openings), enumerate(case.texts))
        if (i + j) % len(case.texts)
    ]
    return tuple(" ".join(parts) for parts in product(cores, *(suffix.texts for suffix in suffixes)))


def clause(call: ToolCall, rng: random.Random) -> str:
    """Return the call as one clause, in a wording drawn with ``rng``.

    Raises InputError like ``templates``, and for a value that a sentence cannot hold (a nested one, infinity).
    """
    template = rng.choice(templates(call))
    arguments = _given(call)
    return template.format(**{name: _words(call.name, name, arguments[name]) for name in _slots(template)})


def _slots(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def _given(call: ToolCall) -> dict[str, JsonValue]:
    return {name: value for name, value in call.arguments.items() if value is not None}


def _shape(function: str, arguments: dict[str, JsonValue]) -> tuple[Phrase, tuple[Phrase, ...]]:
    suffixes = tuple(one for one in SUFFIXES if one.function == function and one.fits(arguments))
    for case in CASES:
        if case.function == function and case.fits(arguments):
            said = {name for part in (case, *suffixes) for name in (*part.slots, *part.constants)}
            if said >= arguments.keys():
                return case, suffixes
    raise InputError(
        f"no wording for {function}({', '.join(f'{name}={value!r}' for name, value in arguments.items())}): "
        "templated text covers documented calls of the official classes, write this task's text"
    )


def constants_of(function: str, parameter: str) -> dict[str, str]:
    """Return the words of the documented constants that fill a slot; empty for a parameter with free values.

    Constants of one word are read as words; one of two would be taken apart, so it is quoted.
    """
    if (function, parameter) not in _CONSTANTS:
        return {}
    documented = all_tools()[function].parameter(parameter)
    assert documented is not None
    known = map(str, documented.choices)
    return {one: _NOT_A_WORD.get(one, f'"{one}"' if " " in one else one) for one in known}


def _words(function: str, parameter: str, value: JsonValue) -> str:
    constants = constants_of(function, parameter)
    if not constants:
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
    if isinstance(value, list) and all(_is_scalar(item) for item in value):
        return ", ".join(json.dumps(item, ensure_ascii=False) for item in value) or "nothing"
    if isinstance(value, dict) and all(_KEY.fullmatch(key) and _is_scalar(item) for key, item in value.items()):
        said = (f"{key} {json.dumps(item, ensure_ascii=False)}" for key, item in value.items())
        return ", ".join(said) or "nothing"
    if _is_scalar(value):
        return json.dumps(value, ensure_ascii=False)
    raise InputError(
        f"no words for {parameter}={value!r} of {function}: give text, a number, a list of them, or an object with "
        "such values under plain names"
    )


def _is_scalar(value: JsonValue) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def forced_calls(environment: Environment, spec: TaskSpec) -> tuple[tuple[bool, ...], ...]:
    """Return, for each turn and call of the reference, whether a precondition forces it (``environments.task_text``).

    An error that a file has to be made names that file. Raises InputError for a task that the environment cannot open
    or a tool that it does not have.
    """
    return task_text.forced_calls(environment, spec, _FILE_TO_MAKE)


def render_task(environment: Environment, spec: Spec, rng: random.Random) -> Spec:
    """Return ``spec`` with its user turns written, in wordings drawn with ``rng``; equal arguments give equal text.

    Raises InputError for a call that has no wording, a turn without calls, and like ``forced_calls``.
    """
    flags = forced_calls(environment, spec)
    return task_text.render_turns(spec, flags, clause, rng)
