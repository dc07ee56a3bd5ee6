"""Decontamination: is this task one of the held-out sets, whatever its record looks like?

What is held out is recorded by content (``HeldOutRecord``): hashes of start states as loaded, of what references read
and change, of texts and of calls. A task is refused when

- its start state belongs to a held-out split: the environment says so, or a part of it is a held-out part, or is
  nearer to one than to any part that training begins in and shares half of its words;
- its reference changes the same with the same calls, and reads at least the same, as a held-out one: from the same
  start, or from a start that training does not have, or where no start of training could give this;
- it has a held-out user turn of ``LONG_TURN`` words and more, or a held-out text and its calls.

The nearest held-out tasks by text and by calls are reported and never refuse: honest tasks share both with them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Self

from pydantic import JsonValue, ValidationError, model_validator

from environments.base import Environment, InputError, Record, TaskSpec
from environments.canonical import Canonical, canonical, canonical_call, digest, part_digest, shape, state_words, words
from environments.fingerprints import fingerprint
from environments.sealed import PANELLED, panels_folder, sealed_fingerprints

RECORD_FILE = "held-out.json"
LONG_TURN = 8
"""Words of a user turn that alone tells where it is from (our choice: shorter ones are said by chance)."""

NEAR = 0.5
"""Share of the words, weighted by rarity, that makes a state a copy of another (our choice, see the leak suite)."""

REBUILT = 4
"""Words that a setup must have added to make a copy of a held-out state out of one of training (our choice)."""

SMALL = 14
"""Words of a start state that has so few that renaming one makes it another (our choice)."""

TRAINING = "train"


class Start(Record):
    """A part of a start state: its hash as loaded, its words by number, and where it is from, for people to read."""

    label: str
    part: str
    digest: str
    words: tuple[int, ...]


class HeldOutTask(Record):
    """One held-out task, or the first turns of one.

    ``starts`` are the hashes of the parts that its calls touch, ``changes`` and ``reads`` those of ``Canonical``.
    ``distinctive``: its setup and reference give another result from every start of training. ``nameless`` are the
    hashes of its calls without names, ``shape`` that of its start state; both for a small start state alone, which
    renaming makes another one. ``said`` hashes its text and calls. ``words`` and ``calls`` number the words of both,
    and are empty where another task is reported in its place.
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
    """What is held out of an environment, by content. ``sha256`` is that of everything else in it.

    ``vocabulary`` has the hashes of all words, which the other fields number. ``training`` are the parts that training
    begins in, ``held_out`` those of the held-out splits that training does not have. ``turns`` are hashes of user turns
    of ``LONG_TURN`` words and more.
    """

    environment: str
    vocabulary: tuple[str, ...]
    training: tuple[Start, ...]
    held_out: tuple[Start, ...]
    turns: tuple[str, ...]
    tasks: tuple[HeldOutTask, ...]
    sha256: str

    @model_validator(mode="after")
    def _unaltered(self) -> Self:
        if self.sha256 != _sha256(self.model_dump(mode="json", exclude={"sha256"})):
            raise ValueError("sha256 does not belong to what is recorded")
        return self


class Nearest(Record):
    """The held-out tasks most like a task: share of words (of the text, of the calls) that both have, in [0, 1].

    Words are counted once (Jaccard index). A call's words are its name and each of its arguments with the value.
    """

    text: float
    text_task: str
    calls: float
    calls_task: str


