"""The chat abstractor that only words: rules cut the calls, and a model writes what a user would, and reads it back.

CoEvolve's abstractor (``agents.chat.abstractor``) reads all interactions of a context and writes its tasks in one
reply, which a small model cannot. Here (ours) each question is about the calls of one user turn (``agents.cuts``): what
would somebody type who wants exactly these? The words must have each value that no earlier answer gives, and name no
tool; what is wrong is said in the repair turn. A second question shows the words among more tools, without the calls.
Where it does not return them the words are misread: they are written once more, by a model that is told how they were
read. A draft whose last words are misread, too, is refused before verification.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field, JsonValue

from agents.chat.models import StructuredModel
from agents.chat.transcript import data, prompt
from agents.cuts import Drafting
from agents.said import around, own_tools, same_calls, shown_calls, shuffled, unsaid, words_of
from agents.settings import ExplorationSettings
from agents.spending import RoleRefused
from environments.base import Environment, ToolCall, ToolSpec
from environments.tool_lines import tool_line
from environments.turn_lines import FOUND, call_line
from memory.records import Draft, FailureContext, Interaction, Measured, Writing

_SHOWN = 6  # tools that the words are read among
_WORDINGS = 2  # of one cut
_CUTS = 2  # that are worded for each draft that is wanted
_LINE = 1000  # characters of one tool's documentation
_CALLED = 2000  # characters of the calls that are shown
_READ = 300  # characters of the other calls that are recorded


class UserMessage(BaseModel):
    """What the user types."""

    message: str = Field(description="the user's message")


class ReadCall(BaseModel):
    """One call of a tool."""

    tool: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict, description="arguments by parameter name")


class ReadCalls(BaseModel):
    """The calls that do what a message asks for."""

    calls: list[ReadCall]


@dataclass(frozen=True)
class WordingAbstractor:
    """Abstractor whose drafts' calls are cut by rules and worded by a chat model."""

    model: StructuredModel
    settings: ExplorationSettings

    async def abstract(
        self, context: FailureContext, interactions: Sequence[Interaction], environment: Environment, seed: int
    ) -> tuple[Draft, ...]:
        """Make at most ``drafts_per_context`` drafts of one user turn, from at most twice as many cuts.

        Raises RoleRefused when no cut can be put into words, and its subclasses EndpointFailed and BudgetReached where
        they come before the first draft.
        """
        rng = random.Random(seed)
        drafting = Drafting(context, interactions, environment, self.settings, rng)
        tools = own_tools(await asyncio.to_thread(environment.tools, context.tools))
        for _ in range(_CUTS * self.settings.drafts_per_context):
            task = await asyncio.to_thread(drafting.next)
            if task is None:
                break
            shown = await asyncio.to_thread(shown_calls, task, environment)
            try:
                drafting.add(*await self._worded(shown, tools, context, rng))
            except RoleRefused as refused:
                if type(refused) is not RoleRefused and not drafting.count:
                    raise
                if type(refused) is not RoleRefused:
                    break
        return drafting.drafts()

    async def _worded(
        self, calls: Sequence[ToolCall], tools: dict[str, ToolSpec], context: FailureContext, rng: random.Random
    ) -> tuple[str, Writing, Measured]:
        """Return words for the calls, what became of them, and what all questions cost."""
        called = shuffled([tools[name] for name in dict.fromkeys(call.name for call in calls)], rng)
        offered = shuffled(around(called, tuple(tools.values()), _SHOWN), rng)
        costs: list[Measured] = []
        words = misread = ""
        for _ in range(_WORDINGS):
            words, cost = await self._written(calls, called, _told(words, misread), tools, context)
            read, second = await self._read(words, offered, context)
            costs += [cost, second]
            exact = same_calls(_plain(read, calls, tools), _plain(calls, calls, tools))
            misread = "" if exact else _shown(read) or "no call"
            if exact:
                break
        drawn = len(costs) // 2
        writing = Writing(drawn=drawn, wordings=drawn, round_trip=exact, read=misread[:_READ], understood=exact)
        return words, writing, _total(costs)

    async def _written(
        self,
        calls: Sequence[ToolCall],
        called: Sequence[ToolSpec],
        before: str,
        tools: dict[str, ToolSpec],
        context: FailureContext,
    ) -> tuple[str, Measured]:
        system, user = prompt("word", tools=_lines(called), calls=data("action", _shown(calls)), before=before)
        reply, cost = await self.model.ask(
            UserMessage,
            system,
            user,
            lambda reply, final: unsaid(words_of(reply.message), calls, tools),
            subject=context.id,
            iteration=context.iteration,
        )
        return words_of(reply.message), cost

    async def _read(
        self, words: str, offered: Sequence[ToolSpec], context: FailureContext
    ) -> tuple[tuple[ToolCall, ...], Measured]:
        system, user = prompt("read", tools=_lines(offered), message=data("user", words))
        reply, cost = await self.model.ask(ReadCalls, system, user, subject=context.id, iteration=context.iteration)
        return tuple(ToolCall(name=one.tool, arguments=one.arguments) for one in reply.calls), cost


def _lines(tools: Sequence[ToolSpec]) -> str:
    return "\n".join(tool_line(tool)[:_LINE] for tool in tools)


def _shown(calls: Sequence[ToolCall]) -> str:
    return ", ".join(map(call_line, calls))[:_CALLED]


def _told(words: str, misread: str) -> str:
    """Return what the model is told of its last words; empty where there are none."""
    if not words:
        return ""
    return (
        f"\nAn assistant to which the user wrote {data('user', words)} made other calls: {data('action', misread)}\n"
        "Write it more plainly.\n"
    )


def _plain(
    calls: Sequence[ToolCall], wanted: Sequence[ToolCall], tools: Mapping[str, ToolSpec]
) -> tuple[ToolCall, ...]:
    """Return the calls without arguments that are the documented default, and ``FOUND`` wherever ``wanted`` has it."""
    found = []
    for place, call in enumerate(calls):
        arguments = dict(call.arguments)
        hidden = wanted[place].arguments if place < len(wanted) and wanted[place].name == call.name else {}
        for parameter in tools[call.name].parameters if call.name in tools else ():
            if parameter.default is not None and arguments.get(parameter.name) == parameter.default:
                del arguments[parameter.name]
        arguments |= {name: FOUND for name in arguments if hidden.get(name) == FOUND}
        found.append(call.model_copy(update={"arguments": arguments}))
    return tuple(found)


def _total(costs: Sequence[Measured]) -> Measured:
    return Measured(**{name: sum(getattr(one, name) for one in costs) for name in Measured.model_fields})
