"""The chat abstractor: a model picks interactions that really ran and writes the user's turns (CoEvolve, section 3).

It cannot invent calls: a draft's reference consists of recorded interactions, and its setup of the calls before them.
It names interactions by their numbers (ours) or writes their calls out, as in the paper, whose format is not published:
blocks of labelled lines are read, with description, query and action sequence. The recorded grade is computed from the
calls (ours).

Where a tool runs programs (``ProgramAbstractor``, ours), the model writes a request and the code that fulfils it, which
a replay in fresh episodes has to show. The code becomes one call per statement
(``environments.verification.programs.blocks``), so that verification can leave each one out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from pydantic import AliasChoices, BaseModel, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from agents.chat.models import StructuredModel
from agents.chat.replies import NextAction, WrittenReply, labelled, listed_calls
from agents.chat.transcript import context_text, interactions_text, preface_text, prompt, tools_text
from agents.evidence import call_of, context_task, executed, preface_of, successful_runs
from agents.scripted.abstractor import dependent, setup_for
from agents.settings import ExplorationSettings
from environments.base import Environment, TaskSpec, ToolCall, ToolSpec
from environments.registry import benchmark_of
from environments.verification.programs import blocks, called, program_tool
from memory.jsonl import record_id
from memory.records import Difficulty, Draft, FailureContext, Interaction, Measured

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


class _Program(NamedTuple):
    """A usable proposal: a request, the statements that fulfil it, and the tools that they call."""

    request: str
    calls: tuple[str, ...]
    tools: tuple[str, ...]


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
        return await _drafts(
            self.model,
            self.settings,
            context,
            ProposedPrograms,
            self._read,
            lambda one: self._made(one, context, interactions),
            "abstract_program",
            preface=preface,
            tools=tools_text((self.program,)),
            interactions=interactions_text(interactions, self.program),
            order=_LONG_FIRST if self.settings.order == "long_first" else _EASY_PROGRAMS_FIRST,
        )

    def _read(self, task: ProposedProgram) -> _Program | str:
        if not task.request.strip():
            return "a task has an empty request"
        code = f"the code of {task.request[:80]!r}"
        try:
            statements, tools = tuple(blocks(task.code)), tuple(called(task.code))
        except ValueError as error:
            return f"{code} cannot be read: {error}"
        if not tools:
            return f"{code} calls no API"
        shortest, longest = self.settings.min_reference_calls, self.settings.max_reference_calls
        if not shortest <= len(statements) <= longest:
            return f"{code} has {len(statements)} statements, not {shortest} to {longest}"
        return _Program(task.request.strip(), statements, tools)

    def _made(self, one: _Program, context: FailureContext, interactions: Sequence[Interaction]) -> _Made:
        """Make the task, which descends from the successful interactions that called a tool of the code, else from all.

        Several apps are hard, one or two tools of one app easy; apps in ``everyday`` do not count.
        """
        parameter = self.program.program
        assert parameter is not None
        reference = tuple(ToolCall(name=self.program.name, arguments={parameter.name: each}) for each in one.calls)
        task = context_task(context).model_copy(
            update={"turns": (one.request,), "tools": (self.program.name,), "reference": (reference,)}
        )
        successful = [each for run in successful_runs(interactions) for each in run]
        like = [each for each in successful if any(call.name in one.tools for call in each.observation.calls)]
        apps = [name.partition(".")[0] for name in one.tools if name.partition(".")[0] not in self.everyday]
        if len(set(apps)) > 1:
            return task, like or successful, Difficulty.HARD
        return task, like or successful, Difficulty.EASY if len(apps) <= _SIGN_IN_AND_ONE else Difficulty.MEDIUM


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
    """A usable proposal: a request and its interactions for each turn, and the interactions of all turns."""

    queries: tuple[str, ...]
    turns: tuple[tuple[Interaction, ...], ...]
    calls: tuple[Interaction, ...]


Usable = TypeVar("Usable", _Program, _Chosen)


_Made = tuple[TaskSpec, Sequence[Interaction], Difficulty]
"""A draft's task, the interactions that it is made of, and its grade."""


