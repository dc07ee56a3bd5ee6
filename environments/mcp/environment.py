"""Implement the environment of an MCP server: its tools as they are documented, its states by probing it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Self

from pydantic import JsonValue, ValidationError

from environments.base import (
    InputError,
    Observation,
    ObservationStatus,
    Record,
    StartState,
    TaskSpec,
    ToolCall,
    ToolSpec,
)
from environments.benchmark import explain
from environments.mcp.fleet import FOLDER, OWN_FOLDER, Fleet, ServerPlace, ServerStart
from environments.mcp.tools import GROUP
from environments.python_class.environment import check_own
from environments.python_class.episode import PythonEpisode
from environments.python_class.world import beyond_caps, error_observation, unknown_tool
from environments.verification.replay import argument_problem

NAME = "mcp"

_NOTHING = frozenset(("", "null", "[]", "{}"))
_SAYS_ERROR = re.compile(r'\s*(\{\s*"error"\s*:|(\w+ ){0,2}error:\s)', re.IGNORECASE)
"""How answers begin that are errors without being marked as such; a call with one makes no task (our choice)."""


class ServerWorld:
    """A start of the server and the calls since; used by one thread at a time, and holds no server between calls."""

    def __init__(self, fleet: Fleet, start: ServerStart, cached: bool) -> None:
        self._fleet = fleet
        self._place = ServerPlace(start, ())
        self._cached = cached
        self._state = fleet.see(self._place, cached=cached).state

    def state(self) -> str:
        """Return the state after the last call as canonical JSON."""
        return self._state

    def run(self, call: ToolCall) -> Observation:
        """Execute one call; arguments that do not fit the documentation are refused before the server sees them.

        Raises EnvironmentFault where the server hangs, ends or does not answer by the protocol.
        """
        tool = self._fleet.listing.tools.get(call.name)
        if tool is None:
            return unknown_tool(call.name)
        problem = beyond_caps(call) or argument_problem(call, tool)
        if problem:
            return error_observation(problem)
        place = self._place._replace(calls=(*self._place.calls, call))
        answer, state = self._fleet.see(place, cached=self._cached)
        before, self._state, self._place = self._state, state, place
        assert answer is not None
        if answer.is_error or _SAYS_ERROR.match(answer.text):
            return error_observation(answer.text).model_copy(update={"calls": (call,)})
        shown = answer.text.strip() not in _NOTHING or self._state != before
        status = ObservationStatus.OK if shown else ObservationStatus.EMPTY
        return Observation(text=answer.text, status=status, calls=(call,))


class StartFile(Record):
    """A file of a start, by the path that agents give."""

    path: str
    text: str


class ShownStart(Record):
    """A start as tasks have it: explorers read paths as values, which names of a mapping are not.

    ``folder`` is the path of the server's own folder where it has one; it says nothing else.
    """

    folder: str | None = None
    calls: tuple[ToolCall, ...] = ()
    files: tuple[StartFile, ...] = ()

    @classmethod
    def of(cls, start: ServerStart, has_folder: bool) -> Self:
        """Return the form in which tasks have ``start``."""
        files = tuple(StartFile(path=f"{FOLDER}/{name}", text=text) for name, text in start.files.items())
        return cls(folder=FOLDER if has_folder else None, calls=start.calls, files=files)

    def start(self) -> ServerStart:
        """Return the start. Raises ValidationError for a path outside the folder."""
        return ServerStart(calls=self.calls, files={file.path: file.text for file in self.files})


class MCPEnvironment:
    """Implements ``environments.base.Environment`` and ``Recording`` for an MCP server.

    Args:
        fleet: its servers.
        starts: its start states, at least one.

    A task is solved by the rule of own environments (``environments.python_class.episode``): state and answers of each
    turn are those of the reference. The state is what the probe shows.
    """

    name = NAME

    def __init__(self, fleet: Fleet, starts: Sequence[ServerStart], *, cached: bool = False) -> None:
        self.fleet = fleet
        self._given = tuple(starts)
        self._cached = cached
        has_folder = any(OWN_FOLDER in word for word in fleet.plan.launch.command)
        self._starts = tuple(
            StartState(
                id=f"{NAME}-{position}",
                environment=NAME,
                split="train",
                classes=(GROUP,),
                initial_state={GROUP: ShownStart.of(start, has_folder).model_dump(mode="json", exclude_none=True)},
                tools=tuple(fleet.listing.tools),
            )
            for position, start in enumerate(starts)
        )
        for start in starts:
            self._check(start)

    def open(self, task: TaskSpec) -> PythonEpisode:
        """Open a fresh episode.

        Raises InputError for a task of another environment, or unknown classes, tools or states, and EnvironmentFault
        where no server can be brought to its start.
        """
        check_own(task, self, GROUP)
        start = self._read(task.initial_state)
        # Two replays of a task are two plays. Each compares with the reference, which need not be played anew.
        own, known = (partial(ServerWorld, self.fleet, start, cached) for cached in (self._cached, True))
        return PythonEpisode(task, own, known)

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """Return the documentation of the named tools, in the given order. Raises InputError for an unknown one."""
        known = self.fleet.listing.tools
        for name in names:
            if name not in known:
                raise InputError(f"the MCP server has no tool {name!r} for agents: use some of {', '.join(known)}")
        return tuple(known[name] for name in names)

    def starts(self) -> tuple[StartState, ...]:
        """Return the given start states."""
        return self._starts

    def start_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls of all start states, by the server's names of its tools."""
        return tuple(call for start in self._given for call in start.calls)

    def recorded(self) -> Self:
        """Return the same environment, in which a place that was seen before is not played again."""
        return type(self)(self.fleet, self._given, cached=True)

    def _read(self, initial_state: Mapping[str, JsonValue]) -> ServerStart:
        if initial_state.keys() != {GROUP}:
            raise InputError(f"an initial state of an MCP server is {{{GROUP!r}: {{'calls': .., 'files': ..}}}}")
        try:
            start = ShownStart.model_validate(initial_state[GROUP]).start()
        except ValidationError as error:
            raise InputError(
                f"the initial state of the task is not a start of an MCP server: {explain(error)}"
            ) from None
        self._check(start)
        return start

    def _check(self, start: ServerStart) -> None:
        listing = self.fleet.listing
        for call in start.calls:
            if call.name not in listing.listed:
                raise InputError(f"a start calls {call.name!r:.80}, which the MCP server does not have")
            if call.name not in listing.names.values() and "destroys" in listing.left_out.get(call.name, ""):
                raise InputError(f"a start calls {call.name}: {listing.left_out[call.name]}")
