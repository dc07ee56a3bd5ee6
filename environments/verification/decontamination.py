"""Decontaminate: find out whether a task belongs to a held-out set, however its record is written.

Held-out sets are recorded by content (``HeldOutRecord``): hashes of start states as loaded, of the reads and changes
of references, of texts and of calls. A task is refused when

- its start state belongs to a held-out split: the environment reports so, or a part of it is a held-out part, or is
  nearer to one than to any part of a training start and shares half of its words;
- its reference makes the same changes with the same calls, and at least the same reads, as a held-out one: from the
  same start, or from a start that training does not have, or where no start of training could give this result;
- it is a held-out task of a small start state with other names;
- it has a held-out user turn of eight words and more (ours: shorter ones coincide by chance), or a held-out text and
  its calls.

Tasks that a run itself holds out (``evaluation.tasks``) may have a start of training: of them only the reference
counts, from the same start or from a copy of it.

Warm start, D_0 and drafts are also refused when their fingerprint is published. Equal value-free call sequences are
reported, never refused. A missing or altered file is an error: decontamination must not fail open.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pydantic import ConfigDict, JsonValue, model_validator

from environments.base import Environment, InputError, Record, TaskSpec, begun
from environments.verification.canonical import (
    Canonical,
    PublishedSet,
    canonical,
    fingerprint,
    part_digest,
    read_fixed,
    said,
    shape_of,
    state_words,
    turn_digest,
    word_digest,
)
from environments.verification.replay import bare_task

SUFFIX = ".fingerprints.json"


def sets_folder(environment: str) -> Path:
    """Return the folder of a packaged benchmark's evaluation sets."""
    return Path(__file__).parents[1] / environment / "panels"


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


def _sha256(content: JsonValue) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()


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
    hashes of its calls without names, ``shape`` that of its start state; both only for a small start state (``SMALL``).
    ``said`` hashes its text and calls. Further keys of a recorded file (``words``, ``calls``) are not read.
    """

    model_config = ConfigDict(extra="ignore")

    id: str
    starts: dict[str, str]
    changes: str
    reads: tuple[str, ...]
    nameless: tuple[str, ...] = ()
    shape: str = ""
    distinctive: bool = False
    said: str = ""


class HeldOutRecord(Record):
    """The held-out tasks of an environment, by content. ``sha256`` is the hash of all other fields.

    ``by_start``: whole start states are held out, so every task that begins in one is refused. ``vocabulary`` has the
    hashes of all words, which the other fields refer to by number. ``training`` are the parts of the start states of
    training, ``held_out`` those of the held-out splits that training does not have. ``turns`` are hashes of user turns
    of eight words and more.
    """

    environment: str
    by_start: bool
    vocabulary: tuple[str, ...]
    training: tuple[HeldOutStart, ...]
    held_out: tuple[HeldOutStart, ...]
    turns: tuple[str, ...]
    tasks: tuple[HeldOutTask, ...]
    sha256: str

    @model_validator(mode="before")
    @classmethod
    def _unaltered(cls, recorded: JsonValue) -> JsonValue:
        content = dict(recorded) if isinstance(recorded, dict) else {}
        if content.pop("sha256", None) != _sha256(content):
            raise ValueError("sha256 does not belong to what is recorded")
        return recorded

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
    different = {json.dumps(begun(one.initial_state), sort_keys=True): one for one in environment.starts()}
    for place in map(bare_task, different.values()):
        for start in starts("training", canonical(environment, place)):
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


RECORD_FILE = "held-out.json"
NEAR = 0.5
"""Share of the words, weighted by rarity, above which a state counts as a copy (our choice, see the leak suite)."""

REBUILT = 4
"""Fewest words that a setup must add to turn a training state into a copy of a held-out one (our choice)."""

REMADE = 0.75
"""Share of the missing words, weighted by rarity, that a setup must add for that (our choice, see the leak suite).

