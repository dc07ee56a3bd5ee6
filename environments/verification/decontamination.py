"""Decontaminate: find out whether a task belongs to a held-out set, however its record is written.

Held-out sets are recorded by content (``HeldOutRecord``): hashes of start states as loaded, of the reads and changes
of references, of texts and of calls. A task is refused when

- its start state belongs to a held-out split: the environment reports so, or a part of it is a held-out part, or is
  nearer to one than to any part of a training start and shares half of its words;
- its reference makes the same changes with the same calls, and at least the same reads, as a held-out one: from the
  same start, or from a start that training does not have, or where no start of training could give this result;
- it is a held-out task of a small start state with other names;
- it has a held-out user turn of ``LONG_TURN`` words and more, or a held-out text and its calls.

Tasks that a run itself holds out (``evaluation.tasks``) may have a start of training: of them only the reference
counts, from the same start or from a copy of it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from pydantic import JsonValue

from environments.base import InputError, TaskSpec
from environments.verification.canonical import Canonical, part_digest, state_words
from environments.verification.fingerprints import (
    HeldOutRecord,
    HeldOutStart,
    HeldOutTask,
    fingerprint,
    held_out_fingerprints,
    read_fixed,
    said,
    sets_folder,
    shape_of,
    turn_digest,
    word_digest,
)

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
class HeldOut(Collection[str]):
    """The held-out sets of an environment: a collection of fingerprints that also compares by content."""

    fingerprints: frozenset[str] = frozenset()
    records: tuple[HeldOutRecord, ...] = ()
    _compared: tuple[_Compared, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_compared", tuple(map(_compared, self.records)))

    def __contains__(self, value: object) -> bool:
        return value in self.fingerprints

    def __iter__(self) -> Iterator[str]:
        return iter(self.fingerprints)

    def __len__(self) -> int:
        return len(self.fingerprints)

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
        return next((why for one in self._compared if (why := one.match(task, form)) is not None), None)


def held_out(environment: str) -> HeldOut:
    """Return the held-out sets that the packaged benchmark ``environment`` publishes, for ``Benchmark.held_out``.

    Raises InputError when a file of them is missing or was altered.
    """
    path = sets_folder(environment) / RECORD_FILE
    try:
        stamp = path.stat()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check it out of the repository again") from error
    return _read(environment, path, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=4)
def _read(environment: str, path: Path, _written: int, _size: int) -> HeldOut:
    return HeldOut(held_out_fingerprints(environment), (read_fixed(path, HeldOutRecord),))


@dataclass(frozen=True)
class _Part:
    """One recorded start state of a part."""

    label: str
    words: frozenset[str]
    weight: float
    training: bool


class _Compared:
    """A record, ready for comparisons."""

    def __init__(self, record: HeldOutRecord) -> None:
        self.record = record
        vocabulary = record.vocabulary
        self._training = {(start.part, start.digest) for start in record.training}
        self._held_out = {(start.part, start.digest): start.label for start in record.held_out}
        self._weights: dict[str, Mapping[str, float]] = {}
        self._unknown: dict[str, float] = {}
        self._parts: dict[str, list[_Part]] = {}
        by_part: dict[str, list[tuple[HeldOutStart, bool]]] = defaultdict(list)
        for training, recorded in ((True, record.training), (False, record.held_out)):
            for start in recorded:
                by_part[start.part].append((start, training))
        for part, starts in by_part.items():
            bags = [frozenset(vocabulary[n] for n in start.words) for start, _ in starts]
            seen = Counter(word for bag in bags for word in bag)
            weights = {word: math.log((len(bags) + 1) / n) for word, n in seen.items()}
            self._weights[part] = weights
            # A word that is in no start has the weight of a word that is in half a start.
            self._unknown[part] = math.log(2 * (len(bags) + 1))
            self._parts[part] = [
                _Part(start.label, bag, sum(weights[word] for word in bag), training)
                for (start, training), bag in zip(starts, bags, strict=True)
            ]
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
        weights = self._weights[part]
        own = frozenset(map(word_digest, state_words(state)))
        weight = sum(weights.get(word, self._unknown[part]) for word in own)
        best: dict[bool, tuple[float, float, str]] = {True: (0.0, 0.0, ""), False: (0.0, 0.0, "")}
        for one in self._parts[part]:
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
        weights = self._weights[part]
        before = frozenset(map(word_digest, state_words(form.parts[part])))
        added = frozenset(map(word_digest, state_words(prepared))) - before
        for one in self._parts[part]:
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


@lru_cache(maxsize=8)
def _compared(record: HeldOutRecord) -> _Compared:
    return _Compared(record)
