"""Play a task by tool calls alone: the agent ends its user turn by the tool ``finish_turn``.

Protocols of other frameworks have one user message and tool calls after it. Ours has several user turns, so the end of
a turn is a call, whose answer is the next user message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from environments.base import Action, Environment, InputError, MalformedCall, Outcome, TaskSpec, ToolSpec, UserTurn
from environments.turns import GivenTurn, open_for_agent
from memory.records import Step, StopReason, TrajectoryTurn
from training.rendering.tool_calls import Schema, call_of, read_json, tool_schema

__all__ = ["FINISH_TURN", "Attempt", "Reply", "check_tasks", "shown_tools"]

FINISH_TURN = ToolSpec(
    name="finish_turn",
    group="",
    description="End your turn, once all that the user asked for is done. Returns the user's next message, if any.",
)
_OVER = "the conversation is over"


class Reply(NamedTuple):
    """The answer to one call.

    ``turn`` is the user turn that the call opened, if it did. ``reward`` is 1 for a success by the environment's rule,
    else 0; None until the attempt is ``done``.
    """

    text: str
    failed: bool
    turn: UserTurn | None = None
    done: bool = False
    reward: float | None = None


class Attempt:
    """One attempt at one task; single use, for one thread at a time.

    ``turn`` is the user turn that the agent begins with, ``history`` the turns that the reference played before it.
    Raises InputError for a task that the environment cannot open. An EnvironmentFault passes to the caller, here and in
    ``call``: it is not the agent's, and has no reward.
    """

    def __init__(self, environment: Environment, task: TaskSpec) -> None:
        self._episode = environment.open(task)
        try:
            self.history: tuple[GivenTurn, ...]
            self.history, self.turn = open_for_agent(self._episode, task)
        except BaseException:
            self._episode.close()
            raise
        self._turns = [
            _recorded(
                given.opened,
                [Step(action=call, observation=observation) for call, observation in given.steps],
                StopReason.PLAYED,
            )
            for given in self.history
        ]
        self._opened: UserTurn | None = self.turn
        self._steps: list[Step] = []

    def call(self, name: str, arguments: object) -> Reply:
        """Execute one call, whatever its arguments are. Raises RuntimeError once the attempt is done."""
        if name != FINISH_TURN.name:
            action = _action(name, arguments)
            observation = self._episode.step(action)
            self._steps.append(Step(action=action, observation=observation))
            return Reply(observation.full_text, observation.failed)
        turn = self._episode.end_turn()
        if self._opened is not None:
            self._turns.append(_recorded(self._opened, self._steps, StopReason.END_OF_TURN))
        self._opened, self._steps = turn, []
        if turn is not None:
            return Reply(turn.full_text, False, turn)
        return Reply(_OVER, False, None, True, float(self._episode.outcome().success))

    def give_up(self) -> Reply:
        """End the attempt where it is, by a limit of the agent's; turns that were not reached fail."""
        return Reply(_OVER, False, None, True, float(self._episode.outcome().success))

    @property
    def turns(self) -> tuple[TrajectoryTurn, ...]:
        """The user turns so far, the one in progress included, as a trajectory records them."""
        opened = () if self._opened is None else (_recorded(self._opened, self._steps, None),)
        return (*self._turns, *opened)

    def outcome(self) -> Outcome:
        """Return the outcome of what was done so far; turns that were not reached fail."""
        return self._episode.outcome()

    def state(self) -> str:
        """Return the canonical text of the state that the environment compares."""
        return self._episode.state()

    def close(self) -> None:
        """Release what the attempt holds. Idempotent."""
        self._episode.close()


def _recorded(turn: UserTurn, steps: Sequence[Step], stop_reason: StopReason | None) -> TrajectoryTurn:
    return TrajectoryTurn(
        text=turn.text,
        guidelines=turn.guidelines,
        steps=tuple(steps),
        ended=stop_reason is not None,
        stop_reason=stop_reason,
    )


def _action(name: str, arguments: object) -> Action:
    try:
        return call_of(read_json(json.dumps({"name": name, "arguments": arguments})))
    except (TypeError, ValueError, RecursionError):
        return MalformedCall(text=f"{name}(...)", reason="arguments are an object of JSON values")


def shown_tools(environment: Environment, turn: UserTurn) -> list[Schema]:
    """Return what an agent may call in ``turn`` as OpenAI-style function schemas, ``finish_turn`` last."""
    return [tool_schema(tool) for tool in (*environment.tools(turn.tools), FINISH_TURN)]


def check_tasks(environment: Environment, tasks: tuple[TaskSpec, ...], source: str) -> None:
    """Raise InputError, with the position in ``source``, for a task that an attempt cannot begin with."""
    if not tasks:
        raise InputError(f"{source} holds no task: name another")
    for number, task in enumerate(tasks, start=1):
        if FINISH_TURN.name in task.tools:
            raise InputError(f"{source}, task {number}: a tool of its own is called {FINISH_TURN.name}: rename it")
        try:
            environment.open(task).close()
        except InputError as error:
            raise InputError(f"{source}, task {number}: {error}") from None
