"""Ask an OpenEnv server over WebSockets. It is a stranger's, so every answer is read once, with limits.

Of an answer, one text frame of at most ``MAX_BYTES`` is accepted, within ``STEP_SECONDS``, as JSON of the documented
shape. Anything else raises ``EnvironmentFault`` and ends the session: a fault is never the agent's.

A server may allow few sessions, one by default. ``Host`` opens one more until the server refuses. From then on, a
session that is not in use is taken from its world, which begins anew when it is needed and repeats its actions there.
A process that plays nothing for ``IDLE_SECONDS`` gives its sessions up, because another one may need them.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal, Protocol

from pydantic import BaseModel, JsonValue, ValidationError, field_validator
from pydantic_core import from_json

from environments.addresses import Origin, origin_of
from environments.base import EnvironmentFault

MAX_BYTES = 1_048_576
CONNECT_SECONDS = 10.0
STEP_SECONDS = 60.0
IDLE_SECONDS = 1.0
SESSIONS = 64
_SHOWN = 200
_CAPACITY = "CAPACITY_REACHED"
_INVALID = "VALIDATION_ERROR"


class Refused(Exception):
    """The server does not accept an action, by its own schema. The message is the server's."""


class _NoRoom(Exception):
    """The server has as many sessions as it allows."""


class _Reported(EnvironmentFault):
    """The server reports an error of its own."""


class _Message(BaseModel):
    type: Literal["observation", "state", "error"]
    data: dict[str, JsonValue]


class Stepped(BaseModel):
    """The answer to a reset or an action. ``reward`` is finite, or None."""

    observation: dict[str, JsonValue]
    reward: float | None = None
    done: bool = False

    @field_validator("reward")
    @classmethod
    def _is_finite(cls, reward: float | None) -> float | None:
        if reward is not None and not math.isfinite(reward):
            raise ValueError("the reward is not finite")
        return reward


class Owner(Protocol):
    """What a session belongs to."""

    def begin(self, session: Session) -> None:
        """Bring the session into the owner's state."""
        ...


class Session:
    """One WebSocket, which is one environment of the server; used by one thread at a time."""

    def __init__(self, host: Origin) -> None:
        self._host = host
        self._connection: Any = None
        self.owner: Owner | None = None
        self.busy = True
        self.used = time.monotonic()

    def connect(self, address: str, headers: Mapping[str, str]) -> None:
        """Connect. Raises EnvironmentFault, and _NoRoom where the server allows no further session."""
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        try:
            self._connection = connect(
                address,
                additional_headers=headers,
                compression=None,  # a small message must not become a large one
                max_size=MAX_BYTES,
                open_timeout=CONNECT_SECONDS,
                close_timeout=1,
                proxy=None if self._host.is_loopback else True,
            ).__enter__()  # close() ends what this begins
        except (WebSocketException, OSError, EOFError, ValueError) as error:
            raise self._fault(f"cannot be reached ({_line(str(error))})") from None
        # A server without room says so in place of its first answer. One may have no state before a reset.
        with suppress(Refused, _Reported):
            self.state()

    def reset(self, **arguments: JsonValue) -> Stepped:
        """Begin an episode. Raises Refused, EnvironmentFault."""
        return self._stepped({"type": "reset", "data": arguments})

    def step(self, action: Mapping[str, JsonValue]) -> Stepped:
        """Take one action. Raises Refused, EnvironmentFault."""
        return self._stepped({"type": "step", "data": dict(action)})

    def state(self) -> dict[str, JsonValue]:
        """Return the server's state. Raises EnvironmentFault."""
        return self._asked({"type": "state"}, "state")

    def close(self) -> None:
        """Close the WebSocket without waiting for the server."""
        with suppress(Exception):  # whatever the socket is in the middle of
            self._connection.close_socket()

    def _stepped(self, message: dict[str, JsonValue]) -> Stepped:
        data = self._asked(message, "observation")
        try:
            return Stepped.model_validate(data)
        except ValidationError as error:
            raise self._fault(f"answered an observation of another shape ({_first(error)})") from None

    def _asked(self, message: dict[str, JsonValue], kind: str) -> dict[str, JsonValue]:
        from websockets.exceptions import ConnectionClosed, WebSocketException

        try:
            with suppress(TimeoutError):
                early = self._connection.recv(timeout=0)
                # A server over its capacity says so before it is asked.
                self._read(early, kind)
                raise self._fault("answered without being asked")
            with suppress(ConnectionClosed):  # what the server said before can still be read
                self._connection.send(json.dumps(message))
            return self._read(self._connection.recv(timeout=STEP_SECONDS), kind)
        except TimeoutError:
            raise self._fault(f"did not answer within {STEP_SECONDS:g} s") from None
        except (WebSocketException, OSError, EOFError) as error:
            raise self._fault(f"ended the connection ({_line(str(error))})") from None

    def _read(self, text: str | bytes, kind: str) -> dict[str, JsonValue]:
        if not isinstance(text, str):
            raise self._fault("answered bytes, not text")
        try:
            message = _Message.model_validate(from_json(text, allow_inf_nan=False))
        except ValidationError as error:
            raise self._fault(f"answered another message than documented ({_first(error)})") from None
        except ValueError as error:
            raise self._fault(f"answered no JSON ({_line(str(error))})") from None
        if message.type == "error":
            code, said = message.data.get("code"), _line(str(message.data.get("message")))
            if code == _CAPACITY:
                raise _NoRoom
            if code == _INVALID:
                raise Refused(_line(json.dumps(message.data.get("errors", said), ensure_ascii=False)))
            raise _Reported(f"the server {self._host} reports an error ({said})")
        if message.type != kind:
            raise self._fault(f"answered a message of the type {message.type}, not {kind}")
        return message.data

    def _fault(self, what: str) -> EnvironmentFault:
        return EnvironmentFault(f"the server {self._host} {what}")


