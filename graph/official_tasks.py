"""Starts a task set from BFCL's own tasks of the training split (``tasks.initial: official``), in all four categories.

They are the benchmark's and are taken as they are: what verification asks of a draft (a call in every turn, few calls,
grounded arguments) is not asked of them. That they open, play and can be judged is, and that none is on a held-out
panel. Whether one is of the training split is decided by its index, which all four categories share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from environments.base import InputError
from environments.verification import can_train
from graph.assembly import Rooms
from memory.records import Task


async def official_tasks(rooms: Rooms, tell: Callable[[str], None]) -> tuple[Task, ...]:
    """The official training tasks whose classes the settings name, category by category.

    ``tell`` is given one line for each that is refused, and one with the number of those of other classes. Raises
    InputError when none is left.
    """
    return await asyncio.to_thread(_official, rooms, tell)


def _official(rooms: Rooms, tell: Callable[[str], None]) -> tuple[Task, ...]:
    from environments.bfcl.official import load_category
    from environments.bfcl.package import CATEGORIES

    classes = set(rooms.settings.environment.classes or ())
    found = [one for category in CATEGORIES for one in load_category(category, ("train",))]
    fitting = [one for one in found if classes.issuperset(one.spec.classes)]
    if len(fitting) < len(found):
        tell(f"tasks.initial: {len(found) - len(fitting)} of {len(found)} official tasks need other classes")
    tasks = []
    for one in fitting:
        ruling = can_train(one.spec, rooms.environment, (), rooms.sealed)
        if ruling.accepted:
            tasks.append(Task(id=one.id, origin="official", **dict(one.spec)))
        else:
            tell(f"tasks.initial: {one.id}: {ruling.reason}: {ruling.detail}")
    if not tasks:
        raise InputError("environment.classes: no official training task has these classes alone: name others")
    return tuple(tasks)
