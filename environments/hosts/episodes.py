"""The open episodes of a host: opened, played and released by requests, each executed once, idle ones released.

Free of HTTP: ``environments.hosts.server`` puts requests in and sends answers out.
"""

from __future__ import annotations

import hashlib
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from environments.base import (
    Environment,
    EnvironmentDefect,
    EnvironmentFault,
    Episode,
    InputError,
    recorded,
)
from environments.hosts.messages import (
    MAX_REPLY,
    STATUS,
    Act,
    FailureKind,
    Health,
    HostFailure,
    HostRefusal,
    Identity,
    Opening,
    too_deep,
    written,
)

__all__ = ["HostAnswer", "HostedEpisodes", "failed"]


class HostAnswer(NamedTuple):
    """The status and the body of an answer."""

    status: int
    body: bytes


_DONE = HostAnswer(200, b"{}")


@dataclass
class _Held:
    """One open episode. ``lock`` is held while a request plays it; ``last`` is the act that was executed last."""

    opened_with: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    episode: Episode | None = None
    used: float = 0.0
    number: int = -1
    last: str = ""
    answer: HostAnswer = _DONE
    over: bool = False


class HostedEpisodes:
    """The episodes of ``environment`` that clients have open; for many threads.

    Args:
        environment: opened as ``identity`` says.
        identity: what is served; a client that plays something else is refused.
        capacity: episodes that can be open at a time.
        idle: seconds without a request after which an episode is released.
    """

    def __init__(self, environment: Environment, identity: Identity, *, capacity: int, idle: float) -> None:
        self.identity = identity
        self.capacity = capacity
        self.idle = idle
        self._environment = environment
        self._fingerprint = identity.fingerprint
        self._held: dict[str, _Held] = {}
        self._table = threading.Lock()
        self._opened = 0

    def health(self) -> Health:
        """Return what is served and how full the host is."""
        return Health(identity=self.identity, capacity=self.capacity, open=len(self._held), opened=self._opened)

    def tools(self, names: Sequence[str]) -> HostAnswer:
        """Return the documentation of tools."""
        return _answered(lambda: [tool.model_dump() for tool in self._environment.tools(names)])

    def starts(self) -> HostAnswer:
        """Return the start states."""
        return _answered(lambda: [start.model_dump() for start in self._environment.starts()])

    def open(self, opening: Opening) -> HostAnswer:
        """Open an episode; one that is open under the same id with the same task stays as it is.

        Raises HostRefusal for a client of something else, and for one episode more than ``capacity``.
        """
        if opening.fingerprint != self._fingerprint:
            raise HostRefusal(FailureKind.IDENTITY, "this host serves something else than the client plays")
        content = _digest(written(opening))
        held = _Held(content, used=time.monotonic())
        with held.lock:
            known = self._reserve(opening.id, held)
            answer = self._open(opening, held) if known is None else None
        if known is None:
            _close_released(held)
        if answer is not None:
            return answer
        with self._playing(opening.id) as (first, _):  # waits until the first request has opened it
            if first.opened_with != content:
                raise HostRefusal(FailureKind.NUMBER, "another task was opened under this id")
            return _DONE

    def _open(self, opening: Opening, held: _Held) -> HostAnswer:
        environment = recorded(self._environment) if opening.recorded else self._environment

        def play() -> dict[str, Any]:
            held.episode = environment.open(opening.task)
            return {}

        answer = _answered(play)
        held.used = time.monotonic()
        if held.episode is None:
            held.over = True
            with self._table:
                self._held.pop(opening.id, None)
        return answer

    def act(self, name: str, act: Act) -> HostAnswer:
        """Execute the next act of an episode, or repeat the answer to the last one.

        Raises HostRefusal for an episode that is not open, and for any other act.
        """
        with self._playing(name) as (held, episode):
            content = _digest(written(act))
            if act.number == held.number and content == held.last:
                return held.answer
            if act.number != held.number + 1:
                raise HostRefusal(
                    FailureKind.NUMBER,
                    f"act {act.number} is not the next one: {held.number + 1} were executed, and the last is repeated "
                    "for an equal request only",
                )
            # What an act answers is kept, an error too: it was executed.
            held.number, held.last, held.answer = act.number, content, _answered(lambda: _executed(episode, act))
            return held.answer

    def state(self, name: str) -> HostAnswer:
        """Return the state of an episode. Raises HostRefusal for one that is not open."""
        with self._playing(name) as (_, episode):
            return _answered(episode.state)

    def outcome(self, name: str) -> HostAnswer:
        """Return the outcome of an episode. Raises HostRefusal for one that is not open."""
        with self._playing(name) as (_, episode):
            return _answered(lambda: episode.outcome().model_dump())

    def release(self, name: str) -> HostAnswer:
        """Close an episode. Idempotent, also for an id that was never opened."""
        with self._table:
            held = self._held.pop(name, None)
        if held is not None:
            held.over = True
            _close_released(held)
        return _DONE

    def release_idle(self) -> int:
        """Close the episodes that no request came for in ``idle`` seconds; return how many they were."""
        latest = time.monotonic() - self.idle
        with self._table:
            # An episode that is being played is not idle, however long that takes.
            due = [name for name, held in self._held.items() if held.used < latest and not held.lock.locked()]
        for name in due:
            self.release(name)
        return len(due)

    def close(self) -> None:
        """Close all episodes."""
        for name in list(self._held):
            self.release(name)

    def _reserve(self, name: str, held: _Held) -> _Held | None:
        """Give ``held`` the place ``name``; return the episode that has it already."""
        if len(self._held) >= self.capacity:
            self.release_idle()
        with self._table:
            known = self._held.get(name)
            if known is not None:
                return known
            if len(self._held) >= self.capacity:
                raise HostRefusal(FailureKind.BUSY, f"{len(self._held)} episodes are open, this host has no more")
            self._held[name] = held
            self._opened += 1
            return None

    def _playing(self, name: str) -> _Playing:
        held = self._held.get(name)
        if held is None:
            raise HostRefusal(
                FailureKind.EPISODE,
                f"there is no such episode: it was released after {self.idle:g} s without a request, or this host was "
                "started after it had been opened",
            )
        return _Playing(held)


