"""Rebuild the fixed evaluation sets of templated tasks: held-out slices of human paths, checked by hash.

Only ``evaluation`` opens a set; other code reads its published record (``verification.fingerprints``). Each kind has
one set of the split dev (for the choice of checkpoints and settings) and one of the split test:

templated   slices of 1 to 3 calls, as long as D_0's and the scripted abstractor's tasks are
longer      slices of 4 to 6 calls: longer than any training task of the shipped recipes
turns       slices across the end of a human user turn, 2 to 4 calls, as tasks of two user turns

Signals come from rollouts of training tasks, and the scripted roles make tasks of one user turn. A failure at the
border of two turns (stopping for good after the first, acting ahead of the second) therefore never raises a signal:
"turns" holds tasks with a cause of failure that no signal monitors. A set holds every slice of the human paths of its
split that verifies, or a uniform sample of them where there are more than the limit. Its order is random, so that the
first n tasks are a uniform sample too.

Run ``python -m environments.bfcl.templated.panels`` to make the files in ``panels/``: ids and strata, not tasks.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import ValidationError, model_validator

from environments.base import Environment, InputError, Record, TaskSpec
from environments.bfcl.official import Split, indices
from environments.bfcl.templated.slices import (
    TEMPLATED_CLASSES,
    HumanSlice,
    base_tasks,
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

_SPLITS: dict[str, Split] = {
    "templated-dev": "dev",
    "templated-test": "test",
    "longer-dev": "dev",
    "longer-test": "test",
    "turns-dev": "dev",
    "turns-test": "test",
}
_LIMITS = {"templated-dev": 250, "templated-test": 400}
_LIMIT = 200  # tasks of a set without a limit of its own


class Strata(Record):
    """The strata of a task, for the breakdown of results.

    ``precondition``: a call is needed by a later one and left unsaid ("forced"), or needed and said ("said"), or no
    call needs another. ``length``: calls in the reference. ``rarity``: of its rarest function, by calls in human paths
    of training indices: common (5 and more), rare (1 to 4) or unseen.
    """

    precondition: Literal["forced", "said", "none"]
    length: Literal["1", "2", "3", "4", "5", "6"]
    rarity: Literal["common", "rare", "unseen"]


class TemplatedSetTask(Record):
    """One held-out task. ``cluster`` is the smallest index of the set that begins in the same state."""

    id: str
    cluster: str
    strata: Strata
    spec: TaskSpec


class SetEntry(Record):
    """A task's entry in a set's file: enough to rebuild it from the official data without replays.

    ``first_turn``: calls of the first of two user turns; None, and not in the file, for a task of one.
    """

    index: int
    start: int
    length: int
    first_turn: int | None = None
    wording_seed: int
    forced: tuple[bool, ...]
    strata: Strata

    @model_validator(mode="after")
    def _one_mark_a_call(self) -> Self:
        if len(self.forced) != self.length:
            raise ValueError(f"{len(self.forced)} marks for {self.length} calls")
        return self


class SetFile(Record):
    """The file of an evaluation set. ``available``: slices that verified; ``sha256``: of the rebuilt tasks."""

    panel: str
    environment: str
    split: Split
    seed: int
    available: int
    sha256: str
    tasks: tuple[SetEntry, ...]


def set_names() -> tuple[str, ...]:
    """Return the names of the evaluation sets."""
    return tuple(_SPLITS)


def held_out(name: str) -> bool:
    """Return whether a set is of the split test. Raises InputError for an unknown name."""
    if name not in _SPLITS:
        raise InputError(f"no evaluation set is called {name!r}: choose one of {', '.join(_SPLITS)}")
    return _SPLITS[name] == "test"


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
    if name not in _SPLITS:
        raise InputError(f"no evaluation set is called {name!r}: choose one of {', '.join(_SPLITS)}")
    path = sets_folder(ENVIRONMENT) / f"{name}.json"
    try:
        file = SetFile.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check it out of the repository again") from error
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise InputError(f"{path} was altered ({reason}): check it out of the repository again") from error
    if file.panel != name or file.split != _SPLITS[name]:
        raise InputError(f"{path} holds the set {file.panel!r} of {file.split}: check it out of the repository again")
    return file


def make_set(name: str, environment: Environment, seed: int = 0) -> tuple[SetFile, tuple[TemplatedSetTask, ...]]:
    """Cut, verify, sample and label the tasks of a set. Equal arguments give equal sets."""
    split = _SPLITS[name]
    slices = _slices(name, environment, seed)
    chosen = random.Random(f"{seed}-{name}").sample(slices, min(_LIMITS.get(name, _LIMIT), len(slices)))
    counts = Counter(c.name for task in base_tasks(indices("train")) for turn in task.spec.reference for c in turn)
    entries = tuple(_entry(environment, piece, counts) for piece in chosen)
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


def write_set(
    folder: Path, file: SetFile, tasks: Sequence[TemplatedSetTask], *, force: bool = False
) -> tuple[Path, Path]:
    """Write a set's file and its published record. Raises InputError when one exists and ``force`` is not set."""
    paths = (folder / f"{file.panel}.json", folder / f"{file.panel}{SUFFIX}")
    for path in paths:
        if path.exists() and not force:
            raise InputError(f"{path} exists: sets are fixed, give --force to replace it and say so in the changelog")
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
        prog="python -m environments.bfcl.templated.panels", description="Make the fixed evaluation sets."
    )
    parser.add_argument("--force", action="store_true", help="replace the files that exist")
    parser.add_argument("--seed", type=int, default=0, help="seed of sample, order and wordings (default 0)")
    parser.add_argument("--panel", action="append", choices=set_names(), help="this one only; may be repeated")
    parser.add_argument("--folder", type=Path, default=sets_folder(ENVIRONMENT), help="where to write")
    options = parser.parse_args(arguments)
    from environments.bfcl.environment import BFCLEnvironment

    with exit_statuses():
        environment = BFCLEnvironment(TEMPLATED_CLASSES)
        for name in options.panel or set_names():
            file, tasks = make_set(name, environment, options.seed)
            paths = write_set(options.folder, file, tasks, force=options.force)
            print(f"{name}: {len(tasks)} of {file.available} slices, {len({t.cluster for t in tasks})} clusters")
            for label in Strata.model_fields:
                counted = Counter(str(getattr(task.strata, label)) for task in tasks)
                print(f"  {label}: {', '.join(f'{value} {counted[value]}' for value in sorted(counted))}")
            print(f"  wrote {' and '.join(map(str, paths))}")