class Host:
    """The sessions of one server, at most ``SESSIONS`` and as many as it allows; used by many threads.

    Args:
        url: http or https address, of the form that ``environments.addresses`` checks.
        token: what is sent as ``Authorization: Bearer TOKEN``; None to send nothing.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self._origin = origin_of(url)
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._sessions: list[Session] = []
        self._room = SESSIONS
        self._change = threading.Condition()
        self._sweeper: threading.Timer | None = None

    @contextmanager
    def session_of(self, owner: Owner) -> Iterator[Session]:
        """Lend a session that is in ``owner``'s state; after an exception it is closed. Raises EnvironmentFault."""
        session = self._lent(owner)
        try:
            if session.owner is not owner:
                session.owner = None
                owner.begin(session)
                session.owner = owner
            yield session
        except _NoRoom:
            self._drop(session)
            raise EnvironmentFault(f"the server {self._origin} ended a session for want of room") from None
        except Refused:
            self._give_back(session)
            raise
        except BaseException:
            self._drop(session)
            raise
        self._give_back(session)

    def leave(self, owner: Owner) -> None:
        """Give up the session of ``owner``, which does not need it any more."""
        with self._change:
            for session in self._sessions:
                if session.owner is owner:
                    session.owner = None
            if self._sweeper is None and self._sessions:
                self._sweep_later()

    def _sweep_later(self) -> None:
        self._sweeper = threading.Timer(IDLE_SECONDS, self._sweep)
        self._sweeper.daemon = True
        self._sweeper.start()

    def _sweep(self) -> None:
        """Close all sessions where none has an owner and none was used lately, else look again later."""
        with self._change:
            self._sweeper = None
            if any(one.busy or one.owner is not None for one in self._sessions):
                return  # leave() is called again
            if any(time.monotonic() < one.used + IDLE_SECONDS for one in self._sessions):
                self._sweep_later()
                return
            idle, self._sessions, self._room = self._sessions, [], SESSIONS
        for session in idle:
            session.close()

    def get(self, path: str) -> JsonValue:
        """Return what the server answers to a GET of ``path``. Raises EnvironmentFault."""
        import httpx

        due, text = time.monotonic() + CONNECT_SECONDS, b""
        try:
            with httpx.stream("GET", f"{self._url}/{path}", headers=self._headers, timeout=CONNECT_SECONDS) as answer:
                for part in answer.raise_for_status().iter_raw():
                    text += part
                    if len(text) > MAX_BYTES or time.monotonic() > due:
                        raise ValueError("it is too long, or takes too long")
            found: JsonValue = from_json(text, allow_inf_nan=False)
        except (httpx.HTTPError, ValueError) as error:
            raise EnvironmentFault(f"the server {self._origin} does not answer /{path} ({_line(str(error))})") from None
        return found

    def _lent(self, owner: Owner) -> Session:
        due = time.monotonic() + STEP_SECONDS
        while True:
            with self._change:
                idle = [one for one in self._sessions if not one.busy]
                full = len(self._sessions) >= self._room
                chosen = min(idle, key=lambda one: _preference(one, owner), default=None)
                if chosen is not None and (chosen.owner is None or chosen.owner is owner or full):
                    chosen.busy, chosen.used = True, time.monotonic()
                    return chosen
                if full:
                    if not self._change.wait(due - time.monotonic()):
                        raise EnvironmentFault(f"no session of the server {self._origin} became free")
                    continue
                reserved = Session(self._origin)
                self._sessions.append(reserved)
            if self._connected(reserved):
                return reserved
            if time.monotonic() > due:
                raise EnvironmentFault(f"the server {self._origin} has no room for a session")

    def _connected(self, session: Session) -> bool:
        """Connect a reserved session, or drop it: False where the server has no room for it."""
        try:
            session.connect(f"ws{self._url.removeprefix('http')}/ws", self._headers)
        except _NoRoom:
            self._drop(session)
            with self._change:
                self._room = len(self._sessions) or SESSIONS
                if not self._sessions:  # those of another process, which may give one up
                    self._change.wait(IDLE_SECONDS / 4)
            return False
        except BaseException:
            self._drop(session)
            raise
        return True

    def _drop(self, session: Session) -> None:
        session.close()
        with self._change:
            self._sessions.remove(session)
            self._change.notify_all()

    def _give_back(self, session: Session) -> None:
        with self._change:
            session.busy = False
            self._change.notify_all()


def _preference(session: Session, owner: Owner) -> tuple[bool, bool, float]:
    """Return a key that is least for the owner's own session, then a free one, then that which was used longest ago."""
    return session.owner is not owner, session.owner is not None, session.used


def _line(text: str) -> str:
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())[:_SHOWN]


def _first(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    return _line(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
