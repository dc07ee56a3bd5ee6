"""The chat solver: a model tries a draft from its text alone, in live episodes that the environment scores (ours)."""

from __future__ import annotations

import asyncio
from contextlib import closing

from pydantic import BaseModel, Field, JsonValue

from agents.chat.sending import EndpointFailed
from agents.chat.structured import StructuredModel
from agents.chat.transcript import acting_tools, attempt_text, data, offered, preface_text, prompt, tools_text
from agents.roles import RoleRefused, Solved
from agents.spending import BudgetReached
from environments.base import Action, Environment, Episode, Observation, UserTurn
from environments.verification.programs import program_tool
from memory.records import Draft


class NextAction(BaseModel):
    """The next tool call in this turn, or the end of the turn."""

    tool: str = Field(description="name of the tool to call; empty when the request of this turn is fulfilled")
    arguments: dict[str, JsonValue] = Field(default_factory=dict, description="arguments by parameter name")


class ChatSolver:
    """Solver on a chat model. It sees the user turns so far, its own calls and their answers, and nothing else.

    Args:
        model: the chat model.
        attempts: episodes per draft.
        actions: most actions in one episode, all user turns together; the state at that point is scored.
    """

    def __init__(self, model: StructuredModel, attempts: int, actions: int) -> None:
        self._model = model
        self._attempts = attempts
        self._actions = actions

    async def solve(self, draft: Draft, environment: Environment, iteration: int | None) -> Solved:
        """Return the success rate over all attempts that can be scored; they run concurrently.

        A reply that stays unusable ends its attempt, which is scored as it is: that is the model's own failure. An
        attempt that the endpoint failed says nothing about the draft and is left out. Raises EndpointFailed when all
        attempts were left out, and BudgetReached when the budget ended one.
        """
        attempts = (
            _Attempt(self._model, draft, environment, iteration, number, self._actions)
            for number in range(1, self._attempts + 1)
        )
        played = await asyncio.gather(*(attempt.play() for attempt in attempts), return_exceptions=True)
        refusals: list[RoleRefused] = []
        for result in played:
            if isinstance(result, RoleRefused):
                refusals.append(result)
            elif isinstance(result, BaseException):
                raise result
        judged = [result for result in played if isinstance(result, bool)]
        spent = [refusal for refusal in refusals if isinstance(refusal, BudgetReached)]
        if spent or not judged:
            raise (spent or refusals)[0]
        return Solved(rate=sum(judged) / len(judged), attempts=len(judged))


class _Attempt:
    """One episode. ``number`` counts from 1 and is in the prompt, so that a cache does not answer all alike."""

    def __init__(
        self,
        model: StructuredModel,
        draft: Draft,
        environment: Environment,
        iteration: int | None,
        number: int,
        actions: int,
    ) -> None:
        self._model = model
        self._draft = draft
        self._environment = environment
        self._iteration = iteration
        self._number = number
        self._left = actions
        self._preface = ""
        self._said: list[str] = []

    async def play(self) -> bool:
        """Play the episode; return whether it succeeded."""
        with closing(await asyncio.to_thread(self._environment.open, self._draft)) as episode:
            try:
                await self._converse(episode)
            except (BudgetReached, EndpointFailed):
                raise
            except RoleRefused:  # by the model itself: it gave up
                pass
            return (await asyncio.to_thread(episode.outcome)).success

    async def _converse(self, episode: Episode) -> None:
        """Go through the user turns until the last one has ended or no action is left."""
        first = await asyncio.to_thread(episode.start)
        self._preface = preface_text(first.preface)
        turn: UserTurn | None = first
        while turn is not None:
            await self._turn(episode, turn)
            turn = await asyncio.to_thread(episode.end_turn) if self._left > 0 else None

    async def _turn(self, episode: Episode, turn: UserTurn) -> None:
        """Act until the model ends the turn or no action is left."""
        tools = acting_tools(await asyncio.to_thread(self._environment.tools, turn.tools))
        documentation, program = tools_text(tools), program_tool(tools)
        self._said.append(f"User: {data('user', turn.full_text)}")
        done: list[tuple[Action, Observation]] = []
        while self._left > 0:
            messages = prompt(
                "solve",
                preface=self._preface,
                tools=documentation,
                history="\n".join((*self._said, attempt_text(done, program))),
                attempt=str(self._number),
                left=str(self._left),
            )
            reply, _ = await self._model.ask(
                NextAction, messages.system, messages.user, subject=self._draft.id, iteration=self._iteration
            )
            if not reply.tool:
                break
            action = offered(reply.tool, reply.arguments, turn.tools)
            done.append((action, await asyncio.to_thread(episode.step, action)))
            self._left -= 1
        self._said.append(attempt_text(done, program))
