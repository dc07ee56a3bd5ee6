"""Implement the environment of a server's tools: documentation, episodes, and the world that an episode acts on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import JsonValue

from environments.base import (
    InputError,
    Observation,
    ObservationStatus,
    Record,
    TaskSpec,
    ToolCall,
    ToolSpec,
)
from environments.json_schema import closed_schema, parameters_of, plain_line
from environments.python_class.environment import PythonEpisode, ToolEnvironment, check_own
from environments.python_class.world import error_observation, refused
from environments.served.fleet import Fleet, ServerAnswer, ServerPlace

_NOTHING = frozenset(("", "null", "[]", "{}"))


class ServerWorld:
    """A start of the server and the calls since; used by one thread at a time, and holds no server between calls.

    ``cached``: a place that was seen before is not played again. ``repeats``: where calls are played again, the server
    has to answer as it did before.
    """

    def __init__(
        self, fleet: Fleet[Any], tools: Mapping[str, ToolSpec], start: Record, repeats: bool, cached: bool
    ) -> None:
        self._fleet = fleet
        self._tools = tools
        self._cached = cached
        self._place = ServerPlace(start)
        self._heard: list[ServerAnswer] | None = [] if repeats else None
        self._seen = fleet.see(self._place, cached=cached, holder=self)

    @property
    def reward(self) -> float | None:
        """The highest reward so far; None where the server gave none."""
        return self._seen.reward

    def state(self) -> str:
        """Return the state after the last call as canonical JSON."""
        return self._seen.state

    def run(self, call: ToolCall) -> Observation:
        """Execute one call; arguments that do not fit the documentation are refused before the server sees them.

        Raises EnvironmentFault for anything that is not the agent's error.
        """
        if (refusal := refused(call, self._tools)) is not None:
            return refusal
        place = self._place._replace(calls=(*self._place.calls, call))
        seen = self._fleet.see(place, cached=self._cached, heard=self._heard, holder=self)
        before, self._seen, self._place = self._seen, seen, place
        assert seen.answer is not None
        if self._heard is not None:
            self._heard.append(seen.answer)
        text = seen.answer.text
        if seen.answer.failed:
            return error_observation(text).model_copy(update={"calls": (call,)})
        informative = text.strip() not in _NOTHING or seen.state != before.state
        status = ObservationStatus.OK if informative else ObservationStatus.EMPTY
        return Observation(text=text, status=status, calls=(call,))

    def close(self) -> None:
        """Let other episodes have the server. Idempotent."""
        self._fleet.leave(self)


class ServedEnvironment(ToolEnvironment):
    """Implements ``environments.base.Environment`` for the tools of a server; subclasses read what a start is.

    A task is solved by the rule of own environments (``environments.python_class.environment``): state and answers of
    each turn are those of the reference.
    """

    repeats = False

    def __init__(self, fleet: Fleet[Any], tools: Mapping[str, ToolSpec], cached: bool = False) -> None:
        super().__init__(tools)
        self._fleet = fleet
        self._cached = cached

    def open(self, task: TaskSpec) -> PythonEpisode:
        """Open a fresh episode.

        Raises InputError for a task of another environment, or unknown classes, tools or states, and EnvironmentFault
        where no server can be brought to its start.
        """
        check_own(task, self, self.group)
        if task.initial_state.keys() != {self.group}:
            raise InputError(f"an initial state of {self.name} is {{{self.group!r}: a start of the server}}")
        start = self.read_start(task.initial_state[self.group])
        # Two replays of a task are two plays. Each compares with the reference, which need not be played anew.
        own, known = (
            partial(ServerWorld, self._fleet, self._tools, start, self.repeats, cached)
            for cached in (self._cached, True)
        )
        return self.episode(task, own, known)

    def read_start(self, given: JsonValue) -> Record:
        """Return the start that a task names, as the fleet's servers take it. Raises InputError for what is none."""
        raise NotImplementedError

    def episode(self, task: TaskSpec, own: partial[ServerWorld], known: partial[ServerWorld]) -> PythonEpisode:
        """Return an episode that acts in the world ``own``, and whose reference is played in ``known``."""
        return PythonEpisode(task, own, known)


def documented_tool(name: str, group: str, description: str | None, schema: JsonValue, longest: int) -> ToolSpec:
    """Return the documentation that a stranger gives of a tool, its description cut to ``longest`` characters.

    Raises ValueError with the reason where its schema cannot be used (``environments.json_schema``).
    """
    closed = closed_schema(schema)
    return ToolSpec(
        name=name,
        group=group,
        description=plain_line(description or "", longest) or name.replace("_", " "),
        parameters=parameters_of(closed),
        json_schema=closed,
    )
