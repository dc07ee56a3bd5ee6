"""Implement the environment of a plain Python class: open episodes on instances of it and list its start states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pydantic import JsonValue, ValidationError

from environments.base import Environment, InputError, StartState, TaskSpec, ToolSpec
from environments.python_class.documentation import documented_tools
from environments.python_class.episode import PythonEpisode
from environments.python_class.world import CALL_SECONDS, ClassWorld, ToolRefused

__all__ = ["PythonEnvironment", "ToolRefused"]

LONGEST_CALL = 3600.0
_NAME = re.compile(r"[A-Za-z][\w-]*")


def check_own(task: TaskSpec, environment: Environment, only_class: str) -> None:
    """Raise InputError for a task of another environment, without turns, or with unknown classes or tools."""
    name = environment.name
    if task.environment != name:
        raise InputError(f"a task of the environment {task.environment!r} was given to {name!r}: open it there")
    if not task.turns:
        raise InputError("the task has no user turn: give one at least")
    if task.classes != (only_class,):
        raise InputError(f"{name} has the class {only_class}, not {', '.join(task.classes)}")
    if task.long_context:
        raise InputError(f"{name} has no long-context tasks: leave long_context out")
    for turn in task.withheld:
        if not 0 <= turn < len(task.turns):
            raise InputError(f"tools are withheld until turn {turn}, but the task has {len(task.turns)} turns")
    environment.tools((*task.tools, *(tool for names in task.withheld.values() for tool in names)))


class ToolEnvironment:
    """Documentation and start states of an environment whose tools are all of one class, ``group``.

    ``group`` is also the key of an initial state. Subclasses open episodes.
    """

    name: str
    group: str

    def __init__(self, tools: Mapping[str, ToolSpec]) -> None:
        self._tools = tools
        self._starts: tuple[StartState, ...] = ()

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """Return the documentation of the named tools, in the given order. Raises InputError for an unknown one."""
        for name in names:
            if name not in self._tools:
                raise InputError(f"{self.name} has no tool {name!r}: use some of {', '.join(self._tools)}")
        return tuple(self._tools[name] for name in names)

    def starts(self) -> tuple[StartState, ...]:
        """Return the start states that exploration begins at."""
        return self._starts

    def start_state(self, key: str | int, start: object, tools: Iterable[str] | None = None) -> StartState:
        """Return ``start`` as a start state with the id ``NAME-KEY`` and the named tools, all if None.

        Raises ValidationError where it is not made of JSON values.
        """
        return StartState.model_validate(
            {
                "id": f"{self.name}-{key}",
                "environment": self.name,
                "split": "train",
                "classes": (self.group,),
                "initial_state": {self.group: start},
                "tools": tuple(self._tools if tools is None else tools),
            }
        )


class PythonEnvironment(ToolEnvironment):
    """Implements ``environments.base.Environment`` for a class whose public methods are tools.

    Args:
        name: the environment's name in tasks.
        world: the class. Its public attributes are the state that is compared, so they hold JSON values; its public
            methods are the tools (see ``documented_tools``) and raise ``ToolRefused`` to refuse a call.
        starts: arguments of the class's constructor, once for each state that exploration may start from.
        call_seconds: timeout of one call into the class in seconds, an hour at most (ours).

    A tool must be deterministic and must not keep state outside its instance. Raises InputError for missing
    documentation and for a start that the class's constructor does not accept.
    """

    def __init__(
        self, name: str, world: type, starts: Sequence[Mapping[str, object]], call_seconds: float = CALL_SECONDS
    ) -> None:
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} cannot name an environment: use a letter, then letters, digits, _ and -")
        if not 0 < call_seconds <= LONGEST_CALL:
            raise InputError(
                f"call_seconds of {name} is {call_seconds:g}: give more than 0 and {LONGEST_CALL:g} at most"
            )
        super().__init__(documented_tools(world))
        self.name, self.group = name, world.__name__
        self._call_seconds = call_seconds
        self._world = world
        self._starts = tuple(self._start(position, arguments) for position, arguments in enumerate(starts))

    def open(self, task: TaskSpec) -> PythonEpisode:
        """Open a fresh episode.

        Raises InputError for a task of another environment, or unknown classes, tools or states.
        """
        check_own(task, self, self.group)
        return PythonEpisode(task, lambda: self._make(task.initial_state))

    def _start(self, position: int, arguments: Mapping[str, object]) -> StartState:
        try:
            start = self.start_state(position, dict(arguments))
        except ValidationError as error:
            raise InputError(
                f"start {position} of {self.name} is not made of JSON values: {arguments!r:.200}"
            ) from error
        self._make(start.initial_state)
        return start

    def _make(self, initial_state: Mapping[str, JsonValue]) -> ClassWorld:
        return ClassWorld(self._world, self._tools, initial_state, self._call_seconds)
