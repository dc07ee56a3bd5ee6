"""Cut templated tasks from human reference paths: contiguous runs of calls, with the calls before them as setup.

A family of evaluation sets says which official classes its tasks may use. Where human paths do not call a function,
tasks that exploration found from the same start states join them (``explored_slices``).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from typing import NamedTuple

from environments.base import Environment, InputError, Record, TaskSpec, ToolCall
from environments.bfcl.docs import tool_names
from environments.bfcl.official import CategoryTask, load_category, split_of
from environments.bfcl.templated.wordings import Wordings, forced_calls, render_turns
from environments.verification.fingerprints import fingerprint
from environments.verification.verify import verify

TEMPLATED_CLASSES = ("GorillaFileSystem", "VehicleControlAPI")
"""The official classes of the first families of sets; the others have all eight (``package.CLASSES``)."""


class HumanSlice(Record):
    """``length`` calls from call ``start`` (from 0, over all turns) of the base task ``index``, as a task.

    It has one user turn, or two where ``first_turn`` says how many of its calls the first one asks for. ``forced``
    marks the calls that the text leaves unsaid; ``wording_seed`` seeds the draw of the wordings. ``explored``: no human
    made the calls, exploration found them from the base task's start state, and ``start`` only counts them.
    """

    index: int
    start: int
    length: int
    first_turn: int | None = None
    wording_seed: int
    forced: tuple[bool, ...]
    explored: bool = False
    spec: TaskSpec


class Found(NamedTuple):
    """Calls that exploration found from the start state of the base task ``base``, by user turn, after ``setup``."""

    base: int
    setup: tuple[ToolCall, ...]
    reference: tuple[tuple[ToolCall, ...], ...]


def human_slices(
    environment: Environment,
    indices: Sequence[int],
    seed: int = 0,
    lengths: Sequence[int] = (1, 2, 3),
    wordings: Wordings = "evaluation",
    classes: Sequence[str] = TEMPLATED_CLASSES,
) -> tuple[HumanSlice, ...]:
    """Return every slice of the base tasks at ``indices`` that verifies, by index, start and length.

    Setup and slice must stay within ``classes``, and the task is restricted to them. Of slices with equal
    fingerprints the first is kept. Raises InputError for a reserved or unknown index.
    """
    cuts = (
        _cut(task, start, length, None, seed, classes)
        for task in base_tasks(indices)
        for start in range(_within(task, classes))
        for length in sorted(lengths)
        if start + length <= _within(task, classes)
    )
    return _verified(environment, cuts, wordings)


def human_pairs(
    environment: Environment,
    indices: Sequence[int],
    seed: int = 0,
    longest: int = 4,
    wordings: Wordings = "evaluation",
    classes: Sequence[str] = TEMPLATED_CLASSES,
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
                if first + second <= longest and end + second <= _within(task, classes):
                    cuts.append(_cut(task, end - first, first + second, first, seed, classes))
    return _verified(environment, cuts, wordings)


def explored_slices(
    environment: Environment,
    found: Sequence[Found],
    seed: int = 0,
    classes: Sequence[str] = TEMPLATED_CLASSES,
) -> tuple[HumanSlice, ...]:
    """Return the tasks of what exploration found that verify, each once, in the given order.

    Raises InputError for a reserved or unknown index.
    """
    official = {task.index: task for task in base_tasks([one.base for one in found])}
    cuts = (
        _Cut(one.base, number, explored_task(official[one.base], one, classes), f"{seed}-{one.base}-explored-{number}")
        for number, one in enumerate(found)
    )
    return _verified(environment, cuts, "evaluation", explored=True)


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
    """Return the task of one slice with an empty text, restricted to ``classes``.

    The task has two user turns where ``first_turn`` gives the number of calls of the first. Raises InputError for a
    slice that ends after the path or, itself or in its setup, leaves these classes, and for an empty turn.
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


def explored_task(task: CategoryTask, found: Found, classes: Sequence[str] = TEMPLATED_CLASSES) -> TaskSpec:
    """Return the task of what exploration found with an empty text. Raises InputError for calls of other classes."""
    tools = set(tool_names(name for name in task.spec.classes if name in classes))
    calls = (*found.setup, *(call for turn in found.reference for call in turn))
    if strange := [call.name for call in calls if call.name not in tools]:
        raise InputError(f"{strange[0]} is not a function of the classes of {task.id}")
    return _restricted(task, found.setup, found.reference, classes)


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


def _within(task: CategoryTask, classes: Sequence[str]) -> int:
    """Return the number of calls of the human path before the first that leaves ``classes``."""
    templated = set(tool_names(classes))
    path = [call.name for turn in task.spec.reference for call in turn]
    return next((position for position, name in enumerate(path) if name not in templated), len(path))


class _Cut(NamedTuple):
    """A base task by its index, a place in it, the task with an empty text, and what seeds the draw of its wordings."""

    base: int
    start: int
    bare: TaskSpec
    seed: str


def _cut(
    task: CategoryTask, start: int, length: int, first_turn: int | None, seed: int, classes: Sequence[str]
) -> _Cut:
    bare = slice_task(task, start, length, first_turn, classes)
    # A slice of one turn and one of two are never cut from the same calls by one caller: one seed serves both.
    return _Cut(task.index, start, bare, f"{seed}-{task.index}-{start}-{length}")


def _verified(
    environment: Environment, cuts: Iterable[_Cut], wordings: Wordings, *, explored: bool = False
) -> tuple[HumanSlice, ...]:
    """Return the cuts that verify, in our words, each task once."""
    found: dict[str, HumanSlice] = {}
    for cut in cuts:
        reference = cut.bare.reference
        wording_seed = random.Random(cut.seed).getrandbits(32)
        forced = forced_calls(environment, cut.bare)
        spec = render_turns(cut.bare, forced, wordings, random.Random(wording_seed))
        if fingerprint(spec) not in found and verify(spec, environment, (), ()).accepted:
            found[fingerprint(spec)] = HumanSlice(
                index=cut.base,
                start=cut.start,
                length=sum(map(len, reference)),
                first_turn=len(reference[0]) if len(reference) > 1 else None,
                wording_seed=wording_seed,
                forced=tuple(flag for flags in forced for flag in flags),
                explored=explored,
                spec=spec,
            )
    return tuple(found.values())
