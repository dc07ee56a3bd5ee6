"""Run the official simulators of one episode, without ``eval`` and without sharing objects between episodes.

``state_text`` writes the simulators' public state as canonical text: the state that the official check compares.

Caps (our choice, far above every official task; a call beyond one is answered with an error and not run): those of
every environment (``verification.replay.beyond_caps``); integers of 30 digits; precisions and decimal places of 1,000;
integer powers of 100,000 bits; no exponents in text where mpmath would read a number (it expands "1e999999999" digit by
digit).
"""

from __future__ import annotations

import json
import pickle
import random
import re
import threading
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import JsonValue

from environments.base import InputError, ObservationStatus, ToolCall
from environments.bfcl.official import all_tools, mutable_defaults, simulator_class, stateless_classes
from environments.task_text import leaves
from environments.verification.replay import beyond_caps

ERROR_PREFIX = "Error during execution: "
"""Beginning of the official executor's answer to a call that raised."""

_NOTHING_FOUND = {
    "get_symbol_by_name": "Stock not found",
    "get_nearest_airport_by_city": "Unknown",
    "get_zipcode_based_on_city": "00000",
    "retweet": "Already retweeted",
    "trading_login": "Already logged in",
    "trading_logout": "No user is currently logged in",
}
"""Answers in words that mean that nothing was found or nothing was done."""


def answer_text(result: object) -> str:
    """Return the official text of a returned value: strings as they are, dicts as JSON where possible, else ``str``.

    Raises ValueError, as the official executor's code does, where even ``str`` refuses (an integer of more than
    4,300 digits).
    """
    if type(result) is str:
        return result
    if type(result) is dict:
        try:
            return json.dumps(result)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return str(result)
    return str(result)


def answer_status(tool: str, result: object) -> ObservationStatus:
    """Return the status of a call that returned ``result``; the simulators report failure in several ways.

    Errors are an ``error`` key, an item with one, a string item that begins with "Error", and a status or success
    that is False (except where a login status was asked for). Empty is a dict whose every value is empty, an empty
    list, or one of the documented phrases. None and ``{}`` are the answers of commands that succeeded.
    """
    if isinstance(result, dict):
        return _dict_status(tool, result)
    if isinstance(result, list):
        if any(_is_error_item(item) for item in result):
            return ObservationStatus.ERROR
        return ObservationStatus.OK if result else ObservationStatus.EMPTY
    return ObservationStatus.OK


def _dict_status(tool: str, result: dict[str, object]) -> ObservationStatus:
    if "error" in result:
        return ObservationStatus.ERROR
    if not tool.endswith("get_login_status") and any(
        value is False and (key == "success" or key.endswith("status")) for key, value in result.items()
    ):
        return ObservationStatus.ERROR
    if tool in _NOTHING_FOUND and _NOTHING_FOUND[tool] in result.values():
        return ObservationStatus.EMPTY
    if result and all(
        value is None or (isinstance(value, str | list | dict) and not value) for value in result.values()
    ):
        return ObservationStatus.EMPTY
    return ObservationStatus.OK


def _is_error_item(item: object) -> bool:
    return (isinstance(item, dict) and "error" in item) or (isinstance(item, str) and item.startswith("Error:"))


IMPROPER_STATE = "state without a finite text"
"""The text of every state that is not a finite tree: a directory copied into itself, or copies of copies."""

MAX_SIZE = 8_000_000
"""Values and characters of text that a state may have."""

MAX_DEPTH = 100
"""Levels of nesting; a directory takes two."""


class _Improper(Exception):
    """The state has more values, characters or levels than a text can hold."""


def state_text(instances: Mapping[str, object]) -> str:
    """Return JSON of every public attribute by class name, keys sorted.

    Equal texts mean equal states, except for ``IMPROPER_STATE``, which is not JSON and so never equals a proper one.
    Numbers that are equal in Python have one text (1 and 1.0).
    """
    writer = _Writer()
    try:
        proper = {name: writer.attributes(instance, 0) for name, instance in instances.items()}
    except _Improper:
        return IMPROPER_STATE
    return json.dumps(proper, sort_keys=True, ensure_ascii=False)


class _Writer:
    """Convert attributes to JSON values and count their size."""

    def __init__(self) -> None:
        self._size = 0

    def attributes(self, instance: object, depth: int) -> dict[str, JsonValue]:
        return {
            name: self.value(value, depth + 1)
            for name, value in vars(instance).items()
            if not name.startswith("_") and name != "parent"
        }

    def value(self, value: object, depth: int) -> JsonValue:
        self._size += 1 + len(value) if isinstance(value, str) else 1
        if self._size > MAX_SIZE or depth > MAX_DEPTH:
            raise _Improper
        if value is None or isinstance(value, str | bool | int):
            return value
        if isinstance(value, float):
            return int(value) if value.is_integer() else value
        if isinstance(value, list | tuple):
            return [self.value(item, depth + 1) for item in value]
        if isinstance(value, set | frozenset):
            members: list[JsonValue] = [self.value(item, depth + 1) for item in value]
            return {"set": sorted(members, key=json.dumps)}
        if isinstance(value, dict):
            return self._dict(value, depth)
        return {type(value).__name__: self.attributes(value, depth)}

    def _dict(self, value: dict[object, object], depth: int) -> JsonValue:
        texts = {key: item for key, item in value.items() if isinstance(key, str)}
        if len(texts) == len(value):
            return {key: self.value(item, depth + 1) for key, item in texts.items()}
        keys = sorted(value, key=lambda key: (type(key).__name__, str(key)))
        return {"pairs": [[type(key).__name__, str(key), self.value(value[key], depth + 1)] for key in keys]}


