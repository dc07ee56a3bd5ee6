"""Rebuild the fixed evaluation sets of templated tasks: held-out slices of human paths, checked by hash.

Only ``evaluation`` opens a set; other code reads its published record (``verification.fingerprints``). Each family has
one set of the split dev (for the choice of checkpoints and settings) and one of the split test:

templated      slices of 1 to 3 calls, as long as D_0's and the scripted abstractor's tasks are
longer         slices of 4 to 6 calls: longer than any training task of the shipped recipes
turns          slices across the end of a human user turn, 2 to 4 calls, as tasks of two user turns
world          tasks of 1 to 3 calls of all eight classes
world-longer   the same of 4 to 6 calls
world-turns    the same of two user turns, 2 to 6 calls

The first three use GorillaFileSystem and VehicleControlAPI. Human paths call 75 of the 128 functions in the split test
and 44 in dev, so the families of the world join their slices with tasks that exploration found from the same start
states (at commit c09bae7); the stratum ``source`` separates them. A set of the world is
not a uniform sample: its tasks are taken in turn over the functions (each task belongs to the rarest function of its
reference), then over lengths, human ones first, so that no function that verifies is left out.

In the first three, signals come from rollouts of training tasks, and the scripted roles make tasks of one user turn.
A failure at the border of two turns (stopping for good after the first, acting ahead of the second) therefore never
raises a signal: "turns" holds tasks with a cause of failure that no signal monitors. Such a set holds every slice of
the human paths of its split that verifies, or a uniform sample of them where there are more than the limit. The order
of every set is random, so that the first n tasks are a uniform sample of it.

Run ``python -m environments.bfcl.templated.evaluation_sets`` to make the files of the first three families in
``panels/``: ids and strata, not tasks. A task that exploration found cannot be cut from the official data, so its calls
are in the file, compressed so that they are not read by accident.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from environments.base import Environment, InputError, TaskSpec
from environments.bfcl.official import CategoryTask, Split, indices
from environments.bfcl.package import CLASSES
from environments.bfcl.templated.set_records import SetEntry, SetFile, Strata, TemplatedSetTask, packed, unpacked
from environments.bfcl.templated.slices import (
    TEMPLATED_CLASSES,
    Found,
    HumanSlice,
    base_tasks,
    explored_slices,
    explored_task,
    human_pairs,
    human_slices,
    slice_task,
)
from environments.bfcl.templated.wordings import render_turns
from environments.command import exit_statuses
from environments.task_text import caused_errors
from environments.verification.fingerprints import (
    SUFFIX,
    call_sequence,
    fingerprint,
    publication,
    read_publication,
    sets_folder,
)

ENVIRONMENT = "bfcl"
RARE_BELOW = 5
"""A function is rare when human paths of training indices call it at least once and less often than this."""


class Family(NamedTuple):
    """The source of the tasks of a family's two sets.

    ``lengths``: calls of a reference. ``two_turns``: the tasks have two user turns. ``explored``: tasks that
    exploration found join the slices of human paths.
    """

    classes: tuple[str, ...]
    lengths: tuple[int, ...]
    two_turns: bool = False
    explored: bool = False


FAMILIES = {
    "templated": Family(TEMPLATED_CLASSES, (1, 2, 3)),
    "longer": Family(TEMPLATED_CLASSES, (4, 5, 6)),
    "turns": Family(TEMPLATED_CLASSES, (2, 3, 4), two_turns=True),
    "world": Family(CLASSES, (1, 2, 3), explored=True),
    "world-longer": Family(CLASSES, (4, 5, 6), explored=True),
    "world-turns": Family(CLASSES, (2, 3, 4, 5, 6), two_turns=True, explored=True),
}
_HELD: tuple[Split, ...] = ("dev", "test")
_SPLITS: dict[str, Split] = {f"{family}-{split}": split for family in FAMILIES for split in _HELD}
_LIMITS = {
    "templated-dev": 250,
    "templated-test": 400,
    "world-dev": 300,
    "world-test": 500,
    "world-longer-dev": 150,
    "world-longer-test": 250,
    "world-turns-dev": 150,
    "world-turns-test": 250,
}
_LIMIT = 200  # tasks of a set without a limit of its own


def family_of(name: str) -> Family:
    """Return the family of a set. Raises InputError for an unknown name."""
    if name not in _SPLITS:
        raise InputError(f"no evaluation set is called {name!r}: choose one of {', '.join(_SPLITS)}")
    return FAMILIES[name.rpartition("-")[0]]


def split_of_set(name: str) -> Split:
    """Return the split whose indices a set is made from. Raises InputError for an unknown name."""
    family_of(name)
    return _SPLITS[name]


def set_names() -> tuple[str, ...]:
    """Return the names of the evaluation sets."""
    return tuple(_SPLITS)


def held_out(name: str) -> bool:
    """Return whether a set is of the split test. Raises InputError for an unknown name."""
    return split_of_set(name) == "test"


def set_hash(name: str) -> str:
    """Return the SHA-256 of the tasks of a set without opening it. Raises InputError like ``load_set``."""
    return set_file(name).sha256


def load_set(name: str) -> tuple[TemplatedSetTask, ...]:
    """Return the tasks of a set, in its fixed random order. For ``evaluation`` only.

    Raises InputError for an unknown name, and when the file is missing or altered, or the installed data give tasks
    that differ from the recorded ones.
    """
    file = set_file(name)
    path = sets_folder(ENVIRONMENT) / f"{name}.json"
    tasks = _rebuild(name, file.tasks)
    if _digest(tasks) != file.sha256:
        raise InputError(
            f"{path} does not match its hash: check it out of the repository again, and install the bfcl-eval "
            "that pyproject.toml names"
        )
    if set(read_publication(path.with_name(name + SUFFIX)).fingerprints) != {fingerprint(t.spec) for t in tasks}:
        raise InputError(f"{name}{SUFFIX} does not belong to {path}: check both out of the repository again")
    return tasks


def set_file(name: str) -> SetFile:
    """Read a set's file: its hash, and ids and strata but no task. Raises InputError like ``load_set``."""
    split = split_of_set(name)
    path = sets_folder(ENVIRONMENT) / f"{name}.json"
    try:
        file = SetFile.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check it out of the repository again") from error
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise InputError(f"{path} was altered ({reason}): check it out of the repository again") from error
    if file.panel != name or file.split != split:
        raise InputError(f"{path} holds the set {file.panel!r} of {file.split}: check it out of the repository again")
    return file


