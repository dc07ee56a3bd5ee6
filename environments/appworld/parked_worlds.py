"""Keeps a few open worlds that nobody uses, by where they stand: whoever comes to the same place goes on in one."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from environments.appworld.played_world import PlayedWorld

MOST = 8
"""Worlds kept open; each has up to 100 MB of its own."""


class ParkedWorlds:
    """Open worlds and the places they stand at, which are compared by identity. May be shared by threads.

    ``most`` worlds are kept; 0 keeps none.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._parked: list[tuple[object, PlayedWorld]] = []
        self._lock = threading.Lock()

    def park(self, place: object, world: PlayedWorld) -> None:
        """Keep ``world``, which stands at ``place``, and end the one that was kept longest when there are too many."""
        ended = []
        with self._lock:
            self._parked.append((place, world))
            while len(self._parked) > self._most:
                ended.append(self._parked.pop(0))
        for _, left in ended:
            left.close()

    def take(self, path: Sequence[object]) -> tuple[int, PlayedWorld] | None:
        """A world that stands on ``path``, as far along it as possible, with the index of its place; None without one.

        Worlds that died meanwhile are dropped.
        """
        while True:
            with self._lock:
                found = self._furthest(path)
                if found is None:
                    return None
                index, kept = found
                _, world = self._parked.pop(kept)
            if world.alive:
                return index, world
            world.close()

    def _furthest(self, path: Sequence[object]) -> tuple[int, int] | None:
        """Indices of the furthest place on ``path`` where a world stands, and of the world parked there last."""
        for index in reversed(range(len(path))):
            for kept in reversed(range(len(self._parked))):
                if self._parked[kept][0] is path[index]:
                    return index, kept
        return None