class _Playing:
    """Holds an episode while one request plays it."""

    def __init__(self, held: _Held) -> None:
        self._held = held

    def __enter__(self) -> tuple[_Held, Episode]:
        self._held.lock.acquire()
        if self._held.over or self._held.episode is None:
            self._held.lock.release()
            raise HostRefusal(FailureKind.EPISODE, "the episode was released")
        return self._held, self._held.episode

    def __exit__(self, *exception: object) -> None:
        self._held.used = time.monotonic()
        self._held.lock.release()
        _close_released(self._held)


def _close_released(held: _Held) -> None:
    """Close a released episode, unless a request still plays it: that one closes it at its end.

    A release never waits for an act that does not return, so that such acts do not use up the host's threads.
    """
    if held.over and held.lock.acquire(blocking=False):
        try:
            if held.episode is not None:
                with suppress(EnvironmentFault):  # nobody waits for it any more
                    held.episode.close()
        finally:
            held.lock.release()


def _executed(episode: Episode, act: Act) -> Any:  # noqa: ANN401 - JSON
    if act.does == "step":
        if act.action is None:
            raise HostRefusal(FailureKind.MESSAGE, "a step has no action")
        if too_deep(act.action):
            raise HostRefusal(FailureKind.MESSAGE, "the action's arguments are nested too deeply")
        return episode.step(act.action).model_dump()
    turn = episode.start() if act.does == "start" else episode.end_turn()
    return None if turn is None else turn.model_dump()


def _answered(play: Callable[[], Any]) -> HostAnswer:
    """Return what ``play`` returns as an answer, an error of the environment as a failure."""
    try:
        body = written(play())
    except HostRefusal as refusal:
        return failed(refusal)
    except Exception as error:  # noqa: BLE001 - whatever it is, the client is sent it, and the host goes on
        return failed(_refusal(error))
    if len(body) > MAX_REPLY:
        return failed(HostRefusal(FailureKind.TOO_LONG, f"the answer has {len(body)} bytes, more than {MAX_REPLY}"))
    return HostAnswer(200, body)


def failed(refusal: HostRefusal) -> HostAnswer:
    """Return the answer to a request that is not carried out."""
    failure: HostFailure = refusal.failure
    return HostAnswer(STATUS[failure.kind], written(failure))


def _refusal(error: Exception) -> HostRefusal:
    """Return what is answered where an environment raised ``error``."""
    if type(error) is RuntimeError:  # the contract's error of order; its subclasses are others
        return HostRefusal(FailureKind.ORDER, str(error))
    for kind, raised in _RAISED:
        if isinstance(error, raised):
            return HostRefusal(kind, str(error))
    return HostRefusal(FailureKind.DEFECT, _described(error))


_RAISED = (
    (FailureKind.INPUT, InputError),
    (FailureKind.DEFECT, EnvironmentDefect),
    (FailureKind.FAULT, EnvironmentFault),
    (FailureKind.RECURSION, RecursionError),
)


def _described(error: Exception) -> str:
    """Return an error that an environment should not have raised in one line, with its place."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
