"""Compute fingerprints of tasks, for decontamination and for the search for duplicates.

A fingerprint hashes the initial state, the setup and the reference with its values (our choice). The user's wording is
left out: the same calls from the same state are the same task, however it is worded. Held-out sets are recorded by
content, too, as hashes of their parts.

A held-out evaluation set publishes the fingerprints and call sequences of its tasks (``PublishedSet``), so that they
can be compared without opening the set. Warm start, D_0 and drafts are refused when their fingerprint is published,
and when their content is that of a held-out task (``environments.verification.decontamination``, which reads a record
beside these files). Equal value-free call sequences are reported, never refused. A missing or altered file is an error:
decontamination must not fail open.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Self, TypeVar

from pydantic import JsonValue, ValidationError, model_validator

from environments.base import Environment, InputError, Record, TaskSpec, ToolCall
from environments.verification.canonical import (
    Canonical,
    canonical,
    digest,
    part_digest,
    shape,
    state_words,
    words,
)
from environments.verification.replay import bare_task


def fingerprint(task: TaskSpec) -> str:
    """Return the SHA-256 (64 hex digits) of the canonical JSON of initial state, setup and reference with values.

    Key order does not matter, and neither does the way a whole number is written (30 and 30.0 are one value). A task
    whose first turns are played is another one than the whole task: the number of these turns counts, too.
    """
    content: JsonValue = [
        _canonical(task.initial_state),
        [_call(call) for call in task.setup],
        [[_call(call) for call in turn] for turn in task.reference],
        *([task.played] if task.played else []),
    ]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def call_sequence(task: TaskSpec) -> tuple[str, ...]:
    """Return the names of the reference's calls in order, without values: overlap is reported, never refused."""
    return tuple(call.name for turn in task.reference for call in turn)


