"""Read the evaluation sets: fixed files of templated tasks, and the official tasks with the single turns of them.

Only ``evaluation`` opens a set; other code reads its published record (``PublishedSet``).

**Templated sets** hold held-out slices of human paths, checked by hash. Each family has one set of the split dev (for
the choice of checkpoints and settings) and one of the split test:

templated      slices of 1 to 3 calls, as long as D_0's and the scripted abstractor's tasks are
longer         slices of 4 to 6 calls: longer than any training task of the shipped recipes
turns          slices across the end of a human user turn, 2 to 4 calls, as tasks of two user turns
world          tasks of 1 to 3 calls of all eight classes
world-longer   the same of 4 to 6 calls
world-turns    the same of two user turns, 2 to 6 calls

A slice is a contiguous run of calls of a human path, with the calls before it as setup. The first three families use
GorillaFileSystem and VehicleControlAPI, and hold every slice of their split that verifies, or a uniform sample. "turns"
has a cause of failure that no signal monitors: scripted roles make tasks of one user turn. Human paths call 75 of the
128 functions in the split test and 44 in dev, so the families of the world join their slices with tasks that
exploration found from the same start states. A set of the world is no uniform sample: its tasks are taken in turn over
the functions (each task belongs to the rarest of its reference), then over lengths, human ones first. The order of
every set is random, so that the first n tasks are a uniform sample of it.

The files in ``panels/`` hold the tasks compressed, so that they are not read by accident. Commit c09bae7 has the
programs that chose them, commit 2e12b467 the code that cut them from the official data.

The strata of a task are ``precondition``: a call is needed by a later one and left unsaid ("forced"), or needed and
said ("said"), or no call needs another ("none"). ``length``: calls in the reference. ``rarity``: of its rarest
function, by calls in human paths of training indices: common (5 and more), rare (1 to 4) or unseen. ``source``: who
made the calls, human or explored, in the families of the world.

**Official sets**, ``CATEGORY@SPLIT``, hold the official tasks, "all" for every category or split; the split "seal-test"
is the 100 indices of the split test that a test after SEAL's protocol uses (``official.in_seal_test``).

**Sets of turns** hold single user turns that people wrote: the turns of held-out official tasks (ours). Each turn is a
task of its own, cut after it, in which the reference plays the turns before it (``environments.turns.behind``).
``human-SPLIT`` has the turns with a reference call, of all four categories, and ``human-base-SPLIT`` those of base
alone: the other categories repeat its texts, at three times its cost. Their result is the official one, which checks
the played turns, too. Every reference passes but that of the first turn of long_context-38, in human-test: it has 34
calls, and the official limit is 20. ``abstain-SPLIT`` has the turns of miss_func and miss_param whose reference is
empty: the right answer is to make no call. The official checker does not check such turns, so that their success means
nothing; the metric ``abstention`` does. The turns of one index share text, states or both in all categories: the index
is their cluster.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
from functools import cache
from typing import NamedTuple

from pydantic import TypeAdapter

from environments.base import InputError, Record, TaskSpec
from environments.benchmark import EvaluationSet, EvaluationTask
from environments.bfcl.official import CATEGORIES, VERSION, CategoryTask, Split, in_seal_test, indices, load_category
from environments.turns import agent_calls, behind, turn_id
from environments.verification.canonical import PublishedSet, fingerprint, read_fixed
from environments.verification.decontamination import SUFFIX, sets_folder

ENVIRONMENT = "bfcl"
FAMILIES = ("templated", "longer", "turns", "world", "world-longer", "world-turns")
"""The first three have tasks of the classes GorillaFileSystem and VehicleControlAPI, the others of all eight."""

_HELD: tuple[Split, ...] = ("dev", "test")
TEMPLATED_SETS: dict[str, Split] = {f"{family}-{split}": split for family in FAMILIES for split in _HELD}


class _Official(NamedTuple):
    """Official tasks of categories and splits. ``calls``: their turns instead, with or without a reference call."""

    categories: tuple[str, ...]
    splits: tuple[Split, ...]
    calls: bool | None = None
    seal: bool = False


_ALL: tuple[Split, ...] = ("train", *_HELD)
_WHOLE: dict[str, tuple[Split, ...]] = {"dev": ("dev",), "test": ("test",), "seal-test": ("test",), "all": _ALL}
_CATEGORIES = {**{category: (category,) for category in CATEGORIES}, "all": CATEGORIES}
_OF_TURNS = {
    "human": (CATEGORIES, True),
    "human-base": (("base",), True),
    "abstain": (("miss_func", "miss_param"), False),
}
_OFFICIAL: dict[str, _Official] = {
    **{
        f"{name}@{split}": _Official(categories, splits, seal=split == "seal-test")
        for split, splits in _WHOLE.items()
        for name, categories in _CATEGORIES.items()
    },
    **{
        f"{name}-{split}": _Official(categories, (split,), calls=calls)
        for name, (categories, calls) in _OF_TURNS.items()
        for split in _HELD
    },
}
SETS = {
    **{name: split == "test" for name, split in TEMPLATED_SETS.items()},
    **{name: "test" in one.splits for name, one in _OFFICIAL.items()},
}
"""The names of all sets, and whether each is held out."""


def is_official(name: str) -> bool:
    """Return whether an evaluation set is of official tasks, or of their turns."""
    return name in _OFFICIAL


def describe(name: str) -> EvaluationSet:
    """Describe a set by its file, without reading its tasks; an official one by the tasks' ids."""
    if name in _OFFICIAL:
        ids = _ids(name)
        digest, tasks = hashlib.sha256("\n".join((VERSION, *ids)).encode()).hexdigest(), len(ids)
    else:
        file = set_file(name)
        digest, tasks = file.sha256, file.tasks
    return EvaluationSet(name=name, held_out=SETS[name], sha256=digest, tasks=tasks)


