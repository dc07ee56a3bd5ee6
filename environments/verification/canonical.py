"""Compute the forms in which tasks are compared: fingerprints, and the canonical form.

A fingerprint hashes the initial state, the setup and the reference with its values (our choice). The user's wording is
left out: the same calls from the same state are the same task, however it is worded. A held-out set publishes
the fingerprints and call sequences of its tasks (``PublishedSet``), so that they can be compared without opening it.

Two records with different text can be one task: they may differ in a key that the environment does not read, a default
that is written out, a file that no call touches, or a call that only reads. The canonical form leaves all of that out:
it has the start state as loaded, and the reads and changes of the reference, so that decontamination
(``verification.decontamination``) compares tasks, not records. An environment that can compute its states without
playing implements ``Canonicalises``; for every other one the reference is played once, in one episode.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, Self, TypeVar, runtime_checkable

from pydantic import JsonValue, ValidationError, model_validator

from environments.base import Environment, InputError, Record, TaskSpec, ToolCall, ToolSpec, begun
from environments.verification.programs import parsed

_WORD = re.compile(r"\w+")


def fingerprint(task: TaskSpec) -> str:
    """Return the SHA-256 (64 hex digits) of the canonical JSON of initial state, setup and reference with values.

    A sample of the state's facts (``environments.base.SAMPLE``) is not part of it. Key order does not matter, and
    neither does the way a whole number is written (30 and 30.0 are one value). A task whose first turns are played is
    another one than the whole task: the number of these turns counts, too.
    """
    return _hashed(
        [
            begun(task.initial_state),
            [[call.name, call.arguments] for call in task.setup],
            [[[call.name, call.arguments] for call in turn] for turn in task.reference],
            *([task.played] if task.played else []),
        ]
    )


def call_sequence(task: TaskSpec) -> tuple[str, ...]:
    """Return the names of the reference's calls in order, without values: overlap is reported, never refused."""
    return tuple(call.name for turn in task.reference for call in turn)


def hashed_call(call: ToolCall) -> tuple[str, str]:
    """Return the name, cut to 100 characters, and the hash (16 hex digits) of the arguments, in canonical form.

    The length does not depend on the call, and no value of it can be read.
    """
    return call.name[:100], _hashed(call.arguments)[:16]


def _hashed(value: JsonValue) -> str:
    """Return the SHA-256 of a value as JSON with sorted keys, in which whole numbers are written without a point."""
    plain = json.loads(json.dumps(value), parse_float=lambda number: _number(float(number)))
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class PublishedSet(Record):
    """The published record of an evaluation set: sorted fingerprints, distinct call sequences, the SHA-256 of both."""

    panel: str
    environment: str
    fingerprints: tuple[str, ...]
    call_sequences: tuple[tuple[str, ...], ...]
    sha256: str

    @model_validator(mode="after")
    def _unaltered(self) -> Self:
        content = json.dumps([self.fingerprints, self.call_sequences])
        if self.sha256 != hashlib.sha256(content.encode("ascii")).hexdigest():
            raise ValueError("sha256 does not belong to these fingerprints and call sequences")
        return self


_Fixed = TypeVar("_Fixed", bound=Record)


