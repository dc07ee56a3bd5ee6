"""Values that arguments are drawn from: those that an explorer has seen, and which of them worked.

A seen value has the words of its key, the values next to it, and whether a newer answer of the same kind has replaced
it. Sources are initial states, answers to calls that did not fail, the explorer's own calls, what the context's facts
say of calls and such answers, and what people gave. What the policy wrote is not a value, and neither are an error's
text and a missing value ("None", as Python writes null). The user's words name no key, so their values fit nothing.
"""

from __future__ import annotations

import json
import random
import re
from ast import literal_eval
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from pydantic import JsonValue

from agents.evidence import OBSERVED, SAID, WROTE, fact_values, is_success
from environments.answers import says_error
from environments.base import Observation, ToolCall
from environments.task_text import words

MAX_TEXT = 80
"""Most characters of a string offered as an argument (our choice: user turns stay readable)."""

_MAX_OBSERVATION = 20_000
_MAX_LEAVES = 200
_MAX_PIECES = 24
_MAX_NEAR = 12
_SENTENCE = 3  # words of an answer that is not a name (ours)
_WORD = re.compile(r"[A-Za-z]{3,}")
_LONG_WORD = re.compile(r"[A-Za-z]{4,12}")
_ENDING = re.compile(r"(?<=.)\.[A-Za-z0-9]{1,5}$")
_MISSING = frozenset(("none", "null"))
_STATE = "state"
_REPORTS = frozenset(("message", "status"))  # keys under which answers say what was done
_ID = frozenset(words("id identifier"))
CONTAINERS = frozenset(
    words("list map record history queue inbox table set dict entry item collection result current level")
)
"""Stems of words that say how values are kept, not what they are."""

Scalar = str | int | float


@dataclass(frozen=True)
class Sighting:
    """One value and its place.

    ``key``: stems of its key, without words for identifiers and containers; empty for what is the identity of a thing:
    an "id", a record's key, an item of a list without a name. ``around``: stems of what holds it, the key further out
    or the tool that answered it. ``kind``: the stem of a "type" that the state declares for it; ``parent``: its direct
    parent's name in the state. ``near``: values it belongs to (the folders above a file, the arguments of the call that
    returned it). ``source``: tool and key, or the other source. ``piece``: a word or part of a
    longer text. ``only_for``: the one (tool, parameter) that takes it; None for any.
    """

    value: Scalar
    key: tuple[str, ...] = ()
    around: frozenset[str] = frozenset()
    kind: str = ""
    parent: str | None = None
    near: frozenset[Scalar] = frozenset()
    source: str = _STATE
    order: int = 0
    piece: bool = False
    only_for: tuple[str, str] | None = None


