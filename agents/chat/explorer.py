"""The chat explorer: a model acts step by step in live episodes around a failure context (CoEvolve, section 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

from pydantic import BaseModel, Field, JsonValue

from agents.chat.structured import StructuredModel
from agents.chat.transcript import (
    acting_tools,
    context_text,
    interactions_text,
    offered,
    preface_text,
    prompt,
    tools_text,
)
from agents.live import live_run
from agents.roles import RoleRefused
from agents.settings import ExplorationSettings
from environments.base import Environment, ToolSpec
from environments.verification.programs import program_tool
from memory.records import FailureContext, Interaction


class NextCall(BaseModel):
    """The next call to make in the environment, or the end of this round."""

    purpose: str = Field(description="one sentence: what this call shall find out")
    tool: str = Field(description="name of the tool to call; empty to end the round")
    arguments: dict[str, JsonValue] = Field(default_factory=dict, description="arguments by parameter name")


class ChatExplorer:
    """Explorer on a chat model. Environment calls run in a thread, off the event loop.

    An observation may contain instructions that the model follows; only calls of the context's tools reach the
    environment.
    """

    def __init__(self, model: StructuredModel, settings: ExplorationSettings) -> None:
        self._model = model
        self._settings = settings

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """Explore for R rounds of at most S steps; ``seed`` is unused, because the endpoint does the sampling.

        A reply that stays unusable, or a spent budget, ends the exploration; interactions so far are kept. Raises
        RoleRefused, or its subclass BudgetReached, when there are none.
        """
        tools = acting_tools(await asyncio.to_thread(environment.tools, context.tools))
        interactions: list[Interaction] = []
        for number in range(self._settings.rounds):
            try:
                await self._round(context, environment, tools, number, interactions)
            except RoleRefused:
                if not interactions:
                    raise
                break
        return tuple(interactions)

    async def _round(
        self,
        context: FailureContext,
        environment: Environment,
        tools: Sequence[ToolSpec],
        number: int,
        interactions: list[Interaction],
    ) -> None:
        """Act in one live episode and append to ``interactions``."""
        documentation, program = tools_text(tools), program_tool(tools)
        with ExitStack() as stack:
            run = await asyncio.to_thread(
                stack.enter_context, live_run(environment, context, number, self._settings.steps)
            )
            for step in range(self._settings.steps):
                messages = prompt(
                    "explore",
                    preface=preface_text(run.preface),
                    tools=documentation,
                    context=context_text(context),
                    history=interactions_text(interactions, program),
                    round=str(number + 1),
                    rounds=str(self._settings.rounds),
                    left=str(self._settings.steps - step),
                )
                reply, measured = await self._model.ask(
                    NextCall, messages.system, messages.user, subject=context.id, iteration=context.iteration
                )
                if not reply.tool:
                    return
                action = offered(reply.tool, reply.arguments, context.tools)
                interactions.append(await asyncio.to_thread(run.act, action, measured))