MAX_TREE = 200_000
"""Characters of paths and contents that a file tree may have when it is copied or walked (our choice; officially
at most 6,000).

A copied directory shares its contents with the original, so each copy can double the tree, and one that is copied
into itself has no end: walking it would take the memory of the machine.
"""

MOST_DRAWS = 1000
"""Random draws of one call (our choice; officially one or two): a simulator that looks for a free id draws until it
finds one, and does not end where a state has used them all.
"""

_TREE_WALKS = frozenset(("cp", "find", "du"))

Plain = TypeVar("Plain")

_FORBIDDEN = frozenset(("kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run"))
"""Names that the official executor answers with "is not allowed" in place of "is not defined"."""

_SHARES_A_TABLE = "TravelAPI"
"""The class whose long-context loading puts rows of a module's table into instances, which then share them."""

_TRAVEL_CLASSES = ("business", "economy", "first")
_TICKET_FIELDS = frozenset(("title", "description", "status", "priority"))

# The simulators write to module globals (mpmath's precision, a weather table), so one call runs at a time.
_CALL_LOCK = threading.Lock()


class _BoundedDraws:
    """A simulator's random generator with the same draws, limited to ``MOST_DRAWS`` per call."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self.left = MOST_DRAWS

    def randint(self, lowest: int, highest: int) -> int:
        """As the generator's. Raises RuntimeError after too many draws."""
        self._count()
        return self._generator.randint(lowest, highest)

    def uniform(self, low: float, high: float) -> float:
        """As the generator's. Raises RuntimeError after too many draws."""
        self._count()
        return self._generator.uniform(low, high)

    def _count(self) -> None:
        if self.left == 0:
            raise RuntimeError(f"no free number was found in {MOST_DRAWS} draws")
        self.left -= 1


@dataclass(frozen=True)
class Answer:
    """The official result text of a call, its status, and whether a simulator's function ran."""

    text: str
    status: ObservationStatus
    ran: bool


class Simulators:
    """Fresh instances of ``classes`` loaded from ``initial_state`` ({class: official configuration}).

    A class without a configuration starts from its default state, as officially. Raises InputError for an unknown
    class or a configuration that cannot be loaded.
    """

    def __init__(self, classes: Sequence[str], initial_state: Mapping[str, JsonValue], long_context: bool) -> None:
        self.instances: dict[str, Any] = {
            name: _instance(name, initial_state.get(name, {}), long_context) for name in classes
        }

    def run(self, call: ToolCall) -> Answer:
        """Execute one call. Errors are answered in the official executor's words, never raised."""
        spec = all_tools().get(call.name)
        if spec is None or spec.group not in self.instances:
            return not_defined(call.name)
        if (reason := beyond_caps(call) or _beyond_own_caps(call)) is not None:
            return _refused(reason)
        instance = self.instances[spec.group]
        if call.name in _TREE_WALKS and _tree_beyond_cap(instance, call.arguments.get("source")):
            return _refused(f"the directory tree has more than {MAX_TREE} characters")
        given = {**mutable_defaults(call.name), **call.arguments}
        arguments = {key: _plain_copy(one) if isinstance(one, list | dict) else one for key, one in given.items()}
        for generator in _generators(instance).values():
            generator.left = MOST_DRAWS
        with _CALL_LOCK:
            return _executed(instance, call.name, arguments)

    def snapshot(self, classes: Container[str]) -> dict[str, Any]:
        """Return the current instances for comparison; those of ``classes`` are copied, because they will change.

        A copy shares the random generator of its instance.
        """
        return {name: _copied(one) if name in classes else one for name, one in self.instances.items()}

    def state(self) -> str:
        """Return the canonical text of the public state."""
        return state_text(self.instances)

    def close(self) -> None:
        """Do nothing: simulators hold nothing that has to be released."""


def not_defined(name: str) -> Answer:
    """Return the official answer to a call of an unknown function."""
    what = f"Function call {name} is not allowed." if name in _FORBIDDEN else f"name '{name}' is not defined"
    return _refused(what)


def _refused(reason: str) -> Answer:
    return Answer(text=ERROR_PREFIX + reason, status=ObservationStatus.ERROR, ran=False)