def _slices(name: str, environment: Environment, seed: int) -> tuple[HumanSlice, ...]:
    held = indices(_SPLITS[name])
    match name.partition("-")[0]:
        case "templated":
            return human_slices(environment, held, seed)
        case "longer":
            return human_slices(environment, held, seed, lengths=(4, 5, 6))
        case _:
            return human_pairs(environment, held, seed)


def _entry(environment: Environment, piece: HumanSlice, counts: Mapping[str, int]) -> SetEntry:
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
    }
    return SetEntry(
        index=piece.index,
        start=piece.start,
        length=piece.length,
        first_turn=piece.first_turn,
        wording_seed=piece.wording_seed,
        forced=piece.forced,
        strata=Strata.model_validate(strata),
    )


def _rebuild(name: str, entries: Sequence[SetEntry]) -> tuple[TemplatedSetTask, ...]:
    official = {task.index: task for task in base_tasks(indices(_SPLITS[name]))}
    if strange := [entry.index for entry in entries if entry.index not in official]:
        raise InputError(f"evaluation set {name}: index {strange[0]} is not of its split: check its file out again")
    bare = [slice_task(official[entry.index], entry.start, entry.length, entry.first_turn) for entry in entries]
    begins = [json.dumps(spec.initial_state, sort_keys=True) for spec in bare]
    first: dict[str, int] = {}
    for index, begin in sorted(zip((entry.index for entry in entries), begins, strict=True)):
        first.setdefault(begin, index)
    return tuple(
        TemplatedSetTask(
            id=f"{name}-{entry.index}-{entry.start}-{entry.length}",
            cluster=str(first[begin]),
            strata=entry.strata,
            spec=render_turns(spec, _by_turn(entry), "panel", random.Random(entry.wording_seed)),
        )
        for entry, spec, begin in zip(entries, bare, begins, strict=True)
    )


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
