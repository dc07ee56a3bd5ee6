"""Explores AppWorld around a context, or anywhere: which API an episode aims at next."""

from __future__ import annotations

import random

from agents.live import live_run
from agents.scripted.aims import Aims
from agents.scripted.appworld.episode import AppWorldEpisode
from agents.scripted.appworld.session import ACTIVE_TASK, COMPLETE, PROFILE, is_about_accounts
from agents.settings import ExplorationSettings
from environments.appworld.played_world import PYTHON
from environments.base import Environment
from memory.records import FailureContext, Interaction

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
    names = [name for name in sorted(tools) if can_be_aimed_at(name)]
    aims = Aims(names, [name for name in (context.tool, *context.explore) if name in names], _PATIENCE, rng)

    def next_aim() -> str:
        aim = aims.next() if guided else rng.choices(names)[0]
        aims.aimed[aim] += 1
        return aim

    def reached(name: str) -> None:
        aims.succeeded[name] += 1

    interactions: list[Interaction] = []
    for number in range(settings.rounds):
        with live_run(environment, context, number, settings.steps) as run:
            AppWorldEpisode(run, tools, settings.steps, rng, next_aim, reached).play()
            interactions += run.interactions
    return tuple(interactions)


def can_be_aimed_at(name: str) -> bool:
    """Whether tasks are made about an API: not about who one is, accounts, documentation, code or the task itself.

    Every sign-in asks who one is, so that tasks about it would crowd out the others.
    """
    if name in (PYTHON, COMPLETE, ACTIVE_TASK, PROFILE) or name.startswith("api_docs."):
        return False
    return not is_about_accounts(name)
