"""Make an environment of the tools that a server offers: a few servers, episodes that share them, documentation.

A place is a start and the calls since. An episode holds no server: for each of its calls it leases one that is at its
place, or one that is brought there by playing the calls again. So any number of episodes is open at a time, a server
that died costs only its calls, and equal places may be answered from a cache. This needs a server that does equal
things when it is asked equal things, as verification does.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pydantic import JsonValue

from environments.answers import is_empty
from environments.base import (
    EnvironmentFault,
    InputError,
    Observation,
    ObservationStatus,
    Record,
    TaskSpec,
    ToolCall,
    ToolSpec,
    begun,
)
from environments.python_class.environment import PythonEpisode, ToolEnvironment, check_own
from environments.python_class.world import error_observation, refused

MAX_CACHED = 20_000


class ServerPlace(NamedTuple):
    """A start, and the calls since it, as an episode made them."""

    start: Record
    calls: tuple[ToolCall, ...] = ()

    def key(self) -> str:
        """Return a text that is equal for equal places."""
        return json.dumps([self.start.model_dump(), [call.model_dump() for call in self.calls]], sort_keys=True)

    def leads_to(self, place: ServerPlace) -> bool:
        """Return whether calls alone lead from here to ``place``."""
        return self.start == place.start and self.calls == place.calls[: len(self.calls)]


class ServerAnswer(NamedTuple):
    """The answer of a tool, or the refusal of a call: its text, and whether the call failed."""

    text: str
    failed: bool


class ServerView(NamedTuple):
    """What is seen at a place: the answer to its last call (None at the start), the state, the highest reward."""

    answer: ServerAnswer | None
    state: str
    reward: float | None = None


class NoRoom(EnvironmentFault):
    """A server has as many sessions as it allows."""


class PlayedServer(Protocol):
    """A running server, or a session of one. Methods but the last two raise EnvironmentFault for what it does wrong."""

    def begin(self, start: Any) -> None:  # noqa: ANN401 - the record that its environment makes of a start
        """Bring the server to a start."""
        ...

    def call(self, call: ToolCall) -> ServerAnswer:
        """Carry out one call."""
        ...

    def look(self) -> tuple[str, float | None]:
        """Return the state as canonical text, and the highest reward since the start."""
        ...

    def leave(self) -> None:
        """Ask the server to end, without waiting for it."""
        ...

    def close(self) -> None:
        """End the server. Idempotent."""
        ...


_Server = TypeVar("_Server", bound=PlayedServer)


@dataclass(eq=False)
class _Seat(Generic[_Server]):
    """A server of the fleet: its place, None where it has none or none needs it; whose calls brought it there."""

    server: _Server
    place: ServerPlace | None = None
    holder: object = None
    used: float = field(default_factory=time.monotonic)


class Fleet(Generic[_Server]):
    """The servers of one environment, for any number of threads.

    Args:
        new: starts a server. Raises EnvironmentFault where it does not start, NoRoom where no further one may.
        most: servers that are kept at a time, at most.
        patience: seconds that a call waits for a server.
        again: whether a server that was used can begin again; else a new one starts, one ahead.
        idle: seconds after which servers that no episode needs are ended; None: never.
    """

    def __init__(
        self, new: Callable[[], _Server], most: int, patience: float, *, again: bool, idle: float | None = None
    ) -> None:
        self._new = new
        self._most = self._room = most
        self._patience = patience
        self._again = again
        self._idle_seconds = idle
        self._idle: list[_Seat[_Server]] = []
        self._all: list[_Server] = []
        self._turn = threading.Condition()
        self._running = 0
        self._cache: dict[str, ServerView] = {}
        self._sweeper: threading.Timer | None = None
        weakref.finalize(self, _close_all, self._all)

    def start_one(self) -> None:
        """Start a server ahead of its use. Raises EnvironmentFault where it does not start."""
        self._running += 1
        self._add()

    def see(
        self,
        place: ServerPlace,
        *,
        cached: bool,
        heard: Sequence[ServerAnswer] | None = None,
        holder: object = None,
    ) -> ServerView:
        """Return what is seen at ``place``. Raises EnvironmentFault for what the server does wrong.

        ``cached``: a place that was seen before is not played again. ``heard`` are the answers to all calls but the
        last, which a server has to repeat where it plays them again; None: any answers. ``holder`` needs the server
        until it leaves.
        """
        key = place.key()
        with self._turn:
            if cached and key in self._cache:
                return self._cache[key]
        with self.at(place._replace(calls=place.calls[:-1]), heard) as seat:
            answer = seat.server.call(place.calls[-1]) if place.calls else None
            seen = ServerView(answer, *seat.server.look())
            seat.place, seat.holder = place, holder
        with self._turn:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[key] = seen
        return seen

    @contextmanager
    def at(self, place: ServerPlace, heard: Sequence[ServerAnswer] | None = None) -> Iterator[_Seat[_Server]]:
        """Lend a server at ``place``. One that failed meanwhile is ended."""
        seat = self._taken(place)
        try:
            here, seat.place = seat.place, None
            if here is None or not here.leads_to(place):
                seat.server.begin(place.start)
                here = ServerPlace(place.start)
            for number, call in enumerate(place.calls[len(here.calls) :], len(here.calls)):
                answer = seat.server.call(call)
                if heard is not None and answer != heard[number]:
                    raise EnvironmentFault("the server answers the same actions differently the second time")
            seat.place = place
            yield seat
        except BaseException:
            with self._turn:
                self._running -= 1
                self._turn.notify()
            self._end(seat)
            raise
        with self._turn:
            seat.used = time.monotonic()
            self._idle.append(seat)
            self._turn.notify()

    def leave(self, holder: object) -> None:
        """Let others have the server whose place ``holder`` needs no more."""
        with self._turn:
            for seat in self._idle if self._again else ():
                if seat.holder is holder:
                    seat.place = seat.holder = None
            self._sweep_later()

    def _taken(self, place: ServerPlace) -> _Seat[_Server]:
        """Take the idle server nearest to ``place``, one that nobody needs, a new one, or one that begins again."""
        due = time.monotonic() + self._patience
        while True:
            with self._turn:
                near = [one for one in self._idle if one.place and one.place.leads_to(place)]
                chosen = max(near, key=lambda one: len(one.place.calls) if one.place else 0, default=None)
                chosen = chosen or next((one for one in self._idle if one.place is None), None)
                full = self._running >= self._room
                if chosen is None and full and self._again:
                    chosen = next(iter(self._idle), None)
                if chosen is not None:
                    self._idle.remove(chosen)
                    if chosen.place is None and not self._again and not full:
                        self._running += 1
                        threading.Thread(target=self._warm, name="server-ahead", daemon=True).start()
                    return chosen
                replaced = self._idle.pop(0) if full and self._idle else None
                if full and replaced is None:
                    if not self._turn.wait(due - time.monotonic()):
                        raise EnvironmentFault(f"all {self._running} servers are busy")
                    continue
                self._running += not full
            if replaced is not None:
                self._end(replaced)
            try:
                return self._started()
            except NoRoom:
                if time.monotonic() > due:
                    raise

    def _warm(self) -> None:
        with suppress(EnvironmentFault):  # the episode that needs it next says why
            self._add()

    def _add(self) -> None:
        seat = self._started()
        with self._turn:
            self._idle.append(seat)
            self._turn.notify()

    def _started(self) -> _Seat[_Server]:
        try:
            server = self._new()
        except BaseException as error:
            with self._turn:
                self._running -= 1
                if isinstance(error, NoRoom):
                    self._room = self._running or self._most
                    if not self._running:  # those of another process, which may give one up
                        self._turn.wait((self._idle_seconds or 1.0) / 4)
                self._turn.notify()
            raise
        self._all.append(server)
        return _Seat(server)

    def _end(self, seat: _Seat[_Server]) -> None:
        with suppress(ValueError):
            self._all.remove(seat.server)
        seat.server.close()

    def _sweep_later(self) -> None:
        if self._idle_seconds is not None and self._sweeper is None and self._idle:
            self._sweeper = threading.Timer(self._idle_seconds, self._sweep)
            self._sweeper.daemon = True
            self._sweeper.start()

    def _sweep(self) -> None:
        """End the servers that no episode needs, and that none used lately."""
        assert self._idle_seconds is not None
        since = time.monotonic() - self._idle_seconds
        with self._turn:
            self._sweeper = None
            unused = [one for one in self._idle if one.place is None and one.used <= since]
            self._idle = [one for one in self._idle if one not in unused]
            self._running -= len(unused)
            self._room = self._most
            if any(one.place is None for one in self._idle):
                self._sweep_later()
        for seat in unused:
            self._end(seat)


def _close_all(servers: Sequence[PlayedServer]) -> None:
    """End servers whose fleet is gone. It may be found to be gone in any thread, also in the one that serves them."""
    if threading.current_thread() is not threading.main_thread():
        threading.Thread(target=_end, args=(servers,), name="servers-end").start()
    else:
        _end(servers)


def _end(servers: Sequence[PlayedServer]) -> None:
    for server in servers:
        server.leave()
    for server in servers:
        with suppress(Exception):
            server.close()


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
        empty = is_empty(text) and seen.state == before.state
        status = ObservationStatus.EMPTY if empty else ObservationStatus.OK
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
        if begun(task.initial_state).keys() != {self.group}:
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
