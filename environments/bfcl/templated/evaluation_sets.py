"""Rebuild the fixed evaluation sets of templated tasks: held-out slices of human paths, checked by hash.

Only ``evaluation`` opens a set; other code reads its published record (``verification.fingerprints``). Each family has
one set of the split dev (for the choice of checkpoints and settings) and one of the split test:

templated      slices of 1 to 3 calls, as long as D_0's and the scripted abstractor's tasks are
longer         slices of 4 to 6 calls: longer than any training task of the shipped recipes
turns          slices across the end of a human user turn, 2 to 4 calls, as tasks of two user turns
world          tasks of 1 to 3 calls of all eight classes
world-longer   the same of 4 to 6 calls
world-turns    the same of two user turns, 2 to 6 calls

A slice is a contiguous run of calls of a human path, with the calls before it as setup. The first three families use
GorillaFileSystem and VehicleControlAPI. Human paths call 75 of the 128 functions in the split test and 44 in dev, so
the families of the world join their slices with tasks that exploration found from the same start states; the stratum
``source`` separates them. A set of the world is not a uniform sample: its tasks are taken in turn over the functions
(each task belongs to the rarest function of its reference), then over lengths, human ones first, so that no function
that verifies is left out.

In the first three, signals come from rollouts of training tasks, and the scripted roles make tasks of one user turn.
A failure at the border of two turns (stopping for good after the first, acting ahead of the second) therefore never
raises a signal: "turns" holds tasks with a cause of failure that no signal monitors. Such a set holds every slice of
the human paths of its split that verifies, or a uniform sample of them where there are more than the limit. The order
of every set is random, so that the first n tasks are a uniform sample of it.

The files in ``panels/`` hold ids and strata, not tasks. A task that exploration found cannot be cut from the official
data, so its calls are in the file, compressed so that they are not read by accident. Commit c09bae7 has the programs
that made the files.
"""

from __future__ import annotations

import base64
import hashlib
import json
import operator
import random
import zlib
from collections.abc import Sequence
from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from environments.base import InputError, Record, TaskSpec, ToolCall
from environments.bfcl.docs import tool_names
from environments.bfcl.official import CategoryTask, Split, indices, load_category, split_of
from environments.bfcl.package import CLASSES
from environments.bfcl.templated.wordings import render_turns
from environments.verification.fingerprints import SUFFIX, PublishedSet, fingerprint, read_fixed, sets_folder

ENVIRONMENT = "bfcl"
TEMPLATED_CLASSES = ("GorillaFileSystem", "VehicleControlAPI")
"""The official classes of the first three families; the others have all eight."""

FAMILIES = {
    **dict.fromkeys(("templated", "longer", "turns"), TEMPLATED_CLASSES),
    **dict.fromkeys(("world", "world-longer", "world-turns"), CLASSES),
}
"""The official classes that the tasks of each family may use."""

_HELD: tuple[Split, ...] = ("dev", "test")
_SPLITS: dict[str, Split] = {f"{family}-{split}": split for family in FAMILIES for split in _HELD}


_T = TypeVar("_T")
_LARGEST = 1_000_000  # characters of the calls of one task, unpacked


class Strata(Record):
    """The strata of a task, for the breakdown of results.

    ``precondition``: a call is needed by a later one and left unsaid ("forced"), or needed and said ("said"), or no
    call needs another. ``length``: calls in the reference. ``rarity``: of its rarest function, by calls in human paths
    of training indices: common (5 and more), rare (1 to 4) or unseen. ``source``: who made the calls, in the families
    of the world.
    """

    precondition: Literal["forced", "said", "none"]
    length: Literal["1", "2", "3", "4", "5", "6"]
    rarity: Literal["common", "rare", "unseen"]
    source: Literal["human", "explored"] | None = Field(None, exclude_if=operator.not_)

    def labels(self) -> dict[str, str]:
        """Return the strata that apply, by name."""
        return {name: str(value) for name, value in self if value is not None}


