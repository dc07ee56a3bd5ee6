"""An episode that a chat model plays, turn by turn: what the solver's and the validator's runs have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import closing

from pydantic import Field, JsonValue

from agents.chat.replies import WrittenAction
from agents.chat.sending import EndpointFailed
from agents.chat.structured import StructuredModel
from agents.chat.transcript import (
    RequestMessages,
    acting_tools,
    attempt_text,
    data,
    offered,
    preface_text,
    tools_text,
)
from agents.roles import RoleRefused
from agents.spending import BudgetReached
from environments.base import Action, Environment, Episode, Observation, Outcome, UserTurn
from environments.verification.programs import program_tool
from memory.records import Draft


class NextAction(WrittenAction):
    """The next tool call in this turn, or the end of the turn."""

    tool: str = Field(description="name of the tool to call; empty when the request of this turn is fulfilled")
    arguments: dict[str, JsonValue] = Field(default_factory=dict, description="arguments by parameter name")


class PlayedEpisode(ABC):
    """One episode of a draft; single use. A subclass says how the model is asked for its next action.

    Args:
        model: the chat model.
        draft: the task; the model sees what ``request`` shows of it.
        environment: where it is played.
        iteration: of the questions' costs; None for D_0.
        actions: most actions, all user turns together.
    """

    def __init__(
        self, model: StructuredModel, draft: Draft, environment: Environment, iteration: int | None, actions: int
    ) -> None:
        self.preface = ""
        self.made = 0
        self.last: Observation | None = None
        self._model = model
        self._draft = draft
        self._environment = environment
        self._iteration = iteration
        self._actions = actions
        self._said: list[str] = []

    @abstractmethod
    def request(self, turn: UserTurn, tools: str, history: str, left: int) -> RequestMessages:
        """Return the request for the next action in ``turn``, of which ``left`` are left in the episode."""

    @property
    def history(self) -> str:
        """The user turns, actions and observations so far, as a prompt shows them."""
        return "\n".join(self._said)

    async def play(self) -> Outcome:
        """Play the episode and return the environment's outcome.

        A reply that stays unusable ends it: that is the model's own failure. Raises EndpointFailed and BudgetReached,
        which say nothing about the draft, and EnvironmentFault.
        """
        with closing(await asyncio.to_thread(self._environment.open, self._draft)) as episode:
            try:
                await self._converse(episode)
            except (BudgetReached, EndpointFailed):
                raise
            except RoleRefused:  # by the model itself: it gave up
                pass
            return await asyncio.to_thread(episode.outcome)

    async def _converse(self, episode: Episode) -> None:
        """Go through the user turns until the last one has ended or no action is left."""
        first = await asyncio.to_thread(episode.start)
        self.preface = preface_text(first.preface)
        turn: UserTurn | None = first
        while turn is not None:
            await self._turn(episode, turn)
            turn = await asyncio.to_thread(episode.end_turn) if self.made < self._actions else None

    async def _turn(self, episode: Episode, turn: UserTurn) -> None:
        """Act until the model ends the turn or no action is left."""
        tools = acting_tools(await asyncio.to_thread(self._environment.tools, turn.tools))
        documentation, program = tools_text(tools), program_tool(tools)
        self._said += [f"User: {data('user', turn.full_text)}", attempt_text((), program)]
        done: list[tuple[Action, Observation]] = []
        while self.made < self._actions:
            messages = self.request(turn, documentation, self.history, self._actions - self.made)
            reply, _ = await self._model.ask(
                NextAction, messages.system, messages.user, subject=self._draft.id, iteration=self._iteration
            )
            if not reply.tool:
                return
            action = offered(reply.tool, reply.arguments, turn.tools)
            self.last = await asyncio.to_thread(episode.step, action)
            done.append((action, self.last))
            self.made += 1
            self._said[-1] = attempt_text(done, program)
