"""The chat abstractor: a model picks interactions that really ran and writes the user's query (CoEvolve, section 3).

It cannot invent calls: a draft's reference is made of recorded interactions, and its setup of the calls before them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, Field

from agents.chat.prompts import prompt
from agents.chat.structured import StructuredModel
from agents.chat.transcript import context_text, interactions_text, tools_text
from agents.cuts import call_of, setup_for, successful_runs
from agents.live import context_task
from agents.settings import ExplorationSettings
from environments.base import Environment, ObservationStatus, ToolCall
from memory.ids import record_id
from memory.records import Draft, FailureContext, Interaction


class ProposedTask(BaseModel):
    """One task: what a user would say, and the recorded calls that do it."""

    query: str = Field(description="the user's request: goals and every value that the calls need, no tool's name")
    calls: list[int] = Field(description="numbers of the interactions that do it, of one run, in their order")


class ProposedTasks(BaseModel):
    """Tasks made of recorded interactions."""

    tasks: list[ProposedTask]


class _Chosen(NamedTuple):
    query: str
    interactions: tuple[Interaction, ...]


class ChatAbstractor:
    """Abstractor on a chat model."""

    def __init__(self, model: StructuredModel, settings: ExplorationSettings) -> None:
        self._model = model
        self._settings = settings

    async def abstract(
        self, context: FailureContext, interactions: Sequence[Interaction], environment: Environment, seed: int
    ) -> tuple[Draft, ...]:
        """At most ``drafts_per_context`` drafts; without a successful interaction none, and no request.

        Raises RoleRefused when no proposal can be used after one repair.
        """
        if not successful_runs(interactions):
            return ()
        messages = prompt(
            "abstract",
            tools=tools_text(await asyncio.to_thread(environment.tools, context.tools)),
            context=context_text(context),
            interactions=interactions_text(interactions),
            most=str(self._settings.drafts_per_context),
            longest=str(self._settings.max_reference_calls),
        )
        reply, measured = await self._model.ask(
            ProposedTasks,
            messages.system,
            messages.user,
            lambda reply, final: self._problem(reply, interactions, final),
        )
        chosen = [
            _Chosen(task.query.strip(), tuple(interactions[number] for number in sorted(task.calls)))
            for task in reply.tasks
            if self._wrong(task, interactions) is None
        ]
        drafts = await asyncio.to_thread(
            self._drafts, chosen[: self._settings.drafts_per_context], context, interactions, environment
        )
        # One reply proposes all drafts: the first carries its cost.
        return (drafts[0].model_copy(update={"measured": measured}), *drafts[1:])

    def _problem(self, reply: ProposedTasks, interactions: Sequence[Interaction], final: bool) -> str | None:
        """The first wrong task; after the repair only whether all are."""
        wrong = [self._wrong(task, interactions) for task in reply.tasks]
        if final and None in wrong:
            return None
        return next((problem for problem in wrong if problem), None if wrong else "there is no task in it")

    def _wrong(self, task: ProposedTask, interactions: Sequence[Interaction]) -> str | None:
        if not task.query.strip():
            return "a task has an empty query"
        if not 1 <= len(task.calls) <= self._settings.max_reference_calls or len(set(task.calls)) < len(task.calls):
            return f"a task needs 1 to {self._settings.max_reference_calls} different interactions, not {task.calls}"
        missing = [number for number in task.calls if not 0 <= number < len(interactions)]
        if missing:
            return f"there is no interaction {missing[0]}"
        chosen = [interactions[number] for number in task.calls]
        if len({interaction.run for interaction in chosen}) > 1:
            return f"the interactions {task.calls} are not of one run"
        refused = [number for number in task.calls if not _succeeded(interactions[number])]
        return f"interaction {refused[0]} did not succeed" if refused else None

    def _drafts(
        self,
        chosen: Sequence[_Chosen],
        context: FailureContext,
        interactions: Sequence[Interaction],
        environment: Environment,
    ) -> tuple[Draft, ...]:
        runs = {run[0].run: run for run in successful_runs(interactions)}
        drafts = []
        for position, (query, piece) in enumerate(chosen):
            before = [one for one in runs[piece[0].run] if one.position < piece[0].position]
            setup = (*context.setup, *setup_for(before, piece, context, environment))
            task = context_task(context).model_copy(
                update={"turns": (query,), "setup": setup, "reference": (tuple(call_of(one) for one in piece),)}
            )
            drafts.append(
                Draft(
                    **task.model_dump(),
                    id=record_id("draft", context.id, position),
                    context_id=context.id,
                    parents=tuple(one.id for one in piece),
                )
            )
        return tuple(drafts)


def _succeeded(interaction: Interaction) -> bool:
    return isinstance(interaction.action, ToolCall) and interaction.observation.status is ObservationStatus.OK
