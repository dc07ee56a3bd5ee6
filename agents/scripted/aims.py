"""Chooses the tool that an explorer aims at next: wanted tools not reached yet, then any tool by weight."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

_ELSEWHERE = 0.05


class Aims:
    """The aims and successes so far; the caller counts each aim in ``aimed`` and each success in ``succeeded``.

    Args:
        names: every tool that can be aimed at, in the order in which ``rng`` draws.
        wanted: the tools worth reaching, most wanted first.
        patience: number of attempts at a wanted tool before others are preferred.
        rng: the random generator.
    """

    def __init__(self, names: Sequence[str], wanted: Sequence[str], patience: int, rng: random.Random) -> None:
        self.aimed: Counter[str] = Counter()
        self.succeeded: Counter[str] = Counter()
        self._names = tuple(names)
        self._rank = {name: rank for rank, name in enumerate(dict.fromkeys(wanted))}
        self._patience = patience
        self._rng = rng

    def next(self) -> str:
        """Return the first wanted tool that was not reached yet or tried too often, else any by weight."""
        for name in self._rank:
            if name in self._names and not self.succeeded[name] and self.aimed[name] < self._patience:
                return name
        return self.any()

    def any(self) -> str:
        """Draw a tool by weight."""
        return self._rng.choices(self._names, [self._weight(name) for name in self._names])[0]

    def _weight(self, tool: str) -> float:
        """Return the weight of a tool: larger if it is high on the list of wanted ones and not yet reached or tried."""
        rank = self._rank.get(tool)
        base = _ELSEWHERE if rank is None else 1.0 / (1 + 0.5 * rank)
        return base / (1 + self.succeeded[tool] + 0.5 * self.aimed[tool])
