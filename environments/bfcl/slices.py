"""Templated tasks cut from human reference paths: contiguous runs of calls, with the calls before them as setup."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from environments.base import Environment, InputError, Record, TaskSpec
from environments.bfcl.docs import tool_names
from environments.bfcl.official import OfficialTask, load_category
from environments.bfcl.splits import split_of
from environments.bfcl.text import forced_calls, render_turns
from environments.bfcl.wordings import Wordings
from environments.fingerprints import fingerprint
from environments.verification import verify

TEMPLATED_CLASSES = ("GorillaFileSystem", "VehicleControlAPI")
"""The official classes that templated tasks are about."""


class HumanSlice(Record):
    """``length`` calls from call ``start`` (from 0, over all turns) of the base task ``index``, as a task of one turn.

    ``forced`` marks the calls that the text leaves unsaid; ``wording_seed`` seeds the draw of the wordings.
    """

    index: int
    start: int
    length: int
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
    """Every slice of the base tasks at ``indices`` that verifies, by index, start and length.

    Setup and slice must stay within the templated classes, and the task is restricted to them. Of slices with equal
    fingerprints the first is kept. Raises InputError for a reserved or unknown index.
    """
    found: dict[str, HumanSlice] = {}
    for task in base_tasks(indices):
        for start, length, bare in _candidates(task, lengths):
            wording_seed = random.Random(f"{seed}-{task.index}-{start}-{length}").getrandbits(32)
            forced = forced_calls(environment, bare)[0]
            spec = render_turns(bare, (forced,), wordings, random.Random(wording_seed))
            if fingerprint(spec) not in found and verify(spec, environment, (), ()).accepted:
                found[fingerprint(spec)] = HumanSlice(
                    index=task.index, start=start, length=length, wording_seed=wording_seed, forced=forced, spec=spec
                )
    return tuple(found.values())


def base_tasks(indices: Sequence[int]) -> tuple[OfficialTask, ...]:
    """The base tasks at ``indices``, ascending. Raises InputError for a reserved or unknown index."""
    if reserved := [index for index in indices if split_of(index) == "reserved"]:
        raise InputError(f"index {reserved[0]} is reserved: no task is cut from it, leave it out")
    return tuple(task for task in load_category("base") if task.index in set(indices))


def slice_task(task: OfficialTask, start: int, length: int) -> TaskSpec:
    """The task of one slice with an empty text, restricted to the templated classes.

    Raises InputError for a slice that reaches past the path or, itself or in its setup, leaves these classes.
    """
    path = tuple(call for turn in task.spec.reference for call in turn)
    classes = tuple(name for name in task.spec.classes if name in TEMPLATED_CLASSES)
    tools = tool_names(classes)
    if not 0 < length <= len(path) - start or any(call.name not in tools for call in path[: start + length]):
        raise InputError(f"calls {start} to {start + length - 1} of {task.id} are no slice of templated classes")
    return TaskSpec(
        environment=task.spec.environment,
        split=task.spec.split,
        classes=classes,
        turns=("",),
        initial_state={name: task.spec.initial_state[name] for name in classes if name in task.spec.initial_state},
        setup=path[:start],
        tools=tools,
        reference=(path[start : start + length],),
    )


def _candidates(task: OfficialTask, lengths: Sequence[int]) -> Iterator[tuple[int, int, TaskSpec]]:
    templated = set(tool_names(TEMPLATED_CLASSES))
    path = [call.name for turn in task.spec.reference for call in turn]
    within = next((position for position, name in enumerate(path) if name not in templated), len(path))
    for start in range(within):
        for length in sorted(lengths):
            if start + length <= within:
                yield start, length, slice_task(task, start, length)