@dataclass(frozen=True)
class HeldOut(Collection[str]):
    """The held-out sets of an environment: a collection of fingerprints that also compares by content."""

    fingerprints: frozenset[str] = frozenset()
    records: tuple[HeldOutRecord, ...] = ()
    _compared: tuple[_Compared, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_compared", tuple(_compared(record) for record in self.records))

    def __contains__(self, value: object) -> bool:
        return value in self.fingerprints

    def __iter__(self) -> Iterator[str]:
        return iter(self.fingerprints)

    def __len__(self) -> int:
        return len(self.fingerprints)

    def joined(self, fingerprints: Iterable[str], record: HeldOutRecord | None) -> HeldOut:
        """These held-out sets and another one."""
        return HeldOut(self.fingerprints.union(fingerprints), (*self.records, *([record] if record else [])))

    def match(self, task: TaskSpec, form: Canonical) -> str | None:
        """One sentence that names the held-out set ``task`` is from; None for a task of training. ``form`` is its
        canonical form."""
        if fingerprint(task) in self.fingerprints:
            return f"A held-out set has this task (fingerprint {fingerprint(task)[:16]})."
        if form.split not in (None, TRAINING):
            return f"Its start state is of the {form.split} split."
        return next((why for one in self._compared if (why := one.match(task, form)) is not None), None)

    def nearest(self, environment: Environment, task: TaskSpec) -> Nearest | None:
        """The nearest held-out tasks; None where nothing is recorded."""
        found = [one.nearest(environment, task) for one in self._compared if one.record.tasks]
        if not found:
            return None
        text, calls = max(found, key=lambda one: one.text), max(found, key=lambda one: one.calls)
        return text.model_copy(update={"calls": calls.calls, "calls_task": calls.calls_task})


def held_out(environment: str) -> HeldOut:
    """The held-out sets of ``environment``; nothing for one without published panels.

    Raises InputError when a file of them is missing or was altered.
    """
    if environment not in PANELLED:
        return HeldOut()
    path = panels_folder(environment) / RECORD_FILE
    try:
        stamp = path.stat()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check it out of the repository again") from error
    return _read(environment, path, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=4)
def _read(environment: str, path: Path, _written: int, _size: int) -> HeldOut:
    return HeldOut(sealed_fingerprints(environment), (read_record(path),))


def read_record(path: Path) -> HeldOutRecord:
    """A recorded file. Raises InputError when it cannot be read or was altered."""
    try:
        return HeldOutRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check it out of the repository again") from error
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise InputError(f"{path} was altered ({reason}): check it out of the repository again") from error


def write_record(path: Path, record: HeldOutRecord) -> None:
    """Write ``record``, a start or a task in each line."""
    fields = []
    for name, value in record.model_dump(mode="json").items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines = ",\n".join(f"  {json.dumps(one, separators=(',', ':'))}" for one in value)
            fields.append(f'"{name}": [\n{lines}\n ]')
        else:
            fields.append(f'"{name}": {json.dumps(value)}')
    path.write_text("{\n " + ",\n ".join(fields) + "\n}\n", encoding="utf-8")


class Recorder:
    """Makes the record of an environment's held-out sets.

    Args:
        environment: plays the tasks.
        training: one task for each start of training; what they ask for does not matter.
        training_turns: user turns that training may have.
    """

    def __init__(
        self, environment: Environment, training: Iterable[TaskSpec], training_turns: Iterable[str] = ()
    ) -> None:
        self._environment = environment
        self._numbers: dict[str, int] = {}
        self._training = tuple(map(_bare, training))
        self._training_parts: dict[tuple[str, str], Start] = {}
        self._held_out: dict[tuple[str, str], Start] = {}
        self._tasks: dict[str, HeldOutTask] = {}
        self._turns: set[str] = set()
        self._training_turns = {_turn_digest(text) for text in training_turns}
        for task in self._training:
            for start in self._starts("training", canonical(environment, task).parts):
                self._training_parts.setdefault((start.part, start.digest), start)

    def add(
        self, name: str, task: TaskSpec, *, start: str | None = None, with_text: bool = True, neighbour: bool = True
    ) -> None:
        """Record one held-out task; ``start`` is the label of its start state, by default the task's name.

        ``with_text``: its texts are like no text of training, so a task with one of them is refused. ``neighbour``:
        it may be reported as the nearest. Raises what ``canonical`` raises.
        """
        form = canonical(self._environment, task)
        for part in self._starts(start or name, form.parts):
            if (part.part, part.digest) not in self._training_parts:
                self._held_out.setdefault((part.part, part.digest), part)
        if not form.steps:
            return
        if with_text:
            self._turns |= {_turn_digest(text) for text in task.turns if len(words(text)) >= LONG_TURN}
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
            shape=_shape(form) if small else "",
            said=_said(task, form) if with_text else "",
            words=self._numbered(_text_words(task)) if neighbour else (),
            calls=self._numbered(_call_words(self._environment, task)) if neighbour else (),
        )
        content = recorded.model_dump_json(exclude={"id"})
        self._tasks.setdefault(content, recorded)

    def mark_distinctive(self, name: str, task: TaskSpec) -> bool:
        """Play ``task`` from every start of training that has its parts; whether none gives what its own start gives.

        The record of ``name`` is marked so.
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

    def record(self) -> HeldOutRecord:
        """Everything that was added."""
        content: dict[str, JsonValue] = {
            "environment": self._environment.name,
            "vocabulary": list(self._numbers),
            "training": [start.model_dump(mode="json") for start in self._training_parts.values()],
            "held_out": [start.model_dump(mode="json") for start in self._held_out.values()],
            "turns": [*sorted(self._turns - self._training_turns)],
            "tasks": [task.model_dump(mode="json") for task in self._tasks.values()],
        }
        return HeldOutRecord.model_validate(content | {"sha256": _sha256(content)})

    def _starts(self, label: str, parts: Mapping[str, JsonValue]) -> Iterator[Start]:
        for part, value in parts.items():
            yield Start(label=label, part=part, digest=part_digest(value), words=self._numbered(state_words(value)))

    def _numbered(self, found: Iterable[str]) -> tuple[int, ...]:
        hashes = sorted({_word_digest(word) for word in found})
        return tuple(self._numbers.setdefault(one, len(self._numbers)) for one in hashes)


def record_of(environment: Environment, tasks: Sequence[tuple[str, TaskSpec]]) -> HeldOutRecord:
    """The record of tasks that a run holds out (``evaluation.tasks``), whose texts are like those of training.

    A task that the environment cannot open is left out. Raises EnvironmentFault when the environment failed.
    """
    starts = (
        TaskSpec(
            environment=start.environment,
            split=start.split,
            classes=start.classes,
            turns=("",),
            initial_state=start.initial_state,
            tools=start.tools,
            reference=((),),
        )
        for start in environment.starts()
    )
    recorder = Recorder(environment, starts)
    for name, task in tasks:
        try:
            recorder.add(name, task, with_text=False)
        except (InputError, RecursionError):
            continue
    return recorder.record()


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
        by_part: dict[str, list[tuple[Start, bool]]] = defaultdict(list)
        for training, recorded in ((True, record.training), (False, record.held_out)):
            for start in recorded:
                by_part[start.part].append((start, training))
        for part, starts in by_part.items():
            bags = [frozenset(vocabulary[n] for n in start.words) for start, _ in starts]
            seen = Counter(word for bag in bags for word in bag)
            weights = {word: math.log((len(bags) + 1) / n) for word, n in seen.items()}
            self._weights[part] = weights
            # A word that no start has weighs as much as one that half a start has.
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
        self._by_word = self._postings("words")
        self._by_call = self._postings("calls")

    def _postings(self, kind: str) -> tuple[Mapping[str, list[int]], list[int]]:
        postings: dict[str, list[int]] = defaultdict(list)
        sizes = []
        for number, task in enumerate(self.record.tasks):
            found = getattr(task, kind)
            sizes.append(len(found))
            for n in found:
                postings[self.record.vocabulary[n]].append(number)
        return postings, sizes

    def match(self, task: TaskSpec, form: Canonical) -> str | None:
        return self._start(form) or self._reference(form) or self._text(task, form)

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
        """A sentence when the state is nearer to a held-out one than to any of training, and close to it."""
        if part not in self._parts:
            return None
        weights = self._weights[part]
        own = frozenset(map(_word_digest, state_words(state)))
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
        """A sentence when the setup makes a held-out state out of one of training."""
        prepared = form.prepared.get(part)
        if prepared is None or prepared == form.parts[part] or part not in self._parts:
            return None
        weights = self._weights[part]
        before = frozenset(map(_word_digest, state_words(form.parts[part])))
        added = frozenset(map(_word_digest, state_words(prepared))) - before
        for one in self._parts[part]:
            made, wanted = added & one.words, one.words - before
            if one.training or len(made) < REBUILT:
                continue
            if sum(weights[word] for word in made) >= NEAR * sum(weights[word] for word in wanted):
                return f"Its setup makes the start state of held-out {one.label} ({part})."
        return None

    def _reference(self, form: Canonical) -> str | None:
        reads, changes = form.reads, form.changes
        touched = {part: part_digest(form.parts[part]) for part in form.touched}
        trained = all(one in self._training for one in touched.items())
        for key in (changes,) if changes else reads:
            for needed, task in self._tasks.get(key, ()):
                if needed <= reads and (task.distinctive or not trained or task.starts == touched):
                    return f"Its reference reads and changes what that of held-out {task.id} does."
        return None if trained else self._renamed(form)

    def _renamed(self, form: Canonical) -> str | None:
        """A sentence when the task is a held-out one with other names: the calls say so, or one call and the state."""
        own, place = Counter(form.nameless()), _shape(form)
        for needed, task in self._nameless:
            if needed <= own and (needed.total() > 1 or task.shape == place):
                return f"It is held-out {task.id} with other names."
        return None

    def _text(self, task: TaskSpec, form: Canonical) -> str | None:
        for number, text in enumerate(task.turns, start=1):
            if _turn_digest(text) in self._turns:
                return f"Turn {number} is a user turn of a held-out task."
        same = self._said.get(_said(task, form))
        return None if same is None else f"It has the text and the calls of held-out {same}."

    def nearest(self, environment: Environment, task: TaskSpec) -> Nearest:
        text, text_task = self._overlap(_text_words(task), *self._by_word)
        calls, calls_task = self._overlap(_call_words(environment, task), *self._by_call)
        return Nearest(text=text, text_task=text_task, calls=calls, calls_task=calls_task)

    def _overlap(self, found: Iterable[str], postings: Mapping[str, list[int]], sizes: list[int]) -> tuple[float, str]:
        own = {_word_digest(word) for word in found}
        shared: Counter[int] = Counter()
        for word in own:
            shared.update(postings.get(word, ()))
        if not shared:
            return 0.0, ""
        best = max(shared, key=lambda n: (shared[n] / (len(own) + sizes[n] - shared[n]), -n))
        return round(shared[best] / (len(own) + sizes[best] - shared[best]), 3), self.record.tasks[best].id


@lru_cache(maxsize=8)
def _compared_by_hash(record: _ByHash) -> _Compared:
    return _Compared(record.record)


@dataclass(frozen=True)
class _ByHash:
    """A record that is looked up by its hash."""

    sha256: str
    record: HeldOutRecord = field(compare=False)


def _compared(record: HeldOutRecord) -> _Compared:
    return _compared_by_hash(_ByHash(record.sha256, record))


def _bare(task: TaskSpec) -> TaskSpec:
    """The task that begins in the same state and asks for nothing."""
    return task.model_copy(update={"turns": ("",), "setup": (), "reference": ((),), "withheld": {}})


def _shape(form: Canonical) -> str:
    return digest([shape(form.parts[part]) for part in form.touched])


def _said(task: TaskSpec, form: Canonical) -> str:
    return digest([[list(words(text)) for text in task.turns], [step.text for step in form.steps]])


def _turn_digest(text: str) -> str:
    return digest(list(words(text)))


def _text_words(task: TaskSpec) -> Iterator[str]:
    for text in task.turns:
        yield from words(text)


def _call_words(environment: Environment, task: TaskSpec) -> Iterator[str]:
    for calls in task.reference:
        for call in calls:
            name, arguments = json.loads(canonical_call(environment, call)[1])
            yield f"call {name}"
            for parameter, value in arguments.items():
                yield f"call {name} {parameter} {json.dumps(value, sort_keys=True)}"


@lru_cache(maxsize=65536)
def _word_digest(word: str) -> str:
    return hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def _sha256(content: JsonValue) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()
