"""The chat abstractor: a model picks interactions that really ran and writes the user's turns (CoEvolve, section 3).

It cannot invent calls: a draft's reference is made of recorded interactions, and its setup of the calls before them.
It is asked for tasks of graded difficulty; the grade that is recorded is computed from the calls (our choice). Where a
tool runs programs, references are programs instead (``program_abstractor``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, Field

from agents.chat.program_abstractor import ProgramAbstractor
from agents.chat.prompts import prompt
from agents.chat.structured import StructuredModel
from agents.chat.transcript import context_text, interactions_text, preface_text, tools_text
from agents.cuts import call_of, dependent, setup_for, successful_runs
from agents.live import context_task, preface_of
from agents.settings import ExplorationSettings
from environments.base import Environment, ObservationStatus, ToolCall
from environments.programs import program_tool
from memory.ids import record_id
from memory.records import Difficulty, Draft, FailureContext, Interaction


class ProposedTurn(BaseModel):
    """One user turn: what the user says, and the recorded calls that do it."""

    query: str = Field(description="the user's request: goals and every value that the calls need, no tool's name")
    calls: list[int] = Field(description="numbers of the interactions that do it, in their order")


class ProposedTask(BaseModel):
    """One task: its user turns in order, all calls of one run."""

    turns: list[ProposedTurn] = Field(description="one turn, or several that build on each other")


class ProposedTasks(BaseModel):
    """Tasks made of recorded interactions, the easy ones first."""

    tasks: list[ProposedTask]


class _Chosen(NamedTuple):
    """A usable proposal: a request and its interactions for each turn."""

    queries: tuple[str, ...]
    turns: tuple[tuple[Interaction, ...], ...]

    def interactions(self) -> tuple[Interaction, ...]:
        return tuple(one for turn in self.turns for one in turn)


class ChatAbstractor:
    """Abstractor on a chat model."""

    def __init__(self, model: StructuredModel, settings: ExplorationSettings) -> None:
        self._model = model
        self._settings = settings

    async def abstract(
        self, context: FailureContext, interactions: Sequence[Interaction], environment: Environment, seed: int
    ) -> tuple[Draft, ...]:
        """At most ``drafts_per_context`` drafts; without a successful interaction none, and no request.

        Raises RoleRefused when no proposal can be used after one repair; BudgetReached is one of its kind.
        """
        if not successful_runs(interactions):
            return ()
        tools = await asyncio.to_thread(environment.tools, context.tools)
        preface = preface_text(await asyncio.to_thread(preface_of, environment, context))
        program = program_tool(tools)
        if program is not None:
            writer = ProgramAbstractor(self._model, self._settings, program)
            return await writer.abstract(context, interactions, preface)
        messages = prompt(
            "abstract",
            preface=preface,
            tools=tools_text(tools),
            context=context_text(context),
            interactions=interactions_text(interactions),
            most=str(self._settings.drafts_per_context),
            longest=str(self._settings.max_reference_calls),
            turns=str(self._settings.max_turns),
        )
        reply, measured = await self._model.ask(
            ProposedTasks,
            messages.system,
            messages.user,
            lambda reply, final: self._problem(reply, interactions, final),
            subject=context.id,
            iteration=context.iteration,
        )
        chosen = [_chosen(task, interactions) for task in reply.tasks if self._wrong(task, interactions) is None]
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
        """Why a task cannot be used, in a sentence; None when it can."""
        calls = [number for turn in task.turns for number in sorted(turn.calls)]
        return self._wrong_form(task, calls) or _wrong_calls(calls, interactions)

    def _wrong_form(self, task: ProposedTask, calls: Sequence[int]) -> str | None:
        most, longest = self._settings.max_turns, self._settings.max_reference_calls
        if not 1 <= len(task.turns) <= most:
            return f"a task needs 1 to {most} turns, not {len(task.turns)}"
        if not all(turn.query.strip() and turn.calls for turn in task.turns):
            return "a turn has an empty query or no calls"
        if len(calls) > longest or len(set(calls)) < len(calls):
            return f"a task needs 1 to {longest} different interactions, not {calls[:20]}"
        return None

    def _drafts(
        self,
        chosen: Sequence[_Chosen],
        context: FailureContext,
        interactions: Sequence[Interaction],
        environment: Environment,
    ) -> tuple[Draft, ...]:
        runs = {run[0].run: run for run in successful_runs(interactions)}
        drafts = []
        for position, one in enumerate(chosen):
            piece = one.interactions()
            before = [earlier for earlier in runs[piece[0].run] if earlier.position < piece[0].position]
            setup = setup_for(before, piece, context, environment)
            task = context_task(context, turns=len(one.turns)).model_copy(
                update={
                    "turns": one.queries,
                    "setup": (*context.setup, *setup),
                    "reference": tuple(tuple(call_of(each) for each in turn) for turn in one.turns),
                }
            )
            drafts.append(
                Draft(
                    **task.model_dump(),
                    id=record_id("draft", context.id, position),
                    context_id=context.id,
                    parents=tuple(each.id for each in piece),
                    difficulty=_difficulty(one, setup, context, environment),
                )
            )
        return tuple(drafts)


def _wrong_calls(calls: Sequence[int], interactions: Sequence[Interaction]) -> str | None:
    missing = [number for number in calls if not 0 <= number < len(interactions)]
    if missing:
        return f"there is no interaction {missing[0]}"
    if len({interactions[number].run for number in calls}) > 1:
        return f"the interactions {calls} are not of one run"
    if list(calls) != sorted(calls):
        return f"the turns do not follow the order of the run: {calls}"
    refused = [number for number in calls if not _succeeded(interactions[number])]
    return f"interaction {refused[0]} did not succeed" if refused else None


def _chosen(task: ProposedTask, interactions: Sequence[Interaction]) -> _Chosen:
    turns = (tuple(interactions[number] for number in sorted(turn.calls)) for turn in task.turns)
    return _Chosen(tuple(turn.query.strip() for turn in task.turns), tuple(turns))


def _difficulty(
    chosen: _Chosen, setup: Sequence[ToolCall], context: FailureContext, environment: Environment
) -> Difficulty:
    piece = chosen.interactions()
    if len(piece) == 1:
        return Difficulty.EASY
    if len(chosen.turns) > 1 or dependent(piece, setup, context, environment):
        return Difficulty.HARD
    return Difficulty.MEDIUM


def _succeeded(interaction: Interaction) -> bool:
    return isinstance(interaction.action, ToolCall) and interaction.observation.status is ObservationStatus.OK
