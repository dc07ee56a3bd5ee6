"""Replay references in worlds of their own and cache the results, because a replay needs a world."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache

from environments.appworld.outcomes import ReferenceTurn
from environments.appworld.records import Difference
from environments.appworld.worlds import PlayedWorld, RecordedWorld
from environments.base import EnvironmentFault, TaskSpec

KEPT = 512
_UNCHANGED = Difference(changes={}, status=None, answer=None)


@dataclass(frozen=True)
class _Reference:
    """A task by what its reference depends on."""

    key: str
    task: TaskSpec = field(compare=False)


class PlayedReferences:
    """The turns of each task's reference; the last ``KEPT`` are cached. Safe to use from several threads.

    ``play`` opens a fresh world of a task.
    """

    def __init__(self, play: Callable[[TaskSpec], PlayedWorld | RecordedWorld]) -> None:
        self._play = play
        self._cached = lru_cache(KEPT)(lambda reference: self._replayed(reference.task))

    def of(self, task: TaskSpec) -> tuple[ReferenceTurn, ...]:
        """Return the turns of ``task``'s reference. Raises EnvironmentFault when the world that plays them fails."""
        depends = task.model_dump(mode="json", include={"initial_state", "setup", "reference"})
        return self._cached(_Reference(json.dumps([depends, task.turns[0]], sort_keys=True), task))

    def _replayed(self, task: TaskSpec) -> tuple[ReferenceTurn, ...]:
        if not any(task.reference):  # a turn without calls is not compared
            return (ReferenceTurn(calls=0, error=False, end=_UNCHANGED),) * len(task.reference)
        with closing(self._play(task)) as world:
            for call in task.setup:
                world.run(call)
            untouched = _end(world).changes if task.setup else {}
            turns = []
            for calls in task.reference:
                observations = [world.run(call) for call in calls]
                error = any(observation.failed for observation in observations)
                turns.append(ReferenceTurn(calls=len(calls), error=error, end=_end(world), untouched=untouched))
        return tuple(turns)


def _end(world: PlayedWorld | RecordedWorld) -> Difference:
    difference = world.difference()
    if difference is None:
        raise EnvironmentFault("the task's reference lost its world when it was replayed")
    return difference
