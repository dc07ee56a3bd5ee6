"""Read the fixed evaluation sets of templated tasks: held-out slices of human paths, checked by hash.

Only ``evaluation`` opens a set; other code reads its published record (``PublishedSet``). Each family has
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

The files in ``panels/`` hold the tasks compressed, so that they are not read by accident. Commit c09bae7 has the
programs that chose them, commit 2e12b467 the code that cut them from the official data.

The strata of a task are ``precondition``: a call is needed by a later one and left unsaid ("forced"), or needed and
said ("said"), or no call needs another ("none"). ``length``: calls in the reference. ``rarity``: of its rarest
function, by calls in human paths of training indices: common (5 and more), rare (1 to 4) or unseen. ``source``: who
made the calls, human or explored, in the families of the world.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma

from pydantic import TypeAdapter

from environments.base import InputError, Record, TaskSpec
from environments.bfcl.official import Split
from environments.verification.canonical import PublishedSet, fingerprint, read_fixed
from environments.verification.decontamination import SUFFIX, sets_folder

ENVIRONMENT = "bfcl"
TEMPLATED_CLASSES = ("GorillaFileSystem", "VehicleControlAPI")
"""The official classes of the first three families; the others have all eight."""

FAMILIES = ("templated", "longer", "turns", "world", "world-longer", "world-turns")

_HELD: tuple[Split, ...] = ("dev", "test")
_SPLITS: dict[str, Split] = {f"{family}-{split}": split for family in FAMILIES for split in _HELD}


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


def set_names() -> tuple[str, ...]:
    """Return the names of the evaluation sets."""
    return tuple(_SPLITS)


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
    if name not in _SPLITS:
        raise InputError(f"no evaluation set is called {name!r}: choose one of {', '.join(_SPLITS)}")
    path = sets_folder(ENVIRONMENT) / f"{name}.json"
    file = read_fixed(path, SetFile)
    if file.panel != name or file.split != _SPLITS[name]:
        raise InputError(f"{path} holds the set {file.panel!r} of {file.split}: check it out of the repository again")
    return file