def read_fixed(path: Path, kind: type[_Fixed]) -> _Fixed:
    """Read a record that ships with the project. Raises InputError when it is missing, unreadable or altered."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check it out of the repository again") from error
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise InputError(f"{path} was altered ({reason}): check it out of the repository again") from error


@dataclass(frozen=True, slots=True)
class CanonicalStep:
    """One call of a reference: the tool's ``group``, the call's text, its result, and the state change.

    ``text`` is JSON of the name and the arguments that are neither null nor the documented default. ``observation``
    (the result) and ``change`` are empty where an environment does not play; a step that only ``reads`` does not change
    the state.
    """

    group: str
    text: str
    observation: str
    change: str
    reads: bool

    @property
    def digest(self) -> str:
        """Hash of the call, its result and the state change."""
        return digest([self.text, self.observation, self.change])


@dataclass(frozen=True, slots=True)
class Canonical:
    """A task in canonical form.

    ``parts`` is the start state as loaded, before the setup; ``prepared`` after it. Both are by name of the part (for
    BFCL: the class). ``split`` is the split that the start belongs to by its content, None where the environment
    cannot determine it.
    """

    parts: Mapping[str, JsonValue]
    prepared: Mapping[str, JsonValue]
    steps: tuple[CanonicalStep, ...]
    split: str | None = None

    @property
    def changes(self) -> str:
        """Hash of the calls that change the state, in order; empty where none does."""
        changing: list[JsonValue] = [step.digest for step in self.steps if not step.reads]
        return digest(changing) if changing else ""

    @property
    def reads(self) -> frozenset[str]:
        """Hashes of the calls that only read."""
        return frozenset(step.digest for step in self.steps if step.reads)

    def nameless(self) -> tuple[str, ...]:
        """Return the hashes of the calls with every text of the start state replaced by its place in the call.

        They are equal for a task whose files are renamed, in its state and in its calls.
        """
        known = {_plain_text(text) for part in self.touched for text in texts_in(self.parts[part]) if text.strip()}
        if not known:
            return tuple(step.digest for step in self.steps)
        longest_first = sorted(known, key=len, reverse=True)
        names = re.compile("|".join(rf"(?<!\w){re.escape(text)}(?!\w)" for text in longest_first))
        wholes = ("\n".join((step.text, step.observation, step.change)) for step in self.steps)
        return tuple(digest(_numbered(names, whole)) for whole in wholes)

    @property
    def touched(self) -> tuple[str, ...]:
        """Names of the parts whose tools the reference calls; all parts where tools and parts are named otherwise."""
        groups = {step.group for step in self.steps}
        return tuple(sorted(groups & self.parts.keys())) or tuple(sorted(self.parts))


@runtime_checkable
class Canonicalises(Protocol):
    """An environment that computes a task's canonical form without playing it."""

    def canonical(self, task: TaskSpec) -> Canonical:
        """Return the canonical form of ``task``. Raises InputError for a task that the environment cannot open."""
        ...


def canonical(environment: Environment, task: TaskSpec) -> Canonical:
    """Return the canonical form of ``task``, from the environment itself or by playing its reference once.

    Raises InputError for a task that the environment cannot open, EnvironmentFault when the environment itself
    failed, and RecursionError where a state has no finite text.
    """
    return environment.canonical(task) if isinstance(environment, Canonicalises) else _played(environment, task)


def canonical_call(environment: Environment, call: ToolCall) -> tuple[str, str]:
    """Return the group of the call's tool (empty for an unknown one), and the call as text.

    Arguments that are null or the documented default are left out, lists of documented choices are sorted, programs
    are written in Python's normal form, and runs of white space count as one blank.
    """
    tool: ToolSpec | None = None
    with suppress(InputError):
        tool = environment.tools((call.name,))[0]
    arguments = {name: _argument(tool, name, value) for name, value in call.arguments.items()}
    given = {name: plain for name, plain in arguments.items() if plain is not None}
    return tool.group if tool else "", json.dumps([call.name, given], sort_keys=True)


def digest(value: JsonValue) -> str:
    """Return the hash of a JSON value, 16 hex digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def part_digest(value: JsonValue) -> str:
    """Return the hash of a part of a state, ignoring white space in its texts."""
    return digest(_plain(value))


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text in lower case: runs of letters, digits and underscores."""
    return tuple(_WORD.findall(text.casefold()))


