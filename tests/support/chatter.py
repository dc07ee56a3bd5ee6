"""An episode of random ids: what tests of samplers drive in place of an environment."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from training.rollout.sampling import Sampled, TokenPrompt

STOP = 7


@dataclass
class Chatter:
    """An episode whose prompts and suffixes are random ids from ``shift`` + 8, of random length, fixed by its seed."""

    seed: int
    actions: int = 4
    longest: int = 30
    max_new_tokens: int = 9
    stop_ids: frozenset[int] = frozenset({STOP})
    opening: tuple[int, ...] = ()
    shift: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    acted: list[Sampled] = field(default_factory=list)
    opened: bool = False
    following: TokenPrompt | None = None

    def _suffix(self) -> TokenPrompt:
        rng = random.Random(f"{self.seed}/{len(self.acted)}")
        new = [self.shift + rng.randrange(8, 40) for _ in range(rng.randint(1, self.longest))]
        if self.opening and not self.acted:
            new = list(self.opening)
        self._add(new, [0.0] * len(new), False)
        return TokenPrompt(new, self.max_new_tokens)

    def _add(self, ids: Sequence[int], logprobs: Sequence[float], sampled: bool) -> None:
        self.ids += ids
        self.logprobs += logprobs
        self.sampled += [sampled] * len(ids)

    def observe(self) -> TokenPrompt | None:
        if not self.opened:
            self.opened = True
            self.following = self._suffix() if self.actions else None
        return self.following

    def act(self, message: Sampled) -> None:
        assert message.context == len(self.ids)
        assert self.following is not None
        assert message.ids[-1] in self.stop_ids or len(message.ids) == self.following.max_new_tokens
        self._add(message.ids, message.logprobs, True)
        self.acted.append(message)
        self.following = self._suffix() if len(self.acted) < self.actions else None


def starter_episodes(count: int = 6) -> list[Chatter]:
    """Episodes of the starter's ids with many stop ids, so that messages end in both ways."""
    stops = frozenset(range(100, 900, 5))
    return [Chatter(seed, actions=3, longest=12, shift=100, stop_ids=stops) for seed in range(count)]