async def _drafts(
    model: StructuredModel,
    settings: ExplorationSettings,
    context: FailureContext,
    schema: type[ProposedPrograms] | type[ProposedTasks],
    read: Callable[[Any], Usable | str],
    made: Callable[[Usable], _Made],
    name: str,
    **values: str,
) -> tuple[Draft, ...]:
    """Ask for tasks by the prompt ``name``; return drafts of the usable ones, as many as are wanted.

    ``read`` returns a usable proposal, or a sentence that says why a task is not. The first such sentence is the
    problem of a reply; after the repair only where no task is usable. ``made``, in a thread, makes the task of one.
    """
    system, user = prompt(
        name,
        context=context_text(context),
        most=str(settings.drafts_per_context),
        shortest=str(settings.min_reference_calls),
        longest=str(settings.max_reference_calls),
        **values,
    )

    def problem(reply: ProposedPrograms | ProposedTasks, final: bool) -> str | None:
        found = [read(task) for task in reply.tasks]
        wrong = [one for one in found if isinstance(one, str)]
        if final and len(wrong) < len(found):
            return None
        return next(iter(wrong), None if found else "there is no task in it")

    reply, measured = await model.ask(schema, system, user, problem, subject=context.id, iteration=context.iteration)
    usable = [one for task in reply.tasks if not isinstance(one := read(task), str)]
    if settings.order == "long_first":
        usable.sort(key=lambda one: len(one.calls), reverse=True)
    drafts: list[Draft] = []
    for place, one in enumerate(usable[: settings.drafts_per_context]):
        task, sources, difficulty = await asyncio.to_thread(made, one)
        draft = Draft(
            **task.model_dump(),
            id=record_id("draft", context.id, place),
            context_id=context.id,
            parents=tuple(each.id for each in sources),
            difficulty=difficulty,
            measured=Measured() if drafts else measured,  # one reply proposes all: the first draft carries its cost
        )
        drafts.append(draft)
    return tuple(drafts)


@dataclass(frozen=True)
class ChatAbstractor:
    """Abstractor on a chat model."""

    model: StructuredModel
    settings: ExplorationSettings

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
            writer = ProgramAbstractor(self.model, self.settings, program, benchmark_of(environment).everyday_groups)
            return await writer.abstract(context, interactions, preface)
        if longest < self.settings.min_reference_calls:
            return ()
        runs = {run[0].run: run for run in successful_runs(interactions)}
        return await _drafts(
            self.model,
            self.settings,
            context,
            ProposedTasks,
            lambda task: self._chosen(task, interactions),
            lambda one: _made(one, runs[one.calls[0].run], context, environment),
            "abstract",
            preface=preface,
            tools=tools_text(tools),
            interactions=interactions_text(interactions),
            order=_LONG_FIRST if self.settings.order == "long_first" else _EASY_FIRST,
            turns=str(MOST_TURNS),
        )

    def _chosen(self, task: ProposedTask, interactions: Sequence[Interaction]) -> _Chosen | str:
        numbers = _numbers(task, interactions)
        if isinstance(numbers, str):
            return numbers
        calls = [number for turn in numbers for number in turn]
        shortest, longest = self.settings.min_reference_calls, self.settings.max_reference_calls
        if not 1 <= len(task.turns) <= MOST_TURNS:
            return f"a task needs 1 to {MOST_TURNS} turns, not {len(task.turns)}"
        if not all(turn.query.strip() and turn.calls for turn in task.turns):
            return "a turn has an empty query or no calls"
        if not shortest <= len(calls) <= longest or len(set(calls)) < len(calls):
            return f"a task needs {shortest} to {longest} different interactions, not {calls[:20]}"
        if wrong := _wrong_calls(calls, interactions):
            return wrong
        turns = tuple(tuple(interactions[number] for number in turn) for turn in numbers)
        queries = tuple(turn.query.strip() for turn in task.turns)
        return _Chosen(queries, turns, tuple(interactions[number] for number in calls))


def _made(one: _Chosen, run: Sequence[Interaction], context: FailureContext, environment: Environment) -> _Made:
    before = [earlier for earlier in run if earlier.position < one.calls[0].position]
    setup = setup_for(before, one.calls, context, environment)
    reference = tuple(tuple(call_of(each) for each in turn) for turn in one.turns)
    task = context_task(context, turns=len(one.turns)).model_copy(
        update={"turns": one.queries, "setup": (*context.setup, *setup), "reference": reference}
    )
    if len(one.calls) == 1:
        return task, one.calls, Difficulty.EASY
    hard = len(one.turns) > 1 or dependent(one.calls, setup, context, environment)
    return task, one.calls, Difficulty.HARD if hard else Difficulty.MEDIUM


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
