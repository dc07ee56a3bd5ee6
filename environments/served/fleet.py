"""Keep a few servers, and bring one of them to the place of an episode for each call.

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
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from environments.base import EnvironmentFault, Record, ToolCall

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
        self._cache: OrderedDict[str, ServerView] = OrderedDict()
        self._sweeper: threading.Timer | None = None
        weakref.finalize(self, _close_all, self._all)

    def start_one(self) -> None:
        """Start a server ahead of its use. Raises EnvironmentFault where it does not start."""
        self._running += 1
        self._idle.append(self._started())

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
                self._cache.move_to_end(key)
                return self._cache[key]
        with self.at(place._replace(calls=place.calls[:-1]), heard) as seat:
            answer = None
            for call in place.calls[-1:]:
                answer = seat.server.call(call)
            seen = ServerView(answer, *seat.server.look())
            seat.place, seat.holder = place, holder
        with self._turn:
            self._cache[key] = seen
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
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
            self._ended(seat)
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
                near = [one for one in self._idle if one.place is not None and one.place.leads_to(place)]
                free = [one for one in self._idle if one.place is None]
                chosen = max(near, key=lambda one: len(one.place.calls) if one.place else 0, default=None)
                chosen = chosen or next(iter(free), None)
                replaced = None
                if chosen is None and self._running < self._room:
                    self._running += 1
                elif chosen is None and self._idle and self._again:
                    chosen = self._idle[0]
                elif chosen is None and self._idle:
                    replaced = self._idle.pop(0)
                elif chosen is None:
                    if not self._turn.wait(due - time.monotonic()):
                        raise EnvironmentFault(f"all {self._running} servers are busy")
                    continue
                if chosen is not None:
                    self._idle.remove(chosen)
                    self._start_ahead(chosen)
                    return chosen
            if replaced is not None:
                self._end(replaced)
            try:
                return self._started()
            except NoRoom:
                if time.monotonic() > due:
                    raise

    def _start_ahead(self, chosen: _Seat[_Server]) -> None:
        if chosen.place is None and not self._again and self._running < self._room:
            self._running += 1
            threading.Thread(target=self._warm, name="server-ahead", daemon=True).start()

    def _warm(self) -> None:
        with suppress(EnvironmentFault):  # the episode that needs it next says why
            seat = self._started()
            with self._turn:
                self._idle.append(seat)
                self._turn.notify()

    def _started(self) -> _Seat[_Server]:
        """Start a server, for which there is room."""
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

    def _ended(self, seat: _Seat[_Server]) -> None:
        with self._turn:
            self._running -= 1
            self._turn.notify()
        self._end(seat)

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