def hashed_call(call: ToolCall) -> tuple[str, str]:
    """Return the name, cut to 100 characters, and the hash (16 hex digits) of the arguments, in canonical form.

    The length does not depend on the call, and no value of it can be read.
    """
    text = json.dumps(_canonical(call.arguments), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return call.name[:100], hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


def _call(call: ToolCall) -> JsonValue:
    return [call.name, _canonical(call.arguments)]


def _canonical(value: JsonValue) -> JsonValue:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    return value


SUFFIX = ".fingerprints.json"


class PublishedSet(Record):
    """The published record of an evaluation set: sorted fingerprints, distinct call sequences, the SHA-256 of both."""

    panel: str
    environment: str
    fingerprints: tuple[str, ...]
    call_sequences: tuple[tuple[str, ...], ...]
    sha256: str

    @model_validator(mode="after")
    def _unaltered(self) -> Self:
        if self.sha256 != _digest(self.fingerprints, self.call_sequences):
            raise ValueError("sha256 does not belong to these fingerprints and call sequences")
        return self


def sets_folder(environment: str) -> Path:
    """Return the folder of a packaged benchmark's evaluation sets."""
    return Path(__file__).parents[1] / environment / "panels"


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


def published_sets(environment: str) -> tuple[PublishedSet, ...]:
    """Return the published records of the evaluation sets of ``environment``, by file name.

    Raises InputError when there is no file or a file was altered.
    """
    paths = sorted(sets_folder(environment).glob(f"*{SUFFIX}"))
    if not paths:
        raise InputError(
            f"no set of the environment {environment!r} publishes fingerprints in {sets_folder(environment)}: "
            "check the folder out of the repository again"
        )
    return tuple(read_fixed(path, PublishedSet) for path in paths)


def held_out_fingerprints(environment: str) -> frozenset[str]:
    """Return the fingerprints of every held-out task. Raises InputError like ``published_sets``."""
    return frozenset(own for one in published_sets(environment) for own in one.fingerprints)


def _digest(fingerprints: tuple[str, ...], call_sequences: tuple[tuple[str, ...], ...]) -> str:
    return hashlib.sha256(json.dumps([fingerprints, call_sequences]).encode("ascii")).hexdigest()


LONG_TURN = 8
"""Words of a user turn that identify its source on their own (ours: shorter ones coincide by chance)."""

SMALL = 14
"""Most words of a start state in which renaming one word makes a different state (our choice)."""


class HeldOutStart(Record):
    """A part of a start state: its hash as loaded, its words by number, and a readable label of its origin."""

    label: str
    part: str
    digest: str
    words: tuple[int, ...]


class HeldOutTask(Record):
    """One held-out task, or the first turns of one.

    ``starts`` are the hashes of the parts that its calls touch, ``changes`` and ``reads`` those of ``Canonical``.
    ``distinctive``: its setup and reference give another result from every start of training. ``nameless`` are the
    hashes of its calls without names, ``shape`` that of its start state; both are set only for a small start state,
    in which renaming a word makes a different state. ``said`` hashes its text and calls. ``words`` and ``calls`` are
    of the recorded file, and not read.
    """

    id: str
    starts: dict[str, str]
    changes: str
    reads: tuple[str, ...]
    nameless: tuple[str, ...] = ()
    shape: str = ""
    distinctive: bool = False
    said: str = ""
    words: tuple[int, ...] = ()
    calls: tuple[int, ...] = ()


class HeldOutRecord(Record):
    """The held-out tasks of an environment, by content. ``sha256`` is the hash of all other fields.

    ``by_start``: whole start states are held out, so every task that begins in one is refused. ``vocabulary`` has the
    hashes of all words, which the other fields refer to by number. ``training`` are the parts of the start states of
    training, ``held_out`` those of the held-out splits that training does not have. ``turns`` are hashes of user turns
    of ``LONG_TURN`` words and more.
    """

    environment: str
    by_start: bool
    vocabulary: tuple[str, ...]
    training: tuple[HeldOutStart, ...]
    held_out: tuple[HeldOutStart, ...]
    turns: tuple[str, ...]
    tasks: tuple[HeldOutTask, ...]
    sha256: str

    @model_validator(mode="after")
    def _unaltered(self) -> Self:
        if self.sha256 != _sha256(self.model_dump(mode="json", exclude={"sha256"})):
            raise ValueError("sha256 does not belong to what is recorded")
        return self

    def __hash__(self) -> int:
        """Return the hash of ``sha256``, so that what is made of a record can be cached."""
        return hash(self.sha256)


def record_of(environment: Environment, tasks: Sequence[tuple[str, TaskSpec]]) -> HeldOutRecord:
    """Return the record of tasks that a run holds out (``evaluation.tasks``), by their ids.

    Their texts are not recorded, as they are like those of training. A task that the environment cannot open is left
    out. Raises EnvironmentFault when the environment failed.
    """
    numbers: dict[str, int] = {}

    def numbered(found: Iterable[str]) -> tuple[int, ...]:
        hashes = sorted({word_digest(word) for word in found})
        return tuple(numbers.setdefault(one, len(numbers)) for one in hashes)

    def starts(label: str, form: Canonical) -> Iterator[HeldOutStart]:
        for part, value in form.parts.items():
            yield HeldOutStart(label=label, part=part, digest=part_digest(value), words=numbered(state_words(value)))

    training: dict[tuple[str, str], HeldOutStart] = {}
    for begun in map(bare_task, environment.starts()):
        for start in starts("training", canonical(environment, begun)):
            training.setdefault((start.part, start.digest), start)
    held_out: dict[tuple[str, str], HeldOutStart] = {}
    recorded: dict[str, HeldOutTask] = {}
    for name, task in tasks:
        try:
            form = canonical(environment, task)
        except (InputError, RecursionError):
            continue
        for start in starts(name, form):
            if (start.part, start.digest) not in training:
                held_out.setdefault((start.part, start.digest), start)
        if not form.steps:
            continue
        touched = {part: part_digest(form.parts[part]) for part in form.touched}
        words_of_start = {word for part in form.touched for word in state_words(form.parts[part])}
        small = len(words_of_start) <= SMALL and not training.keys() >= touched.items()
        one = HeldOutTask(
            id=name,
            starts=touched,
            changes=form.changes,
            reads=tuple(sorted(form.reads)),
            nameless=form.nameless() if small else (),
            shape=shape_of(form) if small else "",
        )
        recorded.setdefault(one.model_dump_json(exclude={"id"}), one)
    content: dict[str, JsonValue] = {
        "environment": environment.name,
        "by_start": False,
        "vocabulary": list(numbers),
        "training": [start.model_dump(mode="json") for start in training.values()],
        "held_out": [start.model_dump(mode="json") for start in held_out.values()],
        "turns": [],
        "tasks": [task.model_dump(mode="json") for task in recorded.values()],
    }
    return HeldOutRecord.model_validate(content | {"sha256": _sha256(content)})


def shape_of(form: Canonical) -> str:
    return digest([shape(form.parts[part]) for part in form.touched])


def said(task: TaskSpec, form: Canonical) -> str:
    return digest([[list(words(text)) for text in task.turns], [step.text for step in form.steps]])


def turn_digest(text: str) -> str:
    return digest(list(words(text)))


@lru_cache(maxsize=65536)
def word_digest(word: str) -> str:
    return hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def _sha256(content: JsonValue) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()
