"""Offer tasks of an environment over OpenEnv 0.10: the environment, in the classes of that package.

Runs in OpenEnv's own virtual environment (``make openenv``), started by ``graph.interop.openenv.serve``. An attempt
begins with ``reset(split=..., index=...)``, goes on with OpenEnv's own ``call_tool`` actions, and ends a user turn with
the tool ``finish_turn``. The reward is 1 or 0, at the end. A fault of the environment is an error of the protocol and
ends the attempt: it has no reward.

A trainer that has attempts recorded says of which draw each is (``reset(episode_id="17")``), ends one that its agent
could not end by ``finish_turn(give_up=True)``, and may say there how many tokens it sampled. What it only breaks off is
not recorded: the trainer failed, not its agent.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment as ServedEnvironment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    ToolError,
    ToolErrorType,
)
from openenv.core.env_server.types import Action, ConcurrencyConfig, EnvironmentMetadata, Observation, State
from pydantic import JsonValue
from starlette.types import ASGIApp

from environments.base import Environment, EnvironmentFault, Outcome, UserTurn
from graph.interop.attempt import FINISH_TURN, Attempt, shown_tools
from memory.records import Task
from training.elsewhere.rollouts import RolloutWriter

__all__ = ["application"]

DRAW = re.compile(r"\d{1,18}")


class TurnObservation(Observation):  # type: ignore[misc]  # OpenEnv is not installed where types are checked
    """What ``reset`` answers: the user's message, and the turns before it, which the reference played.

    Tools are listed by ``list_tools``: OpenEnv's client reads no other field of an observation that has ``tools``.
    """

    user: str
    history: list[dict[str, JsonValue]] = []


class AttemptState(State):  # type: ignore[misc]
    """What ``state`` answers: the task, and the state that the environment compares, as JSON text.

    It is for a trainer, not for an agent.
    """

    task_id: str = ""
    world: str = ""


def application(
    environment: Environment,
    tasks: Callable[[], Sequence[Task]],
    sessions: int,
    idle: float,
    recorder: RolloutWriter | None = None,
) -> ASGIApp:
    """Return the server of ``tasks`` for at most ``sessions`` clients at a time.

    A session in which nothing happens for ``idle`` seconds is closed. ``tasks`` is asked at each request: later ones
    follow those that a client knows. ``environment`` has to open episodes in several threads.
    """

    def splits() -> dict[str, list[Task]]:
        found: dict[str, list[Task]] = defaultdict(list)
        for task in tasks():
            found[task.split].append(task)
        return found

    class Served(ServedEnvironment[Action, Observation, AttemptState]):  # type: ignore[misc]
        """One client's session: an attempt after the other."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._attempt: Attempt | None = None
            self._state = AttemptState()
            self._turn: UserTurn | None = None
            self._task: Task | None = None
            self._draw: int | None = None
            self._sampled = 0

        def list_splits(self) -> list[str]:
            return [*splits()]

        def num_tasks(self, split: str) -> int:
            return len(splits().get(split, ()))

        def list_tasks(self, split: str) -> list[dict[str, JsonValue]]:
            return self.get_task_range(split)

        def get_task(self, split: str, index: int) -> dict[str, JsonValue]:
            return {"index": index, **_listed(environment, splits().get(split, [])[_natural(index)])}

        def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
            there = splits().get(split, [])
            indices = range(*slice(start, stop).indices(len(there)))
            return [{"index": index, **_listed(environment, there[index])} for index in indices]

        def reset(
            self, seed: int | None = None, episode_id: str | None = None, split: str | None = None, index: int = 0
        ) -> TurnObservation:
            """Begin an attempt at a task; ``seed`` changes nothing."""
            self.close()
            there = splits()
            name = next(iter(there)) if split is None else split
            if not isinstance(index, int) or name not in there or not 0 <= index < len(there[name]):
                known = ", ".join(f"{one} has indices 0 to {len(keys) - 1}" for one, keys in there.items())
                raise ValueError(f"there is no such task: {known}")
            self._task, self._sampled = there[name][index], 0
            self._draw = int(episode_id) if episode_id and DRAW.fullmatch(episode_id) else None
            try:
                self._attempt = Attempt(environment, self._task)
            except EnvironmentFault as fault:
                self._record(fault=fault)
                raise
            self._state = AttemptState(episode_id=episode_id, task_id=self._task.id)
            self._turn = turn = self._attempt.turn
            return TurnObservation(user=_message(turn), history=_history(self._attempt))

        def step(self, action: Action, timeout_s: float | None = None, **_: object) -> Observation:
            if self._attempt is None or self._turn is None:
                raise RuntimeError("no attempt is open: reset first")
            if isinstance(action, ListToolsAction):
                return ListToolsObservation(tools=_tools(environment, self._turn))
            self._state.step_count += 1
            ending = action.arguments if action.tool_name == FINISH_TURN.name else {}
            if isinstance(sampled := ending.get("sampled_tokens"), int):
                self._sampled = max(0, sampled)
            try:
                if ending.get("give_up") is True:
                    answer = self._attempt.give_up()
                else:
                    answer = self._attempt.call(action.tool_name, action.arguments)
                if answer.done:
                    self._record(self._attempt.outcome())
            except BaseException as raised:
                if isinstance(raised, EnvironmentFault):
                    self._record(fault=raised)
                self.close()
                raise
            told: dict[str, Any] = {"tool_name": action.tool_name, "result": answer.text}
            if answer.failed:
                error = ToolError(error_type=ToolErrorType.EXECUTION_ERROR, message=answer.text)
                told = {"tool_name": action.tool_name, "error": error}
            if answer.turn is not None:
                self._turn = answer.turn
                tools = [tool.model_dump() for tool in _tools(environment, answer.turn)]
                told["result"] = {"user": answer.text, "tools": tools}
            if answer.done:
                self.close()
            return CallToolObservation(**told, done=answer.done, reward=answer.reward)

        def _record(self, outcome: Outcome | None = None, fault: EnvironmentFault | None = None) -> None:
            if recorder is not None and self._draw is not None and self._task is not None:
                turns = () if self._attempt is None else self._attempt.turns
                cause = None if fault is None else f"{type(fault).__name__}: {fault}"
                recorder.keep(self._draw, self._task, turns, outcome, cause, self._sampled)

        @property
        def state(self) -> AttemptState:
            if self._attempt is not None:
                self._state.world = self._attempt.state()
            return self._state

        def get_metadata(self) -> EnvironmentMetadata:
            return EnvironmentMetadata(name=environment.name, description=f"{len(tasks())} tasks of {environment.name}")

        def close(self) -> None:
            if self._attempt is not None:
                self._attempt.close()
                self._attempt = None

    app: ASGIApp = create_fastapi_app(
        Served,
        CallToolAction,
        CallToolObservation,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=sessions, session_timeout=idle),
        env_name=environment.name,
        state_cls=AttemptState,
        reset_observation_cls=TurnObservation,
        mode="simulation",  # else a variable of the user's shell could switch reset off
    )
    return app


def _listed(environment: Environment, task: Task) -> dict[str, JsonValue]:
    """Return what the list of tasks has of one: what its agent reads first, and nothing of the reference."""
    attempt = Attempt(environment, task)
    try:
        return {
            "id": task.id,
            "user": _message(attempt.turn),
            "turns": len(task.turns),
            "played": task.played,
            "tools": [*attempt.turn.tools],
        }
    finally:
        attempt.close()


def _message(turn: UserTurn) -> str:
    return f"{turn.preface}\n\n{turn.full_text}" if turn.preface else turn.full_text


def _natural(index: int) -> int:
    if index < 0:
        raise IndexError("an index counts from 0")
    return index


def _tools(environment: Environment, turn: UserTurn) -> list[Tool]:
    functions = [shown["function"] for shown in shown_tools(environment, turn)]
    return [Tool(name=f["name"], description=f["description"], input_schema=f["parameters"]) for f in functions]


def _history(attempt: Attempt) -> list[dict[str, JsonValue]]:
    return [
        {
            "user": given.opened.full_text,
            "calls": [
                {"tool_name": call.name, "arguments": call.arguments, "result": observation.full_text}
                for call, observation in given.steps
            ],
        }
        for given in attempt.history
    ]
