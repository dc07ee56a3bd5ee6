"""The unguided explorer: functions and arguments drawn uniformly, for D_0, warm starts, and the baseline."""

from __future__ import annotations

import asyncio
import random
from functools import cache

from agents.live import live_run
from agents.scripted.arguments import draw_uniform
from agents.scripted.own import own_roles
from agents.scripted.values import Scalar, Sightings
from agents.settings import ExplorationSettings
from environments.base import Environment
from environments.benchmark import KnownValue
from environments.registry import benchmark_of
from memory.records import FailureContext, Interaction

_MAX_OBSERVATION = 400


class UnguidedExplorer:
    """Explorer that uses nothing of a context but its start state.

    With the settings of the guided one it is the baseline at an equal budget; D_0 uses one round of 14 steps
    (``UNGUIDED_EXPLORATION``).
    """

    def __init__(self, settings: ExplorationSettings) -> None:
        self._settings = settings

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """Explore for R rounds of S uniformly drawn calls; equal arguments give equal interactions."""
        return await asyncio.to_thread(self.explore_now, context, environment, seed)

    def explore_now(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """Explore without an event loop."""
        own = own_roles(environment)
        if own is not None:
            return own.explore(context, environment, self._settings, seed, guided=False)
        rng = random.Random(seed)
        tools = environment.tools(context.tools)
        given = _given(benchmark_of(environment).known_values())
        interactions: list[Interaction] = []
        for number in range(self._settings.rounds):
            sightings = Sightings()
            sightings.see_state(context.initial_state)
            with live_run(environment, context, number, self._settings.steps) as run:
                for _ in range(self._settings.steps):
                    tool = rng.choice(tools)
                    call = draw_uniform(tool, _values(sightings), given.get(tool.name, {}), rng)
                    observation = run.act(call).observation
                    if len(observation.text) < _MAX_OBSERVATION:
                        sightings.see_observation(call, observation)
                interactions += run.interactions
        return tuple(interactions)


@cache
def _given(values: tuple[KnownValue, ...]) -> dict[str, dict[str, tuple[Scalar, ...]]]:
    """Values given in the training split, by tool and parameter."""
    found: dict[str, dict[str, tuple[Scalar, ...]]] = {}
    for one in values:
        known = found.setdefault(one.tool, {})
        known[one.parameter] = (*known.get(one.parameter, ()), one.value)
    return found


def _values(sightings: Sightings) -> tuple[Scalar, ...]:
    """Each whole value once."""
    return tuple(dict.fromkeys(sighting.value for sighting in sightings if not sighting.piece))
