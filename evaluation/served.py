"""Attempts items with a model that an OpenAI-compatible endpoint serves: text and native tool calls, not token ids.

An attempt follows the rules of a rollout (``training.rollout.episodes``): the same limits, the same stop reasons, and
the environment's own outcome. What differs is the form. A tool is called natively, through the request's ``tools``.
Where the only tool runs programs, its blocks of code are written as text, and no tool is offered (the rule of
``training.rendering.tool_calls``). A reply without a call ends the user turn, and so does a refusal.

What a model writes is never an infrastructure error: arguments that are not a JSON object, a reply that was cut off or
that is too long, and a call that the endpoint passed on as text are malformed calls, answered and counted. Messages
that do not fit the model's context, or that the endpoint's moderation refuses, end the attempt, which counts. An
endpoint that gives no answer is a fault: the attempt is masked, and a resumed evaluation tries it again.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from agents.chat.models import ChatReply, Message, Schema, ToolCallingModel, WrittenCall
from agents.chat.replies import LONGEST_REPLY, LONGEST_SHOWN, shortened
from agents.chat.sending import ContextExceeded, EndpointFailed
from agents.spending import BudgetReached, RoleRefused, encodable
from environments.base import (
    Action,
    Environment,
    EnvironmentFault,
    Episode,
    MalformedCall,
    Observation,
    Outcome,
    ToolSpec,
    UserTurn,
)
from environments.turns import GivenTurn, open_for_agent
from evaluation.attempts import outcome_of
from evaluation.outcomes import TaskOutcome
from evaluation.sets import Item
from memory.records import StopReason
from training.rendering.base import ASKS_BACK, DONE, EndTurn
from training.rendering.tool_calls import (
    HermesReader,
    behind_thinking,
    block_action,
    block_text,
    call_message,
    call_of,
    read_json,
    takes_blocks,
    tool_schema,
)
from training.rollout.episodes import EpisodeLimits, refused_whole

_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64
"""Stands for a reply without words in the messages that follow: some endpoints refuse empty ones."""
_NOTHING = "(no output)"


@dataclass
class ReplyCounts:
    """The counts of replies that a report has beside the outcomes."""

    refusals: int = 0
    uncounted: int = 0
    """Replies without a number of tokens: the limit of an episode's tokens was not kept there."""


