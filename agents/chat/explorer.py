"""The chat explorer: a model acts step by step in live episodes (CoEvolve, section 3.2).

It explores around a failure context, and without a guide from a start state, for D_0 and for the unguided baseline: in
the paper both are one model's work (section 3.1, table 12). Its rules are those of the paper's figure 9 in words of
our own.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from pydantic import ConfigDict, Field, JsonValue

from agents.chat.models import StructuredModel
from agents.chat.replies import WrittenAction
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
from agents.settings import ExplorationSettings
from agents.spending import RoleRefused
from environments.base import Environment
from environments.verification.programs import program_tool
from memory.records import FailureContext, Interaction, Unsignalled


class NextCall(WrittenAction):
    """The next call to make in the environment, or the end of this round."""

    # Asked for, because reasons come first; the paper's form has them in front of the action.
    model_config = ConfigDict(json_schema_extra={"required": ["purpose", "tool"]})

    purpose: str = Field(default_factory=str, description="one sentence: what this call shall find out")
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

        With ``exploration.independent`` a round is shown its own actions only, otherwise those of earlier rounds too.

        A reply that stays unusable, or a spent budget, ends the exploration; interactions so far are kept. Raises
        RoleRefused, or its subclass BudgetReached, when there are none.
        """
        tools = acting_tools(await asyncio.to_thread(environment.tools, context.tools))
        documentation, program = tools_text(tools), program_tool(tools)
        rounds, steps, independent = self._settings.rounds, self._settings.steps, self._settings.independent
        interactions: list[Interaction] = []
        for number in range(rounds):
            first = len(interactions) if independent else 0
            with ExitStack() as stack:
                run = await asyncio.to_thread(stack.enter_context, live_run(environment, context, number, steps))
                try:
                    for step in range(steps):
                        system, user = prompt(
                            "explore",
                            preface=preface_text(run.preface),
                            tools=documentation,
                            context=context_text(context),
                            scope="in this round" if independent else "in all rounds",
                            history=interactions_text(interactions[first:], program),
                            round=str(number + 1),
                            rounds=str(rounds),
                            exploration=_exploration(context),
                            left=str(steps - step),
                        )
                        reply, measured = await self._model.ask(
                            NextCall, system, user, subject=context.id, iteration=context.iteration
                        )
                        if not reply.tool:
                            break
                        action = offered(reply.tool, reply.arguments, context.tools)
                        interactions.append(await asyncio.to_thread(run.act, action, measured))
                except RoleRefused:
                    if not interactions:
                        raise
                    break
        return tuple(interactions)


def _exploration(context: FailureContext) -> str:
    """Name an exploration without a weakness: nothing else distinguishes the prompts of those from one start state.

    A cache of replies, and a model at temperature 0, would answer all of them alike.
    """
    unguided = context.kind in (None, Unsignalled.UNGUIDED, Unsignalled.COVERAGE)
    return f" of exploration {context.id[-8:]}, one of many from here" if unguided else ""