class TemplatedSetTask(Record):
    """One held-out task. ``cluster`` is the smallest index of the set that begins in the same state."""

    id: str
    cluster: str
    strata: Strata
    spec: TaskSpec


class SetEntry(Record):
    """A task's entry in a set's file: enough to rebuild it from the official data without replays.

    ``first_turn``: calls of the first of two user turns; None, and not in the file, for a task of one. ``explored``:
    setup and reference of a task that exploration found, packed; ``start`` then only counts such tasks.
    """

    index: int
    start: int
    length: int
    first_turn: int | None = None
    wording_seed: int
    forced: tuple[bool, ...]
    explored: str | None = None
    strata: Strata

    @model_validator(mode="after")
    def _one_mark_a_call(self) -> Self:
        if len(self.forced) != self.length:
            raise ValueError(f"{len(self.forced)} marks for {self.length} calls")
        return self

    def by_turn(self, calls: tuple[_T, ...]) -> tuple[tuple[_T, ...], ...]:
        """Return what there is of each call, by user turn."""
        return (calls,) if self.first_turn is None else (calls[: self.first_turn], calls[self.first_turn :])


class SetFile(Record):
    """The file of an evaluation set. ``available``: tasks that verified; ``sha256``: of the rebuilt tasks."""

    panel: str
    environment: str
    split: Split
    seed: int
    available: int
    sha256: str
    tasks: tuple[SetEntry, ...]


def unpacked(entry: SetEntry) -> tuple[tuple[ToolCall, ...], tuple[tuple[ToolCall, ...], ...]]:
    """Return setup and reference of an explored task. Raises ValueError for a text that was altered."""
    try:
        reading = zlib.decompressobj()
        text = reading.decompress(base64.b85decode(entry.explored or ""), _LARGEST)
        calls = tuple(ToolCall(name=call, arguments=arguments) for call, arguments in json.loads(text))
    except (TypeError, zlib.error) as error:
        raise ValueError("the calls cannot be read") from error
    if not reading.eof or not entry.length <= len(calls) or not 0 < (entry.first_turn or 1) <= entry.length:
        raise ValueError("the calls are not those of the entry")
    begin = len(calls) - entry.length
    return calls[:begin], entry.by_turn(calls[begin:])


def set_names() -> tuple[str, ...]:
    """Return the names of the evaluation sets."""
    return tuple(_SPLITS)


def load_set(name: str) -> tuple[TemplatedSetTask, ...]:
    """Return the tasks of a set, in its fixed random order. For ``evaluation`` only.

    Raises InputError for an unknown name, and when the file is missing or altered, or the installed data give tasks
    that differ from the recorded ones.
    """
    file = set_file(name)
    path = sets_folder(ENVIRONMENT) / f"{name}.json"
    tasks = _rebuild(name, file.tasks)
    content = json.dumps([task.model_dump(mode="json") for task in tasks], sort_keys=True)
    if hashlib.sha256(content.encode("ascii")).hexdigest() != file.sha256:
        raise InputError(
            f"{path} does not match its hash: check it out of the repository again, and install the bfcl-eval "
            "that pyproject.toml names"
        )
    if set(read_fixed(path.with_name(name + SUFFIX), PublishedSet).fingerprints) != {
        fingerprint(t.spec) for t in tasks
    }:
        raise InputError(f"{name}{SUFFIX} does not belong to {path}: check both out of the repository again")
    return tasks


def set_file(name: str) -> SetFile:
    """Read a set's file: its hash, and ids and strata but no task. Raises InputError like ``load_set``."""
    if name not in _SPLITS:
        raise InputError(f"no evaluation set is called {name!r}: choose one of {', '.join(_SPLITS)}")
    path = sets_folder(ENVIRONMENT) / f"{name}.json"
    file = read_fixed(path, SetFile)
    if file.panel != name or file.split != _SPLITS[name]:
        raise InputError(f"{path} holds the set {file.panel!r} of {file.split}: check it out of the repository again")
    return file


