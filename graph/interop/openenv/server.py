"""Offer tasks of an environment over OpenEnv 0.10: the environment, in the classes of that package.

Runs in OpenEnv's own virtual environment (``make openenv``), started by ``graph.interop.openenv.serve``. An attempt
begins with ``reset(split=..., index=...)``, goes on with OpenEnv's own ``call_tool`` actions, and ends a user turn with
the tool ``finish_turn``. The reward is 1 or 0, at the end. A fault of the environment is an error of the protocol and
ends the attempt: it has no reward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
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

from environments.base import Environment, TaskSpec, UserTurn
from graph.interop.attempt import Attempt, shown_tools

__all__ = ["application"]


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


def application(environment: Environment, tasks: Mapping[str, TaskSpec], sessions: int, idle: float) -> ASGIApp:
    """Return the server of ``tasks``, by id, for at most ``sessions`` clients at a time.

    A session in which nothing happens for ``idle`` seconds is closed.

    ``environment`` has to open episodes in several threads.
    """
    splits: dict[str, list[str]] = defaultdict(list)
    for key, task in tasks.items():
        splits[task.split].append(key)

    class Served(ServedEnvironment[Action, Observation, AttemptState]):  # type: ignore[misc]
        """One client's session: an attempt after the other."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._attempt: Attempt | None = None
            self._state = AttemptState()
            self._turn: UserTurn | None = None

        def list_splits(self) -> list[str]:
            return [*splits]

        def num_tasks(self, split: str) -> int:
            return len(splits.get(split, ()))

        def list_tasks(self, split: str) -> list[dict[str, JsonValue]]:
            return self.get_task_range(split)

        def get_task(self, split: str, index: int) -> dict[str, JsonValue]:
            key = splits.get(split, [])[_natural(index)]
            return {"index": index, **_listed(environment, key, tasks[key])}

        def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
            return [self.get_task(split, index) for index in range(*slice(start, stop).indices(self.num_tasks(split)))]

        def reset(
            self, seed: int | None = None, episode_id: str | None = None, split: str | None = None, index: int = 0
        ) -> TurnObservation:
            """Begin an attempt at a task; ``seed`` changes nothing."""
            self.close()
            name = next(iter(splits)) if split is None else split
            if not isinstance(index, int) or name not in splits or not 0 <= index < len(splits[name]):
                known = ", ".join(f"{one} has indices 0 to {len(keys) - 1}" for one, keys in splits.items())
                raise ValueError(f"there is no such task: {known}")
            key = splits[name][index]
            self._attempt = Attempt(environment, tasks[key])
            self._state = AttemptState(episode_id=episode_id, task_id=key)
            self._turn = turn = self._attempt.turn
            return TurnObservation(user=_message(turn), history=_history(self._attempt))

        def step(self, action: Action, timeout_s: float | None = None, **_: object) -> Observation:
            if self._attempt is None or self._turn is None:
                raise RuntimeError("no attempt is open: reset first")
            if isinstance(action, ListToolsAction):
                return ListToolsObservation(tools=_tools(environment, self._turn))
            self._state.step_count += 1
            try:
                answer = self._attempt.call(action.tool_name, action.arguments)
            except BaseException:
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

        @property
        def state(self) -> AttemptState:
            if self._attempt is not None:
                self._state.world = self._attempt.state()
            return self._state

        def get_metadata(self) -> EnvironmentMetadata:
            return EnvironmentMetadata(name=environment.name, description=f"{len(tasks)} tasks of {environment.name}")

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


def _listed(environment: Environment, key: str, task: TaskSpec) -> dict[str, JsonValue]:
    """Return what the list of tasks has of one: what its agent reads first, and nothing of the reference."""
    attempt = Attempt(environment, task)
    try:
        return {
            "id": key,
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