@dataclass
class Sightings:
    """All sightings of one episode, in order.

    ``place`` is the explorer's current place in the state's tree: the top until it moves.
    """

    items: list[Sighting] = field(default_factory=list)
    place: str | None = None
    _parents: dict[str, str | None] = field(default_factory=dict)
    _kinds: dict[Scalar, set[str]] = field(default_factory=dict)
    _doubted: set[Scalar] = field(default_factory=set)
    _latest: dict[str, int] = field(default_factory=dict)
    _clock: int = 0

    def __iter__(self) -> Iterator[Sighting]:
        return iter(self.items)

    def is_fresh(self, sighting: Sighting) -> bool:
        """Return whether it was observed in this episode and no later answer of the same source has replaced it."""
        return self._latest.get(sighting.source) == sighting.order

    def in_place(self, sighting: Sighting) -> bool:
        """Return whether the state has it directly under the explorer's current place."""
        here = self.place is not None and sighting.kind and sighting.parent == self.place
        return bool(here) and sighting.value not in self._doubted

    def doubt(self, call: ToolCall, message: str) -> None:
        """Mark arguments of ``call`` that an error named: they may no longer be where the state has them."""
        self._doubted.update(value for value in scalars(call.arguments) if str(value) in message)

    def kinds_of(self, value: Scalar) -> frozenset[str]:
        """Return the kinds that the state, or the call that made it, declares for a name."""
        return frozenset(self._kinds.get(value, ()))

    def of_kinds(self, kinds: Collection[str]) -> tuple[Scalar, ...]:
        """Return the names of which one of ``kinds`` is declared."""
        return tuple(value for value, own in self._kinds.items() if not own.isdisjoint(kinds))

    def kinds(self) -> frozenset[str]:
        """Return every kind of name that was seen."""
        return frozenset(kind for kinds in self._kinds.values() for kind in kinds)

    def move(self, name: str) -> None:
        """Set the current place to ``name``, or with ".." to the parent of the current one."""
        if name == "..":
            self.place = self._parents.get(self.place) if self.place is not None else None
        elif name in self._parents:
            self.place = name

    def see_state(self, initial_state: dict[str, JsonValue]) -> None:
        """Take the leaves and the names of an initial state, class by class."""
        for state in initial_state.values():
            self._walk_state(state, (), (), False)
        tops = [name for name, parent in self._parents.items() if parent is None]
        self.place = tops[0] if len(tops) == 1 else None

    def see_observation(self, call: ToolCall, observation: Observation) -> None:
        """Take the leaves of an answer, unless the call failed; they are near the call's arguments.

        A sentence under no key of its own ("Entities deleted successfully") says what was done: its words are values.
        """
        if observation.failed or says_error(observation.text) or len(observation.text) > _MAX_OBSERVATION:
            return
        self._clock += 1
        near = frozenset(scalars(call.arguments))
        for leaf in islice(scalar_leaves(_parsed(observation.text)), _MAX_LEAVES):
            if leaf.key.casefold() in _REPORTS:
                continue
            source = f"{call.name}:{leaf.key}"
            self._latest[source] = self._clock
            self._doubted.discard(leaf.value)
            told = not leaf.tells and isinstance(leaf.value, str) and len(leaf.value.split()) >= _SENTENCE
            self._add(leaf.value, leaf.named(words(call.name)[1:]), near, source, whole=not told)

    def see_call(self, call: ToolCall, kinds: Mapping[str, str]) -> None:
        """Take the arguments of a call that ran: what it made can be named again.

        ``kinds`` maps parameter to value kind; such names are relative to the explorer's current place.
        """
        self._clock += 1
        values = frozenset(scalars(call.arguments))
        for name, argument in call.arguments.items():
            source = f"{call.name}({name})"
            self._latest[source] = self._clock
            kind = kinds.get(name, "") if isinstance(argument, str) and argument not in self._kinds else ""
            if kind and isinstance(argument, str):
                self._kinds[argument] = {kind}
                self._parents.setdefault(argument, self.place)
            parent = self.place or None if kind else None
            for value in scalars(argument):
                self._add(value, _named((name,), item=False), values - {value}, source, kind, parent)

    def see_facts(self, facts: Sequence[str]) -> None:
        """Take what a context's facts say of the failed trajectory: its arguments, and the values of its answers."""
        for name, value in fact_values(facts):
            if name == OBSERVED and isinstance(value, str):
                answer = _parsed(value)  # any other text than an object's or a list's may have been cut
                for leaf in islice(scalar_leaves(answer), _MAX_LEAVES) if isinstance(answer, dict | list) else ():
                    if not says_error(answer):
                        self._add(leaf.value, leaf.named(()), source="fact")
            elif name not in (SAID, WROTE, OBSERVED):
                for scalar in scalars(value):
                    self._add(scalar, _named((name,), item=False), source="fact")

    def see_listed(self, message: str, values: Sequence[str]) -> None:
        """Take the values that an error lists."""
        for value in values:
            self._add(value, ((), frozenset(words(message))), source="fact")

    def see_for(self, tool: str, parameter: str, value: Scalar, near: frozenset[Scalar]) -> None:
        """Take a value that is known to suit one parameter of one tool."""
        source = f"{tool}({parameter})"
        self.items.append(Sighting(value, near=near, source=source, only_for=(tool, parameter)))

    def _walk_state(self, node: JsonValue, path: tuple[str, ...], near: tuple[str, ...], item: bool) -> None:
        if isinstance(node, dict):
            records = bool(node) and all(isinstance(child, dict) for child in node.values())
            for key, child in node.items():
                if records and isinstance(child, dict) and any(not isinstance(leaf, dict) for leaf in child.values()):
                    declared, parent = child.get("type"), near[-1] if near else None
                    child_kind = next(iter(words(declared)), "") if isinstance(declared, str) else ""
                    if child_kind:
                        self._parents.setdefault(key, parent)
                        self._kinds.setdefault(key, set()).add(child_kind)
                    self._add(key, ((), _stems(path[-1:])), frozenset(near), kind=child_kind, parent=parent)
                    self._walk_state(child, path, (*near, key), False)
                elif key != "type":
                    self._walk_state(child, (*path, key), near, False)
        elif isinstance(node, list):
            for child in node:
                self._walk_state(child, path, near, True)
        elif isinstance(node, str | int | float) and not isinstance(node, bool):
            self._add(node, _named(path[-2:], item=item), frozenset(near[-_MAX_NEAR:]))

    def _add(
        self,
        value: Scalar,
        named: Named,
        near: frozenset[Scalar] = frozenset(),
        source: str = _STATE,
        kind: str = "",
        parent: str | None = None,
        *,
        whole: bool = True,
    ) -> None:
        if isinstance(value, str) and value.strip().casefold() in _MISSING:
            return
        if not isinstance(value, str) or (whole and value.strip() and len(value) <= MAX_TEXT and "\n" not in value):
            self.items.append(Sighting(value, *named, kind, parent, near, source, self._clock))
        for piece in _pieces(value) if isinstance(value, str) else ():
            self.items.append(Sighting(piece, *named, "", None, near, source, self._clock, piece=True))


Named = tuple[tuple[str, ...], frozenset[str]]
"""``key`` and ``around`` of a sighting."""


