"""The tasks of a run without end, for trainers such as prime-rl: those admitted while it goes on join.

Draws are dealt from a shuffled order, so that each task comes before any comes twice; new ones come next. Each draw has
a number of its own, under which ``coevolve environment serve --run RUN --record`` records its rollouts.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import httpx
from coevolve_tasks import CoEvolveEnv, CoEvolveTask, CoEvolveTaskset

__all__ = ["CoEvolveEnv", "CoEvolveStream"]

logger = logging.getLogger(__name__)


class CoEvolveStream(CoEvolveTaskset):
    """The tasks of a server, again and again. ``config.refresh`` seconds pass between two looks for later ones."""

    INFINITE = True

    def load(self) -> Iterator[CoEvolveTask]:
        """Yield draws. Raises RuntimeError where the server has no task that can be drawn."""
        rng = random.Random(self.config.seed)
        known, waiting = list[dict[str, Any]](), deque[dict[str, Any]]()
        seen, looked = 0, -float("inf")
        first = int(time.time()) << 20  # a trainer that starts again draws under other numbers
        for draw in itertools.count(first):
            if time.monotonic() - looked >= self.config.refresh:
                looked = time.monotonic()
                try:
                    later = list(self.listed(seen))
                except httpx.HTTPError as error:
                    if not known:
                        raise
                    logger.warning("later tasks could not be listed, the known ones go on: %s", error)
                    later = []
                seen += len(later)
                fresh = [one for one in later if not one["played"]]
                rng.shuffle(fresh)
                known += fresh
                waiting.extendleft(fresh)
            if not waiting:
                waiting.extend(rng.sample(known, len(known)))
            if not waiting:
                raise RuntimeError("the server has no task that an agent plays from its first turn")
            yield self.task(waiting.popleft(), draw)
