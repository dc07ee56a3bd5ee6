"""Cut templated tasks from human reference paths: contiguous runs of calls, with the calls before them as setup."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise, product

from environments.base import Environment, InputError, Record, TaskSpec
from environments.bfcl.docs import tool_names
from environments.bfcl.official import CategoryTask, load_category, split_of
from environments.bfcl.templated.wordings import Wordings, forced_calls, render_turns
from environments.verification.fingerprints import fingerprint
from environments.verification.verify import verify

TEMPLATED_CLASSES = ("GorillaFileSystem", "VehicleControlAPI")
"""The official classes that templated tasks are about."""


class HumanSlice(Record):
    """``length`` calls from call ``start`` (from 0, over all turns) of the base task ``index``, as a task.

    It has one user turn, or two where ``first_turn`` says how many of its calls the first one asks for. ``forced``
    marks the calls that the text leaves unsaid; ``wording_seed`` seeds the draw of the wordings.
    """

    index: int
    start: int
    length: int
    first_turn: int | None = None
    wording_seed: int
    forced: tuple[bool, ...]
    spec: TaskSpec


def human_slices(
    environment: Environment,
    indices: Sequence[int],
    seed: int = 0,
    lengths: Sequence[int] = (1, 2, 3),
    wordings: Wordings = "panel",
) -> tuple[HumanSlice, ...]:
    """Return every slice of the base tasks at ``indices`` that verifies, by index, start and length.

    Setup and slice must stay within the templated classes, and the task is restricted to them. Of slices with equal
    fingerprints the first is kept. Raises InputError for a reserved or unknown index.
    """
    cuts = [
        (task.index, start, length, None)
        for task in base_tasks(indices)
        for start in range(_within(task))
        for length in sorted(lengths)
        if start + length <= _within(task)
    ]
    return _verified(environment, cuts, seed, wordings)


def human_pairs(
    environment: Environment,
    indices: Sequence[int],
    seed: int = 0,
    longest: int = 4,
    wordings: Wordings = "panel",
) -> tuple[HumanSlice, ...]:
    """Return the slices across the end of one human user turn that verify as tasks of two user turns.

    A slice has the last calls of a turn and the first of the next, at least one of each and ``longest`` together at
    most. Otherwise like ``human_slices``.
    """
    cuts = []
    for task in base_tasks(indices):
        sizes = [len(turn) for turn in task.spec.reference]
        for turn, (before, after) in enumerate(pairwise(sizes)):
            end = sum(sizes[: turn + 1])
            for first, second in product(range(1, before + 1), range(1, after + 1)):
                if first + second <= longest and end + second <= _within(task):
                    cuts.append((task.index, end - first, first + second, first))
    return _verified(environment, cuts, seed, wordings)


def base_tasks(indices: Sequence[int]) -> tuple[CategoryTask, ...]:
    """Return the base tasks at ``indices``, ascending. Raises InputError for a reserved or unknown index."""
    if reserved := [index for index in indices if split_of(index) == "reserved"]:
        raise InputError(f"index {reserved[0]} is reserved: no task is cut from it, leave it out")
    return tuple(task for task in load_category("base") if task.index in set(indices))


def slice_task(task: CategoryTask, start: int, length: int, first_turn: int | None = None) -> TaskSpec:
    """Return the task of one slice with an empty text, restricted to the templated classes.

    The task has two user turns where ``first_turn`` gives the number of calls of the first. Raises InputError for a
    slice that ends after the path or, itself or in its setup, leaves these classes, and for an empty turn.
    """
    path = tuple(call for turn in task.spec.reference for call in turn)
    classes = tuple(name for name in task.spec.classes if name in TEMPLATED_CLASSES)
    tools = tool_names(classes)
    if not 0 < length <= len(path) - start or any(call.name not in tools for call in path[: start + length]):
        raise InputError(f"calls {start} to {start + length - 1} of {task.id} are not a slice of templated classes")
    if first_turn is not None and not 0 < first_turn < length:
        raise InputError(f"{first_turn} of {length} calls of {task.id} cannot be the first of two user turns")
    calls = path[start : start + length]
    reference = (calls,) if first_turn is None else (calls[:first_turn], calls[first_turn:])
    return TaskSpec(
        environment=task.spec.environment,
        split=task.spec.split,
        classes=classes,
        turns=("",) * len(reference),
        initial_state={name: task.spec.initial_state[name] for name in classes if name in task.spec.initial_state},
        setup=path[:start],
        tools=tools,
        reference=reference,
    )


def _within(task: CategoryTask) -> int:
    """Return the number of calls of the human path before the first that leaves the templated classes."""
    templated = set(tool_names(TEMPLATED_CLASSES))
    path = [call.name for turn in task.spec.reference for call in turn]
    return next((position for position, name in enumerate(path) if name not in templated), len(path))


def _verified(
    environment: Environment, cuts: Sequence[tuple[int, int, int, int | None]], seed: int, wordings: Wordings
) -> tuple[HumanSlice, ...]:
    """Return the cuts (index, start, length, calls of the first turn) that verify, each task once."""
    found: dict[str, HumanSlice] = {}
    official = {task.index: task for task in base_tasks([cut[0] for cut in cuts])}
    for index, start, length, first_turn in cuts:
        bare = slice_task(official[index], start, length, first_turn)
        # A slice of one turn and one of two are never cut from the same calls by one caller: one seed serves both.
        wording_seed = random.Random(f"{seed}-{index}-{start}-{length}").getrandbits(32)
        forced = forced_calls(environment, bare)
        spec = render_turns(bare, forced, wordings, random.Random(wording_seed))
        if fingerprint(spec) not in found and verify(spec, environment, (), ()).accepted:
            found[fingerprint(spec)] = HumanSlice(
                index=index,
                start=start,
                length=length,
                first_turn=first_turn,
                wording_seed=wording_seed,
                forced=tuple(flag for flags in forced for flag in flags),
                spec=spec,
            )
    return tuple(found.values())