def _instance(name: str, configuration: JsonValue, long_context: bool) -> object:
    instance: Any = simulator_class(name)()
    if name in stateless_classes():
        return instance
    if not isinstance(configuration, dict):
        raise InputError(f"{name} cannot load its initial state: give an object with an official configuration")
    try:
        instance._load_scenario(_plain_copy(configuration), long_context=long_context)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise InputError(f"{name} cannot load its initial state ({error!r}): give an official configuration") from None
    for attribute, value in vars(instance).items():
        if isinstance(value, random.Random):
            vars(instance)[attribute] = _BoundedDraws(value)
    return _copied(instance) if long_context and name == _SHARES_A_TABLE else instance


def _generators(instance: object) -> dict[str, _BoundedDraws]:
    return {name: value for name, value in vars(instance).items() if isinstance(value, _BoundedDraws)}


def _copied(instance: object) -> object:
    """Return a copy that shares the random generator.

    Its 625 numbers take four fifths of a copy's time, and no check reads it.
    """
    shared = _generators(instance)
    own = {name: value for name, value in vars(instance).items() if name not in shared}
    copied: object = object.__new__(type(instance))
    vars(copied).update(_plain_copy(own), **shared)
    return copied


def _plain_copy(value: Plain) -> Plain:
    """Return a deep copy, several times as fast as ``copy.deepcopy``."""
    copied: Plain = pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    return copied


def _executed(instance: object, name: str, arguments: dict[str, Any]) -> Answer:
    try:
        result = getattr(instance, name)(**arguments)
        text = answer_text(result)
    except RecursionError:
        # Python's own text differs with the depth of the caller's stack.
        return Answer(ERROR_PREFIX + "maximum recursion depth exceeded", ObservationStatus.ERROR, ran=True)
    except Exception as error:  # noqa: BLE001 - the official executor answers every exception with its text
        return Answer(ERROR_PREFIX + str(error), ObservationStatus.ERROR, ran=True)
    return Answer(_ordered(name, arguments, text), answer_status(name, result), ran=True)


def _ordered(name: str, arguments: dict[str, Any], text: str) -> str:
    """Sort the set in two error texts that print one, because its order differs between processes."""
    if name == "book_flight" and "Must be one of {" in text:
        head = text[: text.index("Must be one of {")]
        return f'{head}Must be one of {{{", ".join(map(repr, _TRAVEL_CLASSES))}}}"}}'
    if name == "edit_ticket" and "Invalid fields for update: " in text:
        return answer_text(
            {"error": f"Invalid fields for update: {', '.join(sorted(arguments['updates'].keys() - _TICKET_FIELDS))}"}
        )
    return text


def _tree_beyond_cap(file_system: object, source: JsonValue) -> bool:
    """Return whether the tree, a working directory outside of it, and a copy of ``source`` exceed the cap."""
    attributes = vars(file_system)
    current = attributes["_current_dir"]
    waiting = [(attributes["root"], 0), (current, 0)]
    if isinstance(source, str) and source in current.contents:
        waiting.append((current.contents[source], 0))
    size = 0
    while waiting:
        item, above = waiting.pop()
        entry = vars(item)
        path = above + len(entry["name"]) + 1
        content = entry.get("content")
        size += path + (len(content) if isinstance(content, str) else 0)
        if size > MAX_TREE:
            return True
        waiting.extend((child, path) for child in entry.get("contents", {}).values())
    return False


MAX_INTEGER = 10**30
MAX_PRECISION = 1_000
MAX_POWER_BITS = 100_000

_EXPONENT = re.compile(r"[\d.]e[+-]?\d", re.IGNORECASE)
_PRECISIONS = {"logarithm": "precision", "square_root": "precision", "round_number": "decimal_places"}


def _beyond_own_caps(call: ToolCall) -> str | None:
    """Return the simulators' cap that the arguments of ``call`` exceed, in words, or None."""
    if any(isinstance(value, int) and abs(value) >= MAX_INTEGER for value in leaves(call.arguments)):
        return "an integer has more than 30 digits"
    # A precision given as text counts too: mpmath reads it.
    precision = _PRECISIONS.get(call.name)
    if precision is not None and abs(_integer(call.arguments.get(precision))) > MAX_PRECISION:
        return f"{precision} is beyond {MAX_PRECISION}"
    if call.name == "logarithm" and any(
        isinstance(value, str) and _EXPONENT.search(value) for value in call.arguments.values()
    ):
        return "a number is given as text with an exponent"
    if call.name == "power":
        base, exponent = call.arguments.get("base"), call.arguments.get("exponent")
        if isinstance(base, int) and isinstance(exponent, int) and abs(exponent) * base.bit_length() > MAX_POWER_BITS:
            return f"the power has more than {MAX_POWER_BITS} bits"
    return None


def _integer(value: JsonValue) -> int:
    """Return ``int`` of a number or a numeral, 0 for every other value."""
    if not isinstance(value, int | float | str):
        return 0
    try:
        return int(value)
    except (ValueError, OverflowError):
        return 0