def make_set(
    name: str, environment: Environment, seed: int = 0, found: Sequence[Found] = ()
) -> tuple[SetFile, tuple[TemplatedSetTask, ...]]:
    """Cut, verify, sample and label the tasks of a set; ``found`` are tasks of exploration that may join it.

    Equal arguments give equal sets. Raises InputError like ``family_of``.
    """
    split, family = _SPLITS[name], family_of(name)
    slices = _slices(name, environment, seed)
    if family.explored:
        own = {fingerprint(piece.spec) for piece in slices}
        more = explored_slices(environment, found, seed, classes=family.classes)
        slices = (*slices, *(piece for piece in more if fingerprint(piece.spec) not in own))
    rng, limit = random.Random(f"{seed}-{name}"), _LIMITS.get(name, _LIMIT)
    chosen = _spread(slices, limit, rng) if family.explored else rng.sample(slices, min(limit, len(slices)))
    counts = Counter(c.name for task in base_tasks(indices("train")) for turn in task.spec.reference for c in turn)
    entries = tuple(_entry(environment, piece, counts, family) for piece in chosen)
    tasks = _rebuild(name, entries)
    file = SetFile(
        panel=name,
        environment=ENVIRONMENT,
        split=split,
        seed=seed,
        available=len(slices),
        sha256=_digest(tasks),
        tasks=entries,
    )
    return file, tasks


def _spread(slices: Sequence[HumanSlice], limit: int, rng: random.Random) -> list[HumanSlice]:
    """Draw at most ``limit`` slices, in turn over functions, then over lengths, human ones first; in random order.

    A slice belongs to the function of its reference that fewest slices call.
    """
    called = Counter(name for piece in slices for name in _names(piece))
    pools: defaultdict[str, defaultdict[int, list[HumanSlice]]] = defaultdict(lambda: defaultdict(list))
    for piece in sorted(rng.sample(slices, len(slices)), key=lambda piece: piece.explored):
        pools[min(_names(piece), key=lambda name: (called[name], name))][piece.length].append(piece)
    queues = []
    for name in rng.sample(sorted(pools), len(pools)):
        # Each function begins with another length: many have room for a task or two.
        lengths = rng.sample(sorted(pools[name]), len(pools[name]))
        queues.append(_in_turn([pools[name][length] for length in lengths]))
    chosen = _in_turn(queues)[:limit]
    rng.shuffle(chosen)
    return chosen


def _in_turn(queues: Sequence[Sequence[HumanSlice]]) -> list[HumanSlice]:
    """Return the first of each queue, then the second of each, and so on."""
    return [piece for row in zip_longest(*queues) for piece in row if piece is not None]


def _names(piece: HumanSlice) -> set[str]:
    return {call.name for calls in piece.spec.reference for call in calls}


def set_paths(folder: Path, name: str, *, force: bool = False) -> tuple[Path, Path]:
    """Return a set's file and its published record. Raises InputError when one exists and ``force`` is not set."""
    paths = (folder / f"{name}.json", folder / f"{name}{SUFFIX}")
    for path in paths:
        if path.exists() and not force:
            raise InputError(f"{path} exists: sets are fixed, give --force to replace it and say so in the changelog")
    return paths