What a simulator writes around one order or booking, ids and names of fields, reaches 0.65 on its own.
"""

TRAINING = "train"


@dataclass(frozen=True)
class HeldOut(Container[str]):
    """The held-out sets of an environment: a container of fingerprints that also compares by content."""

    fingerprints: frozenset[str] = frozenset()
    records: tuple[HeldOutRecord, ...] = ()

    def __contains__(self, value: object) -> bool:
        return value in self.fingerprints

    def joined(self, fingerprints: Iterable[str], record: HeldOutRecord | None) -> HeldOut:
        """Return these held-out sets together with another one."""
        return HeldOut(self.fingerprints.union(fingerprints), (*self.records, *([record] if record else [])))

    def match(self, task: TaskSpec, form: Canonical) -> str | None:
        """Return one sentence that names the held-out set of ``task``; None for a task of training.

        ``form`` is its canonical form.
        """
        for one in (task, task.model_copy(update={"played": 0})):
            if fingerprint(one) in self.fingerprints:
                return f"A held-out set has this task (fingerprint {fingerprint(one)[:16]})."
        if form.split not in (None, TRAINING):
            return f"Its start state is of the {form.split} split."
        return next((why for one in map(_compared, self.records) if (why := one.match(task, form)) is not None), None)


def held_out(environment: str) -> HeldOut:
    """Return the held-out sets that the packaged benchmark ``environment`` publishes, for ``Benchmark.held_out``.

    Raises InputError when a file of them is missing or was altered.
    """
    path = sets_folder(environment) / RECORD_FILE
    return _read(environment, path, path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(maxsize=4)
def _read(environment: str, path: Path, _written: int) -> HeldOut:
    record = read_fixed(path, HeldOutRecord)
    return HeldOut(held_out_fingerprints(environment), (record,))


class _Start(NamedTuple):
    """One recorded start state of a part."""

    label: str
    words: frozenset[str]
    weight: float
    training: bool


_Part = tuple[list[_Start], Mapping[str, float], float]
"""The starts of a part, the weights of their words by rarity, and that of an unknown word."""


class _Compared:
    """A record, ready for comparisons."""

    def __init__(self, record: HeldOutRecord) -> None:
        self.record = record
        vocabulary = record.vocabulary
        self._training = {(start.part, start.digest) for start in record.training}
        self._held_out = {(start.part, start.digest): start.label for start in record.held_out}
        self._parts: dict[str, _Part] = {}
        by_part: dict[str, list[tuple[HeldOutStart, bool]]] = defaultdict(list)
        for training, recorded in ((True, record.training), (False, record.held_out)):
            for start in recorded:
                by_part[start.part].append((start, training))
        for part, starts in by_part.items():
            bags = [frozenset(vocabulary[n] for n in start.words) for start, _ in starts]
            seen = Counter(word for bag in bags for word in bag)
            weights = {word: math.log((len(bags) + 1) / n) for word, n in seen.items()}
            known = [
                _Start(start.label, bag, sum(weights[word] for word in bag), training)
                for (start, training), bag in zip(starts, bags, strict=True)
            ]
            # A word that is in no start has the weight of a word that is in half a start.
            self._parts[part] = known, weights, math.log(2 * (len(bags) + 1))
        self._turns = frozenset(record.turns)
        self._said = {task.said: task.id for task in record.tasks if task.said}
        self._tasks: dict[str, list[tuple[frozenset[str], HeldOutTask]]] = defaultdict(list)
        for task in record.tasks:
            # A task that only reads is found by any one of its reads.
            key = task.changes or task.reads[0]
            self._tasks[key].append((frozenset(task.reads), task))
        self._nameless = [(Counter(task.nameless), task) for task in record.tasks if task.nameless]

    def match(self, task: TaskSpec, form: Canonical) -> str | None:
        if self.record.by_start:
            return self._start(form) or self._reference(form) or self._renamed(form) or self._text(task, form)
        return self._reference(form)

    def _start(self, form: Canonical) -> str | None:
        for part, value in form.parts.items():
            own = (part, part_digest(value))
            if own in self._held_out:
                return f"It begins in the start state of held-out {self._held_out[own]} ({part})."
            copied = self._rebuilt(part, form) if own in self._training else self._copied(part, value)
            if copied is not None:
                return copied
        return None

    def _copied(self, part: str, state: JsonValue) -> str | None:
        """Return a sentence when the state is nearer to a held-out one than to any of training, and close to it."""
        if part not in self._parts:
            return None
        starts, weights, unknown = self._parts[part]
        own = frozenset(map(word_digest, state_words(state)))
        weight = sum(weights.get(word, unknown) for word in own)
        best: dict[bool, tuple[float, float, str]] = {True: (0.0, 0.0, ""), False: (0.0, 0.0, "")}
        for one in starts:
            shared = sum(weights[word] for word in own & one.words)
            if shared:
                near = shared / (weight + one.weight - shared)
                found = (near, shared / min(weight, one.weight), one.label)
                best[one.training] = max(best[one.training], found)
        near, share, label = best[False]
        if near > best[True][0] and share >= NEAR:
            return f"Its start state is a copy of held-out {label}'s ({part}, {share:.0%} of the words)."
        return None

    def _rebuilt(self, part: str, form: Canonical) -> str | None:
        """Return a sentence when the setup turns a training state into a held-out one."""
        prepared = form.prepared.get(part)
        if prepared is None or prepared == form.parts[part] or part not in self._parts:
            return None
        starts, weights, _ = self._parts[part]
        before = frozenset(map(word_digest, state_words(form.parts[part])))
        added = frozenset(map(word_digest, state_words(prepared))) - before
        for one in starts:
            made, wanted = added & one.words, one.words - before
            if one.training or len(made) < REBUILT:
                continue
            if sum(weights[word] for word in made) >= REMADE * sum(weights[word] for word in wanted):
                return f"Its setup makes the start state of held-out {one.label} ({part})."
        return None

    def _reference(self, form: Canonical) -> str | None:
        reads, changes = form.reads, form.changes
        touched = {part: part_digest(form.parts[part]) for part in form.touched}
        copied = self._is_copy(form)
        for key in (changes,) if changes else reads:
            for needed, task in self._tasks.get(key, ()):
                if needed <= reads and (task.distinctive or task.starts == touched or copied):
                    return f"Its reference reads and changes what that of held-out {task.id} does."
        return None

    def _begins_in_training(self, form: Canonical) -> bool:
        return all((part, part_digest(form.parts[part])) in self._training for part in form.touched)

    def _is_copy(self, form: Canonical) -> bool:
        """Return whether the start may be a held-out one.

        To held-out splits belongs every start that training does not have; to a run's own held-out tasks belong their
        starts and copies of them.
        """
        if self._begins_in_training(form):
            return False
        return self.record.by_start or any(self._copied(part, form.parts[part]) for part in form.touched)

    def _renamed(self, form: Canonical) -> str | None:
        """Return a sentence when the task is a renamed held-out one, by its calls or by one call and the state."""
        if self._begins_in_training(form):
            return None
        own, place = Counter(form.nameless()), shape_of(form)
        for needed, task in self._nameless:
            if needed <= own and (needed.total() > 1 or task.shape == place):
                return f"It is held-out {task.id} with other names."
        return None

    def _text(self, task: TaskSpec, form: Canonical) -> str | None:
        for number, text in enumerate(task.turns, start=1):
            if turn_digest(text) in self._turns:
                return f"Turn {number} is a user turn of a held-out task."
        same = self._said.get(said(task, form))
        return None if same is None else f"It has the text and the calls of held-out {same}."


_compared = lru_cache(maxsize=8)(_Compared)
