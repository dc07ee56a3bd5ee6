"""The guided explorer: acts around a failure context, overcomes what stands in the way, and prefers what is new.

CoEvolve (section 3) lets an LLM explore for several rounds of several steps; these rules are our stand-in. What one
round learned (which calls a tool needs first, which values it takes, what lies in view at the start) serves the next.
"""

from __future__ import annotations

import asyncio
import random

from agents.live import live_run
from agents.scripted.guided_round import GuidedRound
from agents.scripted.knowledge import Knowledge
from agents.scripted.training_values import training_values
from agents.settings import ExplorationSettings
from environments.base import Environment
from environments.settings import APPWORLD
from memory.records import FailureContext, Interaction


class GuidedExplorer:
    """Explorer that is led by the context: its tool, the tools worth reaching, its facts."""

    def __init__(self, settings: ExplorationSettings) -> None:
        self._settings = settings

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """R rounds of S steps around the context; equal arguments give equal interactions."""
        return await asyncio.to_thread(self.explore_now, context, environment, seed)

    def explore_now(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """The same without an event loop."""
        if context.environment == APPWORLD:
            from agents.scripted.appworld.explorer import explore_appworld

            return explore_appworld(context, environment, self._settings, seed, guided=True)
        knowledge = Knowledge(context, environment, training_values(context.environment), random.Random(seed))
        interactions: list[Interaction] = []
        for number in range(self._settings.rounds):
            with live_run(environment, context, number, self._settings.steps) as run:
                GuidedRound(run, knowledge, self._settings.steps).play()
                interactions += run.interactions
        return tuple(interactions)