def write_set(
    folder: Path, file: SetFile, tasks: Sequence[TemplatedSetTask], *, force: bool = False
) -> tuple[Path, Path]:
    """Write a set's file and its published record. Raises InputError like ``set_paths``."""
    paths = set_paths(folder, file.panel, force=force)
    published = publication(
        file.panel,
        file.environment,
        {fingerprint(task.spec) for task in tasks},
        {call_sequence(task.spec) for task in tasks},
    )
    folder.mkdir(parents=True, exist_ok=True)
    paths[0].write_text(_one_task_a_line(file), encoding="utf-8")
    paths[1].write_text(published.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the files of every set and print their names. Exit status: 0, or 2 for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m environments.bfcl.templated.evaluation_sets", description="Make the fixed evaluation sets."
    )
    parser.add_argument("--force", action="store_true", help="replace the files that exist")
    parser.add_argument("--seed", type=int, default=0, help="seed of sample, order and wordings (default 0)")
    cut = tuple(name for name in set_names() if not family_of(name).explored)
    parser.add_argument("--set", action="append", dest="sets", choices=cut, help="this one only; may be repeated")
    parser.add_argument("--folder", type=Path, default=sets_folder(ENVIRONMENT), help="where to write")
    options = parser.parse_args(arguments)
    from environments.bfcl.environment import BFCLEnvironment

    with exit_statuses():
        environment = BFCLEnvironment(TEMPLATED_CLASSES)
        for name in options.sets or cut:
            file, tasks = make_set(name, environment, options.seed)
            paths = write_set(options.folder, file, tasks, force=options.force)
            describe(file, tasks)
            print(f"  wrote {' and '.join(map(str, paths))}")


def describe(file: SetFile, tasks: Sequence[TemplatedSetTask]) -> None:
    """Print what a set covers, without its tasks."""
    functions = {call.name for task in tasks for calls in task.spec.reference for call in calls}
    print(f"{file.panel}: {len(tasks)} of {file.available} slices, {len({t.cluster for t in tasks})} clusters")
    print(f"  {len(functions)} functions, {len({call_sequence(task.spec) for task in tasks})} call shapes")
    for label in Strata.model_fields:
        counted = Counter(task.strata.labels().get(label) for task in tasks)
        print(f"  {label}: {', '.join(f'{value} {counted[value]}' for value in sorted(filter(None, counted)))}")


def _slices(name: str, environment: Environment, seed: int) -> tuple[HumanSlice, ...]:
    held, family = indices(_SPLITS[name]), family_of(name)
    if family.two_turns:
        return human_pairs(environment, held, seed, longest=max(family.lengths), classes=family.classes)
    return human_slices(environment, held, seed, lengths=family.lengths, classes=family.classes)


def _entry(environment: Environment, piece: HumanSlice, counts: Mapping[str, int], family: Family) -> SetEntry:
    needed = any(
        caused_errors(environment, piece.spec, turn, position)
        for turn, calls in enumerate(piece.spec.reference)
        for position in range(len(calls))
    )
    rarest = min(counts[call.name] for calls in piece.spec.reference for call in calls)
    strata = {
        "precondition": "forced" if any(piece.forced) else "said" if needed else "none",
        "length": str(piece.length),
        "rarity": "unseen" if rarest == 0 else "rare" if rarest < RARE_BELOW else "common",
        "source": ("explored" if piece.explored else "human") if family.explored else None,
    }
    return SetEntry(
        index=piece.index,
        start=piece.start,
        length=piece.length,
        first_turn=piece.first_turn,
        wording_seed=piece.wording_seed,
        forced=piece.forced,
        explored=packed(piece.spec) if piece.explored else None,
        strata=Strata.model_validate(strata),
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
            spec=render_turns(spec, _by_turn(entry), "evaluation", random.Random(entry.wording_seed)),
        )
        for entry, spec, begin in zip(entries, bare, begins, strict=True)
    )


def _bare(name: str, task: CategoryTask, entry: SetEntry) -> TaskSpec:
    family = family_of(name)
    if entry.explored is None:
        return slice_task(task, entry.start, entry.length, entry.first_turn, family.classes)
    try:
        found = unpacked(entry)
    except ValueError as error:
        raise InputError(f"evaluation set {name} was altered: check its file out of the repository again") from error
    return explored_task(task, found, family.classes)


def _by_turn(entry: SetEntry) -> tuple[tuple[bool, ...], ...]:
    first = entry.first_turn
    return (entry.forced,) if first is None else (entry.forced[:first], entry.forced[first:])


def _digest(tasks: Sequence[TemplatedSetTask]) -> str:
    content = [task.model_dump(mode="json") for task in tasks]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()


def _one_task_a_line(file: SetFile) -> str:
    head = file.model_dump(mode="json", exclude={"tasks"})
    lines = ",\n".join(f"  {json.dumps(entry.model_dump(mode='json', exclude_none=True))}" for entry in file.tasks)
    return json.dumps(head, indent=1).removesuffix("\n}") + f',\n "tasks": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    main()
