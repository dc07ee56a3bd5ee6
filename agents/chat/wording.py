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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field, JsonValue

from agents.chat.models import StructuredModel
from agents.chat.sending import EndpointFailed
from agents.chat.transcript import data, prompt
from agents.cuts import Drafting, Unworded
from agents.said import around, own_tools, same_calls, shuffled, unsaid, words_of
from agents.settings import CUTS_PER_DRAFT, WORDINGS_PER_CUT, ExplorationSettings
from agents.spending import BudgetReached, RoleRefused, added
from environments.base import Environment, ToolCall, ToolSpec
from environments.tool_lines import tool_line
from environments.turn_lines import FOUND, call_line
from memory.records import Draft, FailureContext, Interaction, Measured, Writing

_SHOWN = 6  # tools that the words are read among
_LINE = 1000  # characters of one tool's documentation
_CALLED = 2000  # characters of the calls that are shown
_NAME = 80  # characters of a name that is none of the tools
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
class CallWords:
    """The two questions about the calls of a user turn: their words, and what words ask for.

    ``subject`` and ``iteration`` are those of ``StructuredModel.ask``.
    """

    model: StructuredModel
    subject: str
    iteration: int | None = None

    async def written(
        self,
        calls: Sequence[ToolCall],
        tools: Mapping[str, ToolSpec],
        misread: tuple[str, str] | None = None,
        aims: Sequence[str] = (),
    ) -> tuple[str, Measured]:
        """Return words for ``calls`` of ``tools``, which are shown in this order, and what the question cost.

        ``misread``: earlier words, and the calls that were read in them. ``aims``: what an explorer made them for.
        Raises RoleRefused like ``ask``.
        """
        before = f"\nThey were first made for this: {data('action', ' '.join(aims), _CALLED)}\n" if aims else ""
        if misread is not None:
            said, read = data("user", misread[0]), data("action", misread[1])
            before += (
                f"\nAn assistant to which the user wrote {said} made other calls: {read}\nWrite it more plainly.\n"
            )
        shown = data("action", _shown(calls))
        system, user = prompt("word", tools=_lines(tools.values()), calls=shown, before=before)
        reply, cost = await self.model.ask(
            UserMessage,
            system,
            user,
            lambda reply, final: unsaid(words_of(reply.message), calls, tools),
            subject=self.subject,
            iteration=self.iteration,
        )
        return words_of(reply.message), cost

    async def read(
        self, words: str, calls: Sequence[ToolCall], offered: Sequence[ToolSpec]
    ) -> tuple[str | None, Measured]:
        """Return None where the model reads ``calls`` in the words, else the calls that it reads, and the cost.

        It chooses from the tools ``offered``. Raises RoleRefused like ``ask``.
        """
        system, user = prompt("read", tools=_lines(offered), message=data("user", words))
        reply, cost = await self.model.ask(ReadCalls, system, user, subject=self.subject, iteration=self.iteration)
        tools = {tool.name: tool for tool in offered}
        named = (one.tool if one.tool in tools else ascii(one.tool)[:_NAME] for one in reply.calls)
        read = [ToolCall(name=name, arguments=one.arguments) for name, one in zip(named, reply.calls, strict=True)]
        same = same_calls(_plain(read, calls, tools), _plain(calls, calls, tools))
        return None if same else _shown(read) or "no call", cost


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
        words = CallWords(self.model, context.id, context.iteration)
        for _ in range(CUTS_PER_DRAFT * self.settings.drafts_per_context):
            path = await asyncio.to_thread(drafting.next)
            if path is None:
                break
            try:
                drafting.add(path, *await _worded(words, path, tools, rng))
            except (BudgetReached, EndpointFailed):  # no further question is of use
                if not drafting.count:
                    raise
                break
            except RoleRefused:
                continue
        return drafting.drafts()


async def _worded(
    words: CallWords, path: Unworded, tools: Mapping[str, ToolSpec], rng: random.Random
) -> tuple[str, Writing, Measured]:
    """Return words for the calls, what became of them, and what all questions cost."""
    calls, aims = path.shown, path.aims()
    called = shuffled([tools[name] for name in dict.fromkeys(call.name for call in calls)], rng)
    offered = shuffled(around(called, tuple(tools.values()), _SHOWN), rng)
    shown = {tool.name: tool for tool in called}
    cost, misread = Measured(), None
    for drawn in range(1, WORDINGS_PER_CUT + 1):
        text, writing_cost = await words.written(calls, shown, misread, aims)
        read, reading_cost = await words.read(text, calls, offered)
        cost = added(cost, added(writing_cost, reading_cost))
        writing = Writing(
            drawn=drawn, wordings=drawn, round_trip=read is None, read=(read or "")[:_READ], understood=read is None
        )
        if read is None:
            break
        misread = text, read
    return text, writing, cost


def _lines(tools: Iterable[ToolSpec]) -> str:
    return "\n".join(tool_line(tool)[:_LINE] for tool in tools)


def _shown(calls: Sequence[ToolCall]) -> str:
    return ", ".join(map(call_line, calls))[:_CALLED]


def _plain(
    calls: Sequence[ToolCall], wanted: Sequence[ToolCall], tools: Mapping[str, ToolSpec]
) -> tuple[ToolCall, ...]:
    """Return the calls with ``FOUND`` where ``wanted`` has it, and without optional arguments of no effect.

    These are empty, zero or the default; small models write them out.
    """
    found = []
    for place, call in enumerate(calls):
        arguments = dict(call.arguments)
        hidden = wanted[place].arguments if place < len(wanted) and wanted[place].name == call.name else {}
        for parameter in tools[call.name].parameters if call.name in tools else ():
            value = arguments.get(parameter.name)
            if not parameter.required and (not value or value == parameter.default):
                arguments.pop(parameter.name, None)
        arguments |= {name: FOUND for name in arguments if hidden.get(name) == FOUND}
        found.append(call.model_copy(update={"arguments": arguments}))
    return tuple(found)