def _named(path: Sequence[str], *, item: bool, outside: Sequence[str] = ()) -> Named:
    """Return the name of a leaf under the keys ``path``, within something of the stems ``outside``.

    A key of containers alone ("result", none at all) has the name of what holds it, unless it is a list, whose items
    are things of that name.
    """
    around = _stems(path[-2:-1]) or frozenset(outside)
    own = words(path[-1]) if path else ()
    key = tuple(stem for stem in own if stem not in CONTAINERS and stem not in _ID)
    if not key and not item and not _ID & frozenset(own):
        key = tuple(stem for stem in words(" ".join(path[-2:-1])) or outside if stem not in CONTAINERS)
    return key, around


def _stems(keys: Sequence[str]) -> frozenset[str]:
    return frozenset(stem for key in keys for stem in words(key)) - CONTAINERS


def _pieces(text: str) -> list[str]:
    parts = [part.strip() for part in re.split(r"[,;\n]", text)]
    found = [part for part in parts if part != text and 1 < len(part) <= MAX_TEXT]
    found += [word for word in _WORD.findall(text) if word != text and len(word) <= MAX_TEXT]
    return [piece for piece in dict.fromkeys(found) if piece.casefold() not in _MISSING][:_MAX_PIECES]


def _parsed(text: str) -> JsonValue:
    """Return what a text holds as JSON, or as Python writes objects and lists; else the text."""
    with suppress(ValueError, RecursionError):
        value: JsonValue = json.loads(text)
        return value
    if text[:1] in ("[", "{"):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            written: JsonValue = json.loads(json.dumps(literal_eval(text)))
            return written
    return text


class Leaf(NamedTuple):
    """A scalar of an answer, the keys to it, and whether it is an item of a list."""

    value: Scalar
    path: tuple[str, ...]
    item: bool

    @property
    def key(self) -> str:
        return self.path[-1] if self.path else ""

    @property
    def tells(self) -> bool:
        """Whether it has a key that says what it is."""
        return self.item or not CONTAINERS.issuperset(words(self.key))

    def named(self, outside: Sequence[str]) -> Named:
        return _named(self.path, item=self.item, outside=outside)


def scalar_leaves(node: JsonValue) -> Iterator[Leaf]:
    """Yield the texts and numbers within a value in order. A server nests answers deeper than Python may recurse."""
    stack: list[tuple[JsonValue, tuple[str, ...], bool]] = [(node, (), False)]
    while stack:
        one, path, item = stack.pop()
        if isinstance(one, dict):
            stack += [(child, (*path, name), False) for name, child in reversed(one.items())]
        elif isinstance(one, list):
            stack += [(child, path, True) for child in reversed(one)]
        elif isinstance(one, str | int | float) and not isinstance(one, bool):
            yield Leaf(one, path, item)


def scalars(node: JsonValue) -> list[Scalar]:
    """Return the texts and numbers within a value."""
    return [leaf.value for leaf in scalar_leaves(node)]


def ending(name: str) -> str:
    """Return the ending of a file's name (".txt"), empty without one."""
    found = _ENDING.search(name)
    return found.group() if found else ""


def invented_name(sightings: Sightings, kinds: Collection[str], like: str | None, rng: random.Random) -> str | None:
    """Invent a name of one or two words of names of the ``kinds``, with the ending of ``like``, else of one of them.

    Return None where no word of a name of that kind was seen.
    """
    names = [str(value) for value in sightings.of_kinds(kinds)]
    pool = [
        *dict.fromkeys(word.lower() for name in names for word in _LONG_WORD.findall(name.removesuffix(ending(name))))
    ]
    if not pool:
        return None
    parts = rng.sample(pool, min(len(pool), rng.choice((1, 1, 2))))
    return "_".join(parts) + ending(rng.choice(names) if like is None else like)


@dataclass
class Experience:
    """Counts of outcomes by value and by source of values, for each parameter of each tool."""

    _sources: defaultdict[tuple[str, str, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    _used: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _refused: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _wrong: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def learn(self, call: ToolCall, observation: Observation, sightings: Sightings) -> None:
        """Count the outcome of a call for its values and for the sources they came from."""
        fine = is_success(observation)
        for name, argument in call.arguments.items():
            key = (call.name, name, str(argument))
            self._used[key] += fine
            self._refused[key] = 0 if fine else self._refused[key] + 1
            self._wrong[key] += not fine and str(argument) in observation.text
            for source in {s.source for s in sightings if s.value == argument and not s.piece}:
                self._sources[call.name, name, source][0 if fine else 1] += 1

    def trust(self, tool: str, parameter: str, source: str) -> float:
        """Return the trust in a source, from -1 (its values were refused) over 0 (not tried) to 1."""
        good, bad = self._sources.get((tool, parameter, source), (0, 0))
        return (good - bad) / (good + bad + 1)

    def wear(self, tool: str, parameter: str, value: JsonValue, each: float) -> float:
        """Return the penalty of a value for its uses here.

        It is ``each`` for every success and every failure since the last success, and 2 for every answer to a failed
        call that named the value.
        """
        key = tool, parameter, str(value)
        return each * (self._used[key] + self._refused[key]) + 2.0 * self._wrong[key]
