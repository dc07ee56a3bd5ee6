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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Self, TypeVar

from pydantic import JsonValue, ValidationError, model_validator

from environments.base import Environment, InputError, Record, StartState, TaskSpec, ToolCall
from environments.verification.canonical import (
    Canonical,
    canonical,
    canonical_call,
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
    in which renaming a word makes a different state. ``said`` hashes its text and calls. ``words`` and ``calls``
    number the words of both, and are empty where another task is reported instead.
    """

    id: str
    starts: dict[str, str]
    changes: str
    reads: tuple[str, ...]
    nameless: tuple[str, ...] = ()
    shape: str = ""
    distinctive: bool = False
    said: str = ""
    words: tuple[int, ...]
    calls: tuple[int, ...]


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


def write_record(path: Path, record: HeldOutRecord) -> None:
    """Write ``record``, one start or task per line."""
    fields = []
    for name, value in record.model_dump(mode="json").items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines = ",\n".join(f"  {json.dumps(one, separators=(',', ':'))}" for one in value)
            fields.append(f'"{name}": [\n{lines}\n ]')
        else:
            fields.append(f'"{name}": {json.dumps(value)}')
    path.write_text("{\n " + ",\n ".join(fields) + "\n}\n", encoding="utf-8")


class Recorder:
    """Make the record of an environment's held-out sets.

    Args:
        environment: plays the tasks.
        training: the starts of training, or tasks that begin there.
        training_turns: user turns that training may have.
    """

    def __init__(
        self,
        environment: Environment,
        training: Iterable[StartState | TaskSpec],
        training_turns: Iterable[str] = (),
    ) -> None:
        self._environment = environment
        self._numbers: dict[str, int] = {}
        self._training = tuple(map(bare_task, training))
        self._training_parts: dict[tuple[str, str], HeldOutStart] = {}
        self._held_out: dict[tuple[str, str], HeldOutStart] = {}
        self._tasks: dict[str, HeldOutTask] = {}
        self._turns: set[str] = set()
        self._training_turns = {turn_digest(text) for text in training_turns}
        for task in self._training:
            for start in self._starts("training", canonical(environment, task).parts):
                self._training_parts.setdefault((start.part, start.digest), start)

    def add(
        self, name: str, task: TaskSpec, *, start: str | None = None, with_text: bool = True, neighbour: bool = True
    ) -> None:
        """Record one held-out task; ``start`` is the label of its start state, by default the task's name.

        ``with_text``: its texts differ from all texts of training, so a task with one of them is refused.
        ``neighbour``: it may be reported as the nearest. Raises the errors of ``canonical``.
        """
        form = canonical(self._environment, task)
        for part in self._starts(start or name, form.parts):
            if (part.part, part.digest) not in self._training_parts:
                self._held_out.setdefault((part.part, part.digest), part)
        if not form.steps:
            return
        if with_text:
            self._turns |= {turn_digest(text) for text in task.turns if len(words(text)) >= LONG_TURN}
        words_of_start = {word for part in form.touched for word in state_words(form.parts[part])}
        small = len(words_of_start) <= SMALL and not all(
            (part, part_digest(form.parts[part])) in self._training_parts for part in form.touched
        )
        recorded = HeldOutTask(
            id=name,
            starts={part: part_digest(form.parts[part]) for part in form.touched},
            changes=form.changes,
            reads=tuple(sorted(form.reads)),
            nameless=form.nameless() if small else (),
            shape=shape_of(form) if small else "",
            said=said(task, form) if with_text else "",
            words=self._numbered(text_words(task)) if neighbour else (),
            calls=self._numbered(call_words(self._environment, task)) if neighbour else (),
        )
        content = recorded.model_dump_json(exclude={"id"})
        self._tasks.setdefault(content, recorded)

    def mark_distinctive(self, name: str, task: TaskSpec) -> bool:
        """Mark the record of ``name`` as distinctive where no start of training gives the result of its own start.

        ``task`` is played from every start of training that has one of its classes. Returns whether it was marked.
        """
        own = canonical(self._environment, task)
        for start in self._training:
            if not set(task.classes) & set(start.classes):
                continue
            other = canonical(self._environment, task.model_copy(update={"initial_state": start.initial_state}))
            if (other.changes, other.reads) == (own.changes, own.reads):
                return False
        for content, recorded in self._tasks.items():
            if recorded.id == name:
                self._tasks[content] = recorded.model_copy(update={"distinctive": True})
        return True

    def record(self, *, by_start: bool) -> HeldOutRecord:
        """Return the record of all added tasks; see ``HeldOutRecord`` for ``by_start``."""
        content: dict[str, JsonValue] = {
            "environment": self._environment.name,
            "by_start": by_start,
            "vocabulary": list(self._numbers),
            "training": [start.model_dump(mode="json") for start in self._training_parts.values()],
            "held_out": [start.model_dump(mode="json") for start in self._held_out.values()],
            "turns": [*sorted(self._turns - self._training_turns)],
            "tasks": [task.model_dump(mode="json") for task in self._tasks.values()],
        }
        return HeldOutRecord.model_validate(content | {"sha256": _sha256(content)})

    def _starts(self, label: str, parts: Mapping[str, JsonValue]) -> Iterator[HeldOutStart]:
        for part, value in parts.items():
            yield HeldOutStart(
                label=label, part=part, digest=part_digest(value), words=self._numbered(state_words(value))
            )

    def _numbered(self, found: Iterable[str]) -> tuple[int, ...]:
        hashes = sorted({word_digest(word) for word in found})
        return tuple(self._numbers.setdefault(one, len(self._numbers)) for one in hashes)


def record_of(environment: Environment, tasks: Sequence[tuple[str, TaskSpec]]) -> HeldOutRecord:
    """Return the record of tasks that a run holds out (``evaluation.tasks``), whose texts are like those of training.

    A task that the environment cannot open is left out. Raises EnvironmentFault when the environment failed.
    """
    recorder = Recorder(environment, environment.starts())
    for name, task in tasks:
        try:
            recorder.add(name, task, with_text=False)
        except (InputError, RecursionError):
            continue
    return recorder.record(by_start=False)


def shape_of(form: Canonical) -> str:
    return digest([shape(form.parts[part]) for part in form.touched])


def said(task: TaskSpec, form: Canonical) -> str:
    return digest([[list(words(text)) for text in task.turns], [step.text for step in form.steps]])


def turn_digest(text: str) -> str:
    return digest(list(words(text)))


def text_words(task: TaskSpec) -> Iterator[str]:
    for text in task.turns:
        yield from words(text)


def call_words(environment: Environment, task: TaskSpec) -> Iterator[str]:
    for calls in task.reference:
        for call in calls:
            name, arguments = json.loads(canonical_call(environment, call)[1])
            yield f"call {name}"
            for parameter, value in arguments.items():
                yield f"call {name} {parameter} {json.dumps(value, sort_keys=True)}"


@lru_cache(maxsize=65536)
def word_digest(word: str) -> str:
    return hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def _sha256(content: JsonValue) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()
