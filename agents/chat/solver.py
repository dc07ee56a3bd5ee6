"""The chat solver: a model tries a draft from its text alone, in live episodes that the environment scores (ours)."""

from __future__ import annotations

import asyncio

from agents.chat.playing import PlayedEpisode
from agents.chat.structured import StructuredModel
from agents.chat.transcript import RequestMessages, prompt
from agents.roles import RoleRefused, Solved
from agents.spending import BudgetReached
from environments.base import Environment, Outcome, UserTurn
from memory.records import Draft


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
        evaluated = [result.success for result in played if isinstance(result, Outcome)]
        spent = [refusal for refusal in refusals if isinstance(refusal, BudgetReached)]
        if spent or not evaluated:
            raise (spent or refusals)[0]
        return Solved(rate=sum(evaluated) / len(evaluated), attempts=len(evaluated))


class _Attempt(PlayedEpisode):
    """One attempt from the text alone. ``number`` counts from 1 and is in the prompt, for caches of replies."""

    def __init__(
        self,
        model: StructuredModel,
        draft: Draft,
        environment: Environment,
        iteration: int | None,
        number: int,
        actions: int,
    ) -> None:
        super().__init__(model, draft, environment, iteration, actions)
        self._number = number

    def request(self, turn: UserTurn, tools: str, history: str, left: int) -> RequestMessages:
        """Fill the solver's prompt."""
        return prompt(
            "solve", preface=self.preface, tools=tools, history=history, attempt=str(self._number), left=str(left)
        )