async def attempt_served(
    items: Sequence[Item],
    model: ToolCallingModel,
    environment: Environment,
    limits: EpisodeLimits,
    over: Callable[[TaskOutcome], None],
) -> ReplyCounts:
    """Attempt every item once and hand each outcome to ``over`` when it is there.

    At most ``limits.batch`` episodes are open at a time. The first exception ends the other attempts, which leave no
    outcome. Raises InputError for a task that the environment cannot open and for a key or model that the endpoint
    refuses, BudgetReached when a budget is spent, RepeatedFailure when the endpoint only fails.
    """
    seen = ReplyCounts()
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            over(await _Attempt(item, model, environment, limits, seen).play())

    workers = [asyncio.create_task(work()) for _ in range(min(len(items), limits.batch))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return seen


class _Read(NamedTuple):
    """A reply read: its actions, and the calls that they came from (None: written as text)."""

    actions: tuple[Action, ...]
    calls: tuple[WrittenCall, ...] | None


@dataclass
class _Attempt:
    """One episode; single use."""

    item: Item
    model: ToolCallingModel
    environment: Environment
    limits: EpisodeLimits
    seen: ReplyCounts
    messages: list[Message] = field(default_factory=list)
    stops: list[StopReason] = field(default_factory=list)
    steps: list[tuple[Action, Observation]] = field(default_factory=list)
    replies: int = 0
    called: int = 0
    used: int = 0
    sampled: int = 0
    was_cut: bool = False

    async def play(self) -> TaskOutcome:
        """Return the outcome of the episode."""
        outcome: Outcome | None = None
        fault = None
        try:
            with closing(await asyncio.to_thread(self.environment.open, self.item.task)) as episode:
                await self._converse(episode)
                outcome = await asyncio.to_thread(episode.outcome)
        except (EnvironmentFault, EndpointFailed) as failure:
            fault = f"{type(failure).__name__}: {failure}"
            if self.stops:
                self.stops[-1] = StopReason.FAULT
        stops = {reason: self.stops.count(reason) for reason in StopReason if reason in self.stops}
        return outcome_of(self.item, self.steps, outcome, self.sampled, fault, stops)

    async def _converse(self, episode: Episode) -> None:
        played, first = await asyncio.to_thread(open_for_agent, episode, self.item.task)
        for one in played:
            self._give(one, Offered(await asyncio.to_thread(self.environment.tools, one.opened.tools)))
        turn: UserTurn | None = first
        while turn is not None:
            tools = await asyncio.to_thread(self.environment.tools, turn.tools)
            self._ask(turn)
            self.stops.append(StopReason.FAULT)  # until it stops otherwise
            self.stops[-1] = await self._turn(episode, Offered(tools))
            if self.stops[-1] is not StopReason.END_OF_TURN:
                return
            turn = await asyncio.to_thread(episode.end_turn)

    def _ask(self, turn: UserTurn) -> None:
        """Append what the user says, behind the environment's introduction."""
        if turn.preface:
            self.messages.append({"role": "system", "content": encodable(turn.preface)})
        self.messages.append({"role": "user", "content": encodable(turn.full_text)})

    def _give(self, played: GivenTurn, offered: Offered) -> None:
        """Append a turn that the reference played, each call a message of its own, as the model would have called."""
        self._ask(played.opened)
        plain = {name: shown for shown, name in offered.names.items()}
        for call, answer in played.steps:
            if offered.schemas:
                arguments = json.dumps(call.arguments, ensure_ascii=False)
                written = WrittenCall(plain.get(call.name, call.name), arguments)
                self._answer("", _Read((call,), (written,)), [answer])
            else:
                self._answer(block_text(call), _Read((call,), None), [answer])
        self.messages.append({"role": "assistant", "content": DONE if played.steps else ASKS_BACK})

    async def _turn(self, episode: Episode, offered: Offered) -> StopReason:
        """Act until the model ends the turn or a limit is reached; return which."""
        steps = 0
        while True:
            if self.limits.max_steps is not None and self.replies >= self.limits.max_steps:
                return StopReason.EPISODE_STEPS
            room = min(self.limits.max_new_tokens, self.limits.max_tokens - self.used)
            if room < 1:
                return StopReason.MESSAGE_TOKENS if self.was_cut else StopReason.EPISODE_TOKENS
            try:
                reply = await self.model.reply(
                    self.messages, offered.schemas, max_tokens=room, subject=self.item.task.id
                )
            except ContextExceeded:
                # The model's own limit. Masking the attempt would leave out the tasks that it is too short for.
                return StopReason.EPISODE_TOKENS
            except (BudgetReached, EndpointFailed):
                raise
            except RoleRefused:  # by moderation: as much a part of what is served as the model
                return StopReason.REFUSED
            self.replies += 1
            self.was_cut = reply.cut_off and room == self.limits.max_new_tokens
            self.seen.refusals += reply.refusal is not None
            if reply.tokens is None:
                self.seen.uncounted += 1
            else:
                self.used = sum(reply.tokens)
                self.sampled += reply.tokens[1]
            read = read_reply(reply, offered)
            if isinstance(read, EndTurn):
                self.messages.append({"role": "assistant", "content": encodable(read.text) or DONE})
                return StopReason.END_OF_TURN
            answers = []
            if self.limits.strict_messages:
                read = read._replace(actions=tuple(refused_whole(read.actions, offered.own)))
            for action in read.actions:
                if steps >= self.limits.max_actions:
                    return StopReason.ACTIONS
                steps += 1
                answers.append(await asyncio.to_thread(episode.step, action))
                self.steps.append((action, answers[-1]))
            self._answer(reply.text, read, answers)

    def _answer(self, said: str, read: _Read, answers: Sequence[Observation]) -> None:
        text = encodable(shortened(said, LONGEST_SHOWN) if len(said) > LONGEST_REPLY else said)
        if read.calls is None:
            observed = "\n".join(answer.full_text for answer in answers)
            self.messages.append({"role": "assistant", "content": text or DONE})
            self.messages.append({"role": "user", "content": encodable(observed) or _NOTHING})
            return
        made = [
            call_message(self.called + place, _plain(call.name), _again(call, action))
            for place, (call, action) in enumerate(zip(read.calls, read.actions, strict=True))
        ]
        self.called += len(made)
        self.messages.append({"role": "assistant", "content": text or None, "tool_calls": made})
        for one, answer in zip(made, answers, strict=True):
            content = encodable(answer.full_text) or _NOTHING
            self.messages.append({"role": "tool", "tool_call_id": one["id"], "content": content})


class Offered:
    """The tools of a user turn as an endpoint is offered them.

    ``schemas`` are empty where blocks of code are written as text. Names that an endpoint would refuse (those with a
    dot) are rewritten, and ``names`` leads back to the environment's, which are ``own``.
    """

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        schemas = tuple(tool_schema(tool) for tool in tools)
        self.documented = schemas
        self.blocks = takes_blocks(schemas)
        self.own = frozenset(tool.name for tool in tools)
        self.names: dict[str, str] = {}
        self.schemas: tuple[Schema, ...] = ()
        if self.blocks and len(schemas) == 1:
            return
        for tool in tools:
            plain, number = _plain(tool.name), 2
            while plain in self.names:  # two names may share a plain form
                plain = f"{_plain(tool.name)[: _LONGEST_NAME - 5]}_{number}"
                number += 1
            self.names[plain] = tool.name
        self.schemas = tuple(
            schema | {"function": schema["function"] | {"name": plain}}
            for schema, plain in zip(schemas, self.names, strict=True)
        )


def read_reply(reply: ChatReply, offered: Offered) -> _Read | EndTurn:
    """Read a reply: the actions that it asks for, at least one, or the end of the user turn. Never raises."""
    length = len(reply.text) + sum(len(call.arguments) + len(call.name) for call in reply.calls)
    if reply.cut_off:
        return _malformed(reply.text, "cut off: the message does not end")
    if length > LONGEST_REPLY:
        return _malformed(reply.text, f"the message has more than {LONGEST_REPLY} characters")
    if reply.calls:
        return _Read(tuple(_action(call, offered.names) for call in reply.calls), reply.calls)
    if reply.refusal is not None:
        return EndTurn(text=reply.text or reply.refusal)
    said = HermesReader().read(behind_thinking(reply.text, offered.documented), "", "", offered.documented)
    if not isinstance(said, EndTurn):
        return _malformed(reply.text, "a tool call written as text, which the endpoint did not read: call it as a tool")
    block = block_action(said.text) if offered.blocks else None
    return said if block is None else _Read((block,), None)


def _malformed(text: str, reason: str) -> _Read:
    return _Read((MalformedCall(text=encodable(shortened(text, LONGEST_SHOWN)), reason=reason),), None)


def _action(call: WrittenCall, names: Mapping[str, str]) -> Action:
    name, written = encodable(names.get(call.name, call.name)), call.arguments.strip()
    try:
        if not call.name:
            raise ValueError("the tool call has no name")
        return call_of({"name": name, "arguments": read_json(written) if written else {}})
    except ValueError as error:
        text = encodable(shortened(f"{name}({written})", LONGEST_SHOWN))
        return MalformedCall(text=text, reason=encodable(str(error)))


def _again(call: WrittenCall, action: Action) -> str:
    """Return a call's arguments for the messages that follow; endpoints refuse anything but a JSON object."""
    return "{}" if isinstance(action, MalformedCall) else call.arguments.strip() or "{}"


def _plain(name: str) -> str:
    """Return a name in the letters and the length that endpoints take."""
    return _FOREIGN.sub("_", name)[:_LONGEST_NAME] or "unknown"