def state_words(value: JsonValue, key: str = "") -> Iterator[str]:
    """Yield the words of a state: those of its texts and keys, and its numbers and booleans with their key.

    The place of a text does not matter: renaming a file removes one word, nothing else.
    """
    if isinstance(value, dict):
        for name, item in value.items():
            yield from words(name)
            yield from state_words(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from state_words(item, key)
    elif isinstance(value, str):
        yield from words(value)
    elif value is not None:
        yield f"{key}={_number(value)}"


def _numbered(names: re.Pattern[str], text: str) -> str:
    places = {name: f"<{place}>" for place, name in enumerate(dict.fromkeys(names.findall(text)))}
    return names.sub(lambda found: places[found[0]], text)


def texts_in(value: JsonValue) -> Iterator[str]:
    """Yield the texts and keys of a JSON value, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)


def shape(value: JsonValue) -> JsonValue:
    """Return a state without its texts: its nesting and its numbers."""
    if isinstance(value, dict):
        return sorted((shape(item) for item in value.values()), key=json.dumps)
    if isinstance(value, list):
        return [shape(item) for item in value]
    return "" if isinstance(value, str) else value


def _played(environment: Environment, task: TaskSpec) -> Canonical:
    # Long contexts add the same bulk to every state: the task is the same without it.
    plain = task.model_copy(update={"long_context": False})
    loaded = None
    if task.setup:
        with closing(environment.open(plain.model_copy(update={"setup": ()}))) as episode:
            episode.start()
            loaded = _parts(episode.state())
    steps: list[CanonicalStep] = []
    with closing(environment.open(plain)) as episode:
        episode.start()
        text = episode.state()
        prepared = before = _parts(text)
        for turn, calls in enumerate(plain.reference):
            if turn:
                episode.end_turn()
            for call in calls:
                observed = episode.step(call).text
                now = episode.state()
                after = before if now == text else _parts(now)
                change = "" if now == text else "\n".join(sorted(map(json.dumps, _changes(before, after, ""))))
                group, written = canonical_call(environment, call)
                steps.append(CanonicalStep(group, written, _plain_text(observed), change, reads=now == text))
                text, before = now, after
    return Canonical(parts=prepared if loaded is None else loaded, prepared=prepared, steps=tuple(steps))


def _parts(text: str) -> dict[str, JsonValue]:
    """Return the state by part; one part without a name where its text is not a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"": value}


def _changes(before: JsonValue, after: JsonValue, path: str) -> Iterator[list[JsonValue]]:
    """Yield [path, old, new] for every value that differs; a missing value is null."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            if before.get(key) != after.get(key):
                yield from _changes(before.get(key), after.get(key), f"{path}/{_plain_text(key)}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            if old != new:
                yield from _changes(old, new, f"{path}/{place}")
    elif before != after:
        yield [path, json.dumps(_plain(before), sort_keys=True), json.dumps(_plain(after), sort_keys=True)]


def _argument(tool: ToolSpec | None, name: str, value: JsonValue) -> JsonValue:
    """Return the value in plain form; None for an argument that can be left out."""
    parameter = tool.parameter(name) if tool else None
    if parameter is None:
        return _plain(value)
    if not parameter.required and value == parameter.default and type(value) is type(parameter.default):
        return None
    if isinstance(value, str) and parameter.type == "code":
        return program_text(value)
    if isinstance(value, list) and parameter.choices and all(item in parameter.choices for item in value):
        return sorted((_plain(item) for item in value), key=json.dumps)
    return _plain(value)


def program_text(code: str) -> str:
    """Return a program without comments and layout; the text itself where it is not Python."""
    try:
        return ast.unparse(parsed(code))
    except (ValueError, RecursionError):
        return _plain_text(code)


def _plain(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return _plain_text(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_plain_text(key): _plain(item) for key, item in value.items()}
    return value


def _plain_text(text: str) -> str:
    return " ".join(text.split())


def _number(value: float) -> float:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def shape_of(form: Canonical) -> str:
    return digest([shape(form.parts[part]) for part in form.touched])


def said(task: TaskSpec, form: Canonical) -> str:
    return digest([[list(words(text)) for text in task.turns], [step.text for step in form.steps]])


def turn_digest(text: str) -> str:
    return digest(list(words(text)))


@lru_cache(maxsize=65536)
def word_digest(word: str) -> str:
    return hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
