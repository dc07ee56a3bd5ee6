"""The chat abstractor: a model picks interactions that really ran and writes the user's turns (CoEvolve, section 3).

It cannot invent calls: a draft's reference consists of recorded interactions, and its setup of the calls before them.
It is asked for tasks of as many calls as possible, longest first (the paper's figure 12), or for tasks of graded
difficulty, easy ones first (ours); the recorded grade is computed from the calls (ours). It names interactions by
their numbers (ours) or writes their calls out, as in the paper, whose format is not published: blocks of labelled lines
are read, with description, query and action sequence.

Where a tool runs programs (``ProgramAbstractor``, ours), the model writes a request and the code that fulfils it. The
code is written from what was recorded but was not recorded itself: a replay in fresh episodes decides whether it works.
It becomes one call per statement (``environments.verification.programs.blocks``), so that verification can leave each
one out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from pydantic import AliasChoices, BaseModel, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from agents.chat.replies import NextAction, WrittenReply, labelled, listed_calls
from agents.chat.structured import StructuredModel
from agents.chat.transcript import context_text, interactions_text, preface_text, prompt, tools_text
from agents.evidence import call_of, context_task, executed, preface_of, successful_runs
from agents.scripted.abstractor import dependent, setup_for
from agents.settings import ExplorationSettings
from environments.base import Environment, ToolCall, ToolSpec
from environments.registry import benchmark_of
from environments.verification.programs import blocks, called, program_tool
from memory.jsonl import record_id
from memory.records import Difficulty, Draft, FailureContext, Interaction

_SIGN_IN_AND_ONE = 2
MOST_TURNS = 2
"""Most user turns in a draft (ours)."""


_LONG_FIRST = (
    "Make every task as long as what was found out carries: several goals of one user that belong together are one "
    "task, not one each, and no call is there that they do not need. Give the longest tasks first."
)
_EASY_FIRST = """Tasks have grades of difficulty:
- easy: one call, whose values the request states;
- medium: several calls that do not need each other;
- hard: a later call takes a value from what an earlier one told, or works only because of what an earlier one did; or \
the task has several turns that build on each other.
Spread the tasks over the grades as far as the interactions carry it, easy ones first."""
_EASY_PROGRAMS_FIRST = """Tasks have grades of difficulty:
- easy: one app, one thing looked up or done;
- medium: one app, where what is done depends on something that has to be looked up first;
- hard: several apps, or values that have to be combined.
Spread the tasks over the grades as far as what was found out carries it, easy ones first."""


class ProposedProgram(BaseModel):
    """One task: what the user asks for, and code that does it."""

    request: str = Field(description="the user's request: goals and every value that the code holds, no API's name")
    code: str = Field(description="Python that fulfils the request from a fresh start, without comments")


class ProposedPrograms(BaseModel):
    """Tasks made of what was found out, in the order that is asked for."""

    tasks: list[ProposedProgram]


def _first_problem(read: Sequence[object], final: bool) -> str | None:
    """Return the problem of the first unusable task, a text in ``read``; after the repair only if all are unusable."""
    problems = [one for one in read if isinstance(one, str)]
    if final and len(problems) < len(read):
        return None
    return next(iter(problems), None if read else "there is no task in it")


@dataclass(frozen=True)
class ProgramAbstractor:
    """Writes drafts whose references are programs for ``program``, the tool that runs them.

    Calls of the groups in ``everyday`` do not make a task harder.
    """

    model: StructuredModel
    settings: ExplorationSettings
    program: ToolSpec
    everyday: Collection[str]

    async def abstract(
        self, context: FailureContext, interactions: Sequence[Interaction], preface: str
    ) -> tuple[Draft, ...]:
        """Write at most ``drafts_per_context`` drafts of one user turn each.

        ``preface`` begins the prompt. Raises RoleRefused, or its subclass BudgetReached, when no proposal is usable
        after one repair.
        """
        system, user = prompt(
            "abstract_program",
            preface=preface,
            tools=tools_text((self.program,)),
            context=context_text(context),
            interactions=interactions_text(interactions, self.program),
            order=_LONG_FIRST if self.settings.order == "long_first" else _EASY_PROGRAMS_FIRST,
            most=str(self.settings.drafts_per_context),
            shortest=str(self.settings.min_reference_calls),
            longest=str(self.settings.max_reference_calls),
        )
        reply, measured = await self.model.ask(
            ProposedPrograms,
            system,
            user,
            lambda reply, final: _first_problem([self._wrong(task) for task in reply.tasks], final),
            subject=context.id,
            iteration=context.iteration,
        )
        usable = [task for task in reply.tasks if self._wrong(task) is None]
        if self.settings.order == "long_first":
            usable.sort(key=lambda task: len(blocks(task.code)), reverse=True)
        del usable[self.settings.drafts_per_context :]
        drafts = [self._draft(task, place, context, interactions) for place, task in enumerate(usable)]
        # One reply proposes all drafts, so the first draft carries its cost.
        return (drafts[0].model_copy(update={"measured": measured}), *drafts[1:])

    def _wrong(self, task: ProposedProgram) -> str | None:
        """Say in a sentence why a task is unusable; None if it is usable."""
        if not task.request.strip():
            return "a task has an empty request"
        try:
            count, tools = len(blocks(task.code)), called(task.code)
        except ValueError as error:
            return f"the code of {task.request[:80]!r} cannot be read: {error}"
        if not tools:
            return f"the code of {task.request[:80]!r} calls no API"
        shortest, longest = self.settings.min_reference_calls, self.settings.max_reference_calls
        if shortest <= count <= longest:
            return None
        return f"the code of {task.request[:80]!r} has {count} statements, not {shortest} to {longest}"

    def _draft(
        self, task: ProposedProgram, place: int, context: FailureContext, interactions: Sequence[Interaction]
    ) -> Draft:
        parameter = self.program.program
        assert parameter is not None
        reference = [ToolCall(name=self.program.name, arguments={parameter.name: one}) for one in blocks(task.code)]
        update = {
            "turns": (task.request.strip(),),
            "tools": (self.program.name,),
            "reference": (tuple(reference),),
        }
        return Draft(
            **context_task(context).model_copy(update=update).model_dump(),
            id=record_id("draft", context.id, place),
            context_id=context.id,
            parents=_sources(called(task.code), interactions),
            difficulty=_difficulty_of_tools(called(task.code), self.everyday),
        )


def _sources(tools: Sequence[str], interactions: Sequence[Interaction]) -> tuple[str, ...]:
    """Return the successful interactions that called a tool of the code; all of them where none did."""
    successful = [one for run in successful_runs(interactions) for one in run]
    like = [one for one in successful if any(call.name in tools for call in one.observation.calls)]
    return tuple(one.id for one in like or successful)


def _difficulty_of_tools(tools: Sequence[str], everyday: Collection[str]) -> Difficulty:
    """Grade by the tools that the code calls: several apps are hard, one or two tools of one app easy.

    Apps in ``everyday`` do not count.
    """
    counted = [name for name in tools if name.partition(".")[0] not in everyday]
    if len({name.partition(".")[0] for name in counted}) > 1:
        return Difficulty.HARD
    return Difficulty.EASY if len(counted) <= _SIGN_IN_AND_ONE else Difficulty.MEDIUM


class ProposedTurn(BaseModel):
    """One user turn: what the user says, and the recorded calls that do it."""

    query: str = Field(description="the user's request: goals and every value that the calls need, no tool's name")
    calls: list[int | SkipJsonSchema[NextAction]] = Field(
        validation_alias=AliasChoices("calls", "action_sequence", "actions"),
        description="numbers of the interactions that do it, in their order",
    )


class ProposedTask(BaseModel):
    """One task: its user turns in order, all calls of one run."""

    turns: list[ProposedTurn] = Field(description="one turn, or several that build on each other")

    @model_validator(mode="before")
    @classmethod
    def _of_one_query(cls, value: object) -> object:
        return {"turns": [value]} if isinstance(value, dict) and "query" in value else value


class ProposedTasks(WrittenReply):
    """Tasks made of recorded interactions, in the order that is asked for."""

    tasks: list[ProposedTask]

    @classmethod
    def from_text(cls, text: str) -> object:
        """Read blocks of lines ``Query: ...`` and ``Action sequence: ...``, calls in lines or as a list (ours)."""
        tasks: list[dict[str, object]] = []
        for label, said in labelled(text, ("description", "query", "action sequence", "actions", "action")):
            if label == "query":
                tasks.append({"query": said})
            elif label != "description" and tasks:
                tasks[-1]["calls"] = listed_calls(said)
        return tasks or None

    @model_validator(mode="before")
    @classmethod
    def _of_a_list(cls, value: object) -> object:
        if isinstance(value, dict) and "tasks" not in value and value.keys() & {"turns", "query"}:
            value = [value]
        return {"tasks": value} if isinstance(value, list) else value


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
        """Write at most ``drafts_per_context`` drafts; none, without a request, where the interactions carry none.

        That is where none succeeded, or no run has as many successful ones as the shortest reference.

        Raises RoleRefused, or its subclass BudgetReached, when no proposal is usable after one repair.
        """
        longest = max(map(len, successful_runs(interactions)), default=0)
        if longest == 0:
            return ()
        tools = await asyncio.to_thread(environment.tools, context.tools)
        preface = preface_text(await asyncio.to_thread(preface_of, environment, context))
        program = program_tool(tools)
        if program is not None:
            writer = ProgramAbstractor(self._model, self._settings, program, benchmark_of(environment).everyday_groups)
            return await writer.abstract(context, interactions, preface)
        if longest < self._settings.min_reference_calls:
            return ()
        system, user = prompt(
            "abstract",
            preface=preface,
            tools=tools_text(tools),
            context=context_text(context),
            interactions=interactions_text(interactions),
            order=_LONG_FIRST if self._settings.order == "long_first" else _EASY_FIRST,
            most=str(self._settings.drafts_per_context),
            shortest=str(self._settings.min_reference_calls),
            longest=str(self._settings.max_reference_calls),
            turns=str(MOST_TURNS),
        )
        reply, measured = await self._model.ask(
            ProposedTasks,
            system,
            user,
            lambda reply, final: _first_problem([self._chosen(task, interactions) for task in reply.tasks], final),
            subject=context.id,
            iteration=context.iteration,
        )
        read = [self._chosen(task, interactions) for task in reply.tasks]
        chosen = [one for one in read if isinstance(one, _Chosen)]
        if self._settings.order == "long_first":
            chosen.sort(key=lambda one: len(one.interactions()), reverse=True)
        drafts = await asyncio.to_thread(
            self._drafts, chosen[: self._settings.drafts_per_context], context, interactions, environment
        )
        # One reply proposes all drafts, so the first draft carries its cost.
        return (drafts[0].model_copy(update={"measured": measured}), *drafts[1:])

    def _chosen(self, task: ProposedTask, interactions: Sequence[Interaction]) -> _Chosen | str:
        """Return a usable proposal; of another one a sentence that says why it is not."""
        numbers = _numbers(task, interactions)
        if isinstance(numbers, str):
            return numbers
        calls = [number for turn in numbers for number in turn]
        wrong = self._wrong_form(task, calls) or _wrong_calls(calls, interactions)
        turns = (tuple(interactions[number] for number in turn) for turn in numbers)
        return wrong or _Chosen(tuple(turn.query.strip() for turn in task.turns), tuple(turns))

    def _wrong_form(self, task: ProposedTask, calls: Sequence[int]) -> str | None:
        settings, most = self._settings, MOST_TURNS
        shortest, longest = settings.min_reference_calls, settings.max_reference_calls
        if not 1 <= len(task.turns) <= most:
            return f"a task needs 1 to {most} turns, not {len(task.turns)}"
        if not all(turn.query.strip() and turn.calls for turn in task.turns):
            return "a turn has an empty query or no calls"
        if not shortest <= len(calls) <= longest or len(set(calls)) < len(calls):
            return f"a task needs {shortest} to {longest} different interactions, not {calls[:20]}"
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


def _numbers(task: ProposedTask, interactions: Sequence[Interaction]) -> list[list[int]] | str:
    """Return the numbers of each turn's interactions; a sentence where a call is written out that no run made.

    Calls that are written out are the first ones of a run that succeeded in their order.
    """
    called = [call for turn in task.turns for call in turn.calls]
    if all(isinstance(call, int) for call in called):
        return [sorted(call for call in turn.calls if isinstance(call, int)) for turn in task.turns]
    wanted = [one if isinstance(one, int) else ToolCall(name=one.tool, arguments=one.arguments) for one in called]
    number_of = {one.id: number for number, one in enumerate(interactions)}
    furthest = 0
    for run in successful_runs(interactions):
        rest = ((number_of[one.id], call_of(one)) for one in run)
        found = (next((number for number, made in rest if want in (number, made)), None) for want in wanted)
        numbers = [number for number in found if number is not None]  # the rest is used up once one is missing
        if len(numbers) == len(wanted):
            left = iter(numbers)
            return [list(islice(left, len(turn.calls))) for turn in task.turns]
        furthest = max(furthest, len(numbers))
    missing = wanted[furthest]
    shown = missing if isinstance(missing, int) else executed(missing)
    return f"no run has these calls with success in this order; {shown} is missing"


def _wrong_calls(calls: Sequence[int], interactions: Sequence[Interaction]) -> str | None:
    missing = [number for number in calls if not 0 <= number < len(interactions)]
    if missing:
        return f"there is no interaction {missing[0]}"
    if len({interactions[number].run for number in calls}) > 1:
        return f"the interactions {calls} are not of one run"
    if list(calls) != sorted(calls):
        return f"the turns do not follow the order of the run: {calls}"
    successful = {one.id for run in successful_runs(interactions) for one in run}
    refused = [number for number in calls if interactions[number].id not in successful]
    return f"interaction {refused[0]} did not succeed" if refused else None


def _difficulty(
    chosen: _Chosen, setup: Sequence[ToolCall], context: FailureContext, environment: Environment
) -> Difficulty:
    piece = chosen.interactions()
    if len(piece) == 1:
        return Difficulty.EASY
    if len(chosen.turns) > 1 or dependent(piece, setup, context, environment):
        return Difficulty.HARD
    return Difficulty.MEDIUM
