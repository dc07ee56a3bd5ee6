"""Explores AppWorld around a context, or anywhere: which API an episode aims at next."""

from __future__ import annotations

import random
from collections import Counter

from agents.live import live_run
from agents.scripted.appworld.episode import AppWorldEpisode
from agents.scripted.appworld.session import ACTIVE_TASK, COMPLETE, PROFILE, is_about_accounts
from agents.settings import ExplorationSettings
from environments.appworld.played_world import PYTHON
from environments.base import Environment, ToolSpec
from memory.records import FailureContext, Interaction

_ELSEWHERE = 0.05
_PATIENCE = 2


def explore_appworld(
    context: FailureContext, environment: Environment, settings: ExplorationSettings, seed: int, *, guided: bool
) -> tuple[Interaction, ...]:
    """R rounds of S steps; equal arguments give equal interactions.

    ``guided`` aims at the context's tool and those that it names as worth exploring, each until it was reached or
    tried twice, and draws by rank afterwards; otherwise every API is drawn alike. Both act alike (our choice: they
    differ in what they aim at and not in what they know).
    """
    rng = random.Random(seed)
    tools = {tool.name: tool for tool in environment.tools(context.tools)}
    aims = _Aims(context if guided else None, tools, rng)
    interactions: list[Interaction] = []
    for number in range(settings.rounds):
        with live_run(environment, context, number, settings.steps) as run:
            AppWorldEpisode(run, tools, settings.steps, rng, aims.next, aims.reached).play()
            interactions += run.interactions
    return tuple(interactions)


def can_be_aimed_at(name: str) -> bool:
    """Whether tasks are made about an API: not about who one is, accounts, documentation, code or the task itself.

    Every sign-in asks who one is, so that tasks about it would crowd out the others.
    """
    if name in (PYTHON, COMPLETE, ACTIVE_TASK, PROFILE) or name.startswith("api_docs."):
        return False
    return not is_about_accounts(name)


class _Aims:
    """What to aim at next, from what was reached and tried in all rounds of one context."""

    def __init__(self, context: FailureContext | None, tools: dict[str, ToolSpec], rng: random.Random) -> None:
        self._rng = rng
        self._names = [name for name in sorted(tools) if can_be_aimed_at(name)]
        wanted = (context.tool, *context.explore) if context is not None else ()
        self._rank = {name: rank for rank, name in enumerate(n for n in dict.fromkeys(wanted) if n in self._names)}
        self._guided = context is not None
        self._tried: Counter[str] = Counter()
        self._succeeded: Counter[str] = Counter()

    def next(self) -> str:
        for name in self._rank:
            if not self._succeeded[name] and self._tried[name] < _PATIENCE:
                return self._tell(name)
        weights = [self._weight(name) for name in self._names]
        return self._tell(self._rng.choices(self._names, weights)[0])

    def reached(self, name: str) -> None:
        self._succeeded[name] += 1

    def _tell(self, name: str) -> str:
        self._tried[name] += 1
        return name

    def _weight(self, name: str) -> float:
        if not self._guided:
            return 1.0
        rank = self._rank.get(name)
        base = _ELSEWHERE if rank is None else 1.0 / (1 + 0.5 * rank)
        return base / (1 + self._succeeded[name] + 0.5 * self._tried[name])
