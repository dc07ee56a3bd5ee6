"""The chat abstractor where a tool runs programs: a model writes a request and the code that fulfils it (ours).

The code is not recorded, it is written from what was recorded, and a replay in fresh episodes decides whether it does
what it says. It becomes one call a statement (``environments.programs.blocks``), so that verification can leave each
of them out.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, Field

from agents.chat.prompts import prompt
from agents.chat.structured import StructuredModel
from agents.chat.transcript import context_text, interactions_text, tools_text
from agents.cuts import successful_runs
from agents.live import context_task
from agents.settings import ExplorationSettings
from environments.base import ToolCall, ToolSpec
from environments.programs import blocks, called
from memory.ids import record_id
from memory.records import Difficulty, Draft, FailureContext, Interaction

_EVERYWHERE = frozenset({"supervisor", "api_docs"})
"""AppWorld's apps that every task uses: they do not count for its difficulty."""
_SIGN_IN_AND_ONE = 2


class ProposedProgram(BaseModel):
    """One task: what the user asks for, and code that does it."""

    request: str = Field(description="the user's request: goals and every value that the code holds, no API's name")
    code: str = Field(description="Python that fulfils the request from a fresh start, without comments")


class ProposedPrograms(BaseModel):
    """Tasks made of what was found out, the easy ones first."""

    tasks: list[ProposedProgram]


class ProgramAbstractor:
    """Writes drafts for ``program``, the tool that runs programs."""

    def __init__(self, model: StructuredModel, settings: ExplorationSettings, program: ToolSpec) -> None:
        self._model = model
        self._settings = settings
        self._program = program

    async def abstract(
        self, context: FailureContext, interactions: Sequence[Interaction], preface: str
    ) -> tuple[Draft, ...]:
        """At most ``drafts_per_context`` drafts of one user turn each.

        ``preface`` begins the prompt. Raises RoleRefused when no proposal can be used after one repair; BudgetReached
        is one of its kind.
        """
        messages = prompt(
            "abstract_program",
            preface=preface,
            tools=tools_text((self._program,)),
            context=context_text(context),
            interactions=interactions_text(interactions, self._program),
            most=str(self._settings.drafts_per_context),
            longest=str(self._settings.max_reference_calls),
        )
        reply, measured = await self._model.ask(
            ProposedPrograms,
            messages.system,
            messages.user,
            self._problem,
            subject=context.id,
            iteration=context.iteration,
        )
        usable = [task for task in reply.tasks if self._wrong(task) is None][: self._settings.drafts_per_context]
        drafts = [self._draft(task, place, context, interactions) for place, task in enumerate(usable)]
        # One reply proposes all drafts: the first carries its cost.
        return (drafts[0].model_copy(update={"measured": measured}), *drafts[1:])

    def _problem(self, reply: ProposedPrograms, final: bool) -> str | None:
        """The first wrong task; after the repair only whether all are."""
        wrong = [self._wrong(task) for task in reply.tasks]
        if final and None in wrong:
            return None
        return next((problem for problem in wrong if problem), None if wrong else "there is no task in it")

    def _wrong(self, task: ProposedProgram) -> str | None:
        """Why a task cannot be used, in a sentence; None when it can."""
        if not task.request.strip():
            return "a task has an empty request"
        try:
            count, tools = len(blocks(task.code)), called(task.code)
        except ValueError as error:
            return f"the code of {task.request[:80]!r} cannot be read: {error}"
        if not tools:
            return f"the code of {task.request[:80]!r} calls no API"
        longest = self._settings.max_reference_calls
        return (
            f"the code of {task.request[:80]!r} has {count} statements, not 1 to {longest}" if count > longest else None
        )

    def _draft(
        self, task: ProposedProgram, place: int, context: FailureContext, interactions: Sequence[Interaction]
    ) -> Draft:
        parameter = self._program.program
        assert parameter is not None
        reference = [ToolCall(name=self._program.name, arguments={parameter.name: one}) for one in blocks(task.code)]
        update = {
            "turns": (task.request.strip(),),
            "tools": (self._program.name,),
            "reference": (tuple(reference),),
        }
        return Draft(
            **context_task(context).model_copy(update=update).model_dump(),
            id=record_id("draft", context.id, place),
            context_id=context.id,
            parents=_sources(called(task.code), interactions),
            difficulty=_difficulty(called(task.code)),
        )


def _sources(tools: Sequence[str], interactions: Sequence[Interaction]) -> tuple[str, ...]:
    """The successful interactions that called a tool which the code calls; all of them where none did."""
    successful = [one for run in successful_runs(interactions) for one in run]
    like = [one for one in successful if any(call.name in tools for call in one.observation.calls)]
    return tuple(one.id for one in like or successful)


def _difficulty(tools: Sequence[str]) -> Difficulty:
    """By the tools that the code calls: of several apps hard, at most two of one app (to sign in and one more) easy."""
    counted = [name for name in tools if name.partition(".")[0] not in _EVERYWHERE]
    if len({name.partition(".")[0] for name in counted}) > 1:
        return Difficulty.HARD
    return Difficulty.EASY if len(counted) <= _SIGN_IN_AND_ONE else Difficulty.MEDIUM