def open_tasks(name: str, limit: int | None = None) -> tuple[EvaluationTask, ...]:
    """Return the tasks of a set, the first ``limit`` if given. Raises InputError like ``load_set``.

    Official ones are in the order of their indices, so that the first ones are of every category.
    """
    if name in _OFFICIAL:
        return tuple(_evaluated(whole, turn) for whole, turn in _members(name)[:limit])
    return tuple(
        EvaluationTask(**dict(one), origin="panel", reference_calls=agent_calls(one.spec))
        for one in load_set(name)[:limit]
    )


def _evaluated(whole: CategoryTask, turn: int | None) -> EvaluationTask:
    spec = whole.spec if turn is None else behind(whole.spec, turn)
    return EvaluationTask(
        id=whole.id if turn is None else turn_id(whole.id, turn),
        origin="official",
        spec=spec,
        cluster=str(whole.index),
        reference_calls=agent_calls(spec),
        strata={"category": whole.category} | ({"split": spec.split} if turn is None else {"turn": str(turn + 1)}),
    )


@cache
def _ids(name: str) -> tuple[str, ...]:
    """Return the ids of an official set's tasks in their order; of whole tasks none is read."""
    one = _OFFICIAL[name]
    if one.calls is not None:
        return tuple(turn_id(whole.id, turn or 0) for whole, turn in _members(name))
    chosen = sorted(index for split in one.splits for index in indices(split) if not one.seal or in_seal_test(index))
    return tuple(f"{category}-{index}" for index in chosen for category in one.categories)


@cache
def _members(name: str) -> tuple[tuple[CategoryTask, int | None], ...]:
    """Return the official task of each task of a set, and the turn, from 0, of a set of turns."""
    one = _OFFICIAL[name]
    wholes = [task for category in one.categories for task in load_category(category, one.splits)]
    wholes.sort(key=lambda task: (task.index, one.categories.index(task.category)))
    if one.calls is None:
        return tuple((whole, None) for whole in wholes if not one.seal or in_seal_test(whole.index))
    return tuple(
        (whole, turn)
        for whole in wholes
        for turn, wanted in enumerate(whole.spec.reference)
        if bool(wanted) == one.calls
    )


class TemplatedSetTask(Record):
    """One held-out task. ``cluster`` is the smallest index of the set that begins in the same state."""

    id: str
    cluster: str
    strata: dict[str, str]
    spec: TaskSpec


_SET = TypeAdapter(tuple[TemplatedSetTask, ...])


class SetFile(Record):
    """The file of an evaluation set.

    ``available``: tasks that verified when it was made; ``tasks``: tasks in it, which ``packed`` holds as JSON;
    ``sha256``: of that JSON with sorted keys.
    """

    panel: str
    environment: str
    split: Split
    seed: int
    available: int
    sha256: str
    tasks: int
    packed: str


def load_set(name: str) -> tuple[TemplatedSetTask, ...]:
    """Return the tasks of a set, in its fixed random order. For ``evaluation`` only.

    Raises InputError for an unknown name, and when the file is missing or altered.
    """
    file = set_file(name)
    path = sets_folder(ENVIRONMENT) / f"{name}.json"
    try:
        content = json.loads(lzma.decompress(base64.b85decode(file.packed)))
    except (ValueError, lzma.LZMAError):
        content = None
    # The order of keys is not in the hash, but a simulator reads it: the first folder of a file system is its root.
    if hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest() != file.sha256:
        raise InputError(f"{path} does not match its hash: check it out of the repository again")
    tasks = _SET.validate_python(content)
    published = read_fixed(path.with_name(name + SUFFIX), PublishedSet)
    if len(tasks) != file.tasks or set(published.fingerprints) != {fingerprint(task.spec) for task in tasks}:
        raise InputError(f"{name}{SUFFIX} does not belong to {path}: check both out of the repository again")
    return tasks


def set_file(name: str) -> SetFile:
    """Read a set's file: its hash and size, but no task. Raises InputError like ``load_set``."""
    if name not in TEMPLATED_SETS:
        raise InputError(f"no evaluation set is called {name!r}: choose one of {', '.join(TEMPLATED_SETS)}")
    path = sets_folder(ENVIRONMENT) / f"{name}.json"
    file = read_fixed(path, SetFile)
    if file.panel != name or file.split != TEMPLATED_SETS[name]:
        raise InputError(f"{path} holds the set {file.panel!r} of {file.split}: check it out of the repository again")
    return file
