"""Starts a task set from a user's own file: each line is verified, or refused with its reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from environments.base import InputError
from environments.fingerprints import fingerprint
from environments.verification import Refusal, verify
from graph.assembly import Rooms
from memory.records import Task
from memory.tasks import read_given

NAMED = 20  # held-out tasks that an error names
CHUNK = 25  # lines verified between two looks at the event loop


async def verify_given(path: Path, rooms: Rooms, tell: Callable[[str], None]) -> tuple[Task, ...]:
    """The tasks of ``path`` that verification accepts, in the order of the file.

    ``tell`` is given one line, ``file:line: reason: detail``, for each task that is refused.
    Raises InputError when the file cannot be read or none of its tasks is accepted.
    """
    lines = await asyncio.to_thread(read_given, path)
    accepted: list[Task] = []
    held_out: list[str] = []
    known: set[str] = set()
    for start in range(0, len(lines), CHUNK):
        chunk = lines[start : start + CHUNK]
        refusals = await asyncio.to_thread(_refusals, [task for _, task in chunk], rooms, known)
        for (number, task), refusal in zip(chunk, refusals, strict=True):
            if refusal is not None:
                tell(f"{path}:{number}: {refusal}")
                if isinstance(task, Task) and refusal.startswith(f"{Refusal.SEALED}:"):
                    held_out.append(task.id)
            elif isinstance(task, Task):
                accepted.append(task)
    if not accepted:
        held = f", {len(held_out)} are held out ({', '.join(held_out[:NAMED])})" if held_out else ""
        raise InputError(
            f"tasks.initial: none of the {len(lines)} tasks in {path} was accepted{held}: see the reasons above"
        )
    return tuple(accepted)


def _refusals(tasks: Sequence[Task | str], rooms: Rooms, known: set[str]) -> list[str | None]:
    """Why each task is refused, None where it is accepted; fingerprints of those are added to ``known``."""
    refusals = []
    for task in tasks:
        refusal = task if isinstance(task, str) else _refusal(task, rooms, known)
        if refusal is None and isinstance(task, Task):
            known.add(fingerprint(task))
        refusals.append(refusal)
    return refusals


def _refusal(task: Task, rooms: Rooms, known: set[str]) -> str | None:
    if task.environment != rooms.environment.name:
        return f"environment: the run acts in {rooms.environment.name}, this task in {task.environment}"
    if task.split != "train":
        return f"split: only tasks of the train split may be trained on, this one is of {task.split}"
    ruling = verify(task, rooms.environment, known, rooms.sealed, rooms.settings.verification)
    return None if ruling.accepted else f"{ruling.reason}: {ruling.detail}"
