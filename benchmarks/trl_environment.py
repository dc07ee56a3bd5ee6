"""Wraps BFCL for TRL's ``environment_factory``: a class whose public methods are the tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pydantic import JsonValue

from environments.base import Environment, Episode, ToolCall
from memory.records import Task

__all__ = ["environment_class"]


class _BFCLTools:
    """One rollout at a time; ``reset`` opens the row's task, ``get_reward`` asks the official checker."""

    _environment: Environment
    _tasks: Mapping[str, Task]

    def __init__(self) -> None:
        self._episode: Episode | None = None

    def reset(self, task_id: str, **_: object) -> None:
        """Open the task of a row of the data set, whose prompt is the task's text already."""
        self._episode = self._environment.open(self._tasks[task_id])
        self._episode.start()

    def get_reward(self) -> float:
        """1 for success by the official rule."""
        assert self._episode is not None
        success = self._episode.outcome().success
        self._episode.close()
        return float(success)


def environment_class(environment: Environment, tasks: Sequence[Task]) -> type[_BFCLTools]:
    """Return the factory for ``tasks``, which all have the same tools.

    The methods carry no documentation of their own: the comparison gives both sides the same schemas.
    """
    methods: dict[str, object] = {name: _method(name) for name in tasks[0].tools}
    known = {task.id: task for task in tasks}
    return type("BFCLTools", (_BFCLTools,), {"_environment": environment, "_tasks": known, **methods})


def _method(name: str) -> Callable[..., str]:
    def method(self: _BFCLTools, **arguments: JsonValue) -> str:
        assert self._episode is not None
        return self._episode.step(ToolCall(name=name, arguments=arguments)).text

    method.__name__ = method.__qualname__ = name
    return method