def base_tasks(indices: Sequence[int]) -> tuple[CategoryTask, ...]:
    """Return the base tasks at ``indices``, ascending. Raises InputError for a reserved or unknown index."""
    if reserved := [index for index in indices if split_of(index) == "reserved"]:
        raise InputError(f"index {reserved[0]} is reserved: no task is cut from it, leave it out")
    return tuple(task for task in load_category("base") if task.index in set(indices))


def slice_task(
    task: CategoryTask,
    start: int,
    length: int,
    first_turn: int | None = None,
    classes: Sequence[str] = TEMPLATED_CLASSES,
) -> TaskSpec:
    """Return ``length`` calls from call ``start`` (from 0, over all turns) of a base task as a task with an empty text.

    It is restricted to ``classes``, and has two user turns where ``first_turn`` gives the number of calls of the first.
    Raises InputError for a slice that ends after the path or, itself or in its setup, leaves these classes, and for an
    empty turn.
    """
    path = tuple(call for turn in task.spec.reference for call in turn)
    tools = tool_names(name for name in task.spec.classes if name in classes)
    if not 0 < length <= len(path) - start or any(call.name not in tools for call in path[: start + length]):
        raise InputError(f"calls {start} to {start + length - 1} of {task.id} are not a slice of templated classes")
    if first_turn is not None and not 0 < first_turn < length:
        raise InputError(f"{first_turn} of {length} calls of {task.id} cannot be the first of two user turns")
    calls = path[start : start + length]
    reference = (calls,) if first_turn is None else (calls[:first_turn], calls[first_turn:])
    return _restricted(task, path[:start], reference, classes)


def _restricted(
    task: CategoryTask,
    setup: tuple[ToolCall, ...],
    reference: tuple[tuple[ToolCall, ...], ...],
    classes: Sequence[str],
) -> TaskSpec:
    own = tuple(name for name in task.spec.classes if name in classes)
    return TaskSpec(
        environment=task.spec.environment,
        split=task.spec.split,
        classes=own,
        turns=("",) * len(reference),
        initial_state={name: task.spec.initial_state[name] for name in own if name in task.spec.initial_state},
        setup=setup,
        tools=tool_names(own),
        reference=reference,
    )


def _rebuild(name: str, entries: Sequence[SetEntry]) -> tuple[TemplatedSetTask, ...]:
    official = {task.index: task for task in base_tasks(indices(_SPLITS[name]))}
    if strange := [entry.index for entry in entries if entry.index not in official]:
        raise InputError(f"evaluation set {name}: index {strange[0]} is not of its split: check its file out again")
    bare = [_bare(name, official[entry.index], entry) for entry in entries]
    begins = [json.dumps(spec.initial_state, sort_keys=True) for spec in bare]
    first: dict[str, int] = {}
    for index, begin in sorted(zip((entry.index for entry in entries), begins, strict=True)):
        first.setdefault(begin, index)
    return tuple(
        TemplatedSetTask(
            id=f"{name}-{entry.index}-{'' if entry.explored is None else 'x'}{entry.start}-{entry.length}",
            cluster=str(first[begin]),
            strata=entry.strata,
            spec=render_turns(spec, entry.by_turn(entry.forced), "evaluation", random.Random(entry.wording_seed)),
        )
        for entry, spec, begin in zip(entries, bare, begins, strict=True)
    )


def _bare(name: str, task: CategoryTask, entry: SetEntry) -> TaskSpec:
    classes = FAMILIES[name.rpartition("-")[0]]
    if entry.explored is None:
        return slice_task(task, entry.start, entry.length, entry.first_turn, classes)
    try:
        setup, reference = unpacked(entry)
    except ValueError as error:
        raise InputError(f"evaluation set {name} was altered: check its file out of the repository again") from error
    return _restricted(task, setup, reference, classes)
