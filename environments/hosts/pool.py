"""Reach hosts of an environment over HTTP: deadlines, repeated requests, hosts that are full, hung, gone or another's.

Every request may be sent again: what a host has executed it answers from its record (``environments.hosts.messages``).
That is done where the connection broke, and within the request's deadline; not where the deadline passed.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from typing import Any

import httpx
from pydantic import BaseModel, ValidationError

from environments.base import EnvironmentDefect, EnvironmentFault, InputError, TaskSpec
from environments.hosts.messages import (
    MAX_REPLY,
    TOKEN,
    FailureKind,
    Health,
    HostFailure,
    Identity,
    Opening,
    read,
    written,
)

__all__ = ["Host", "HostLost", "HostPool"]

GREETING = 5.0  # seconds for the shortest of answers
FRESH = 5.0  # seconds after an answer for which a host counts as alive without being asked
AVOIDED = 10.0  # seconds for which a host that failed is left out
TRIES = 3  # times that a request is sent at most
PAUSE = 0.05  # seconds before a request is sent again, times two each time
QUEUE = 600.0  # seconds that an episode waits for a place on a full host
RETRY = 1.0  # seconds before full hosts are asked again, where they name no time
LONGEST_RETRY = 30.0  # seconds, whatever a host names
_QUOTED = 500  # characters of an answer that is not a host's
_IDLE_CONNECTION = 30.0  # seconds; shorter than a host keeps it


class HostLost(EnvironmentFault):
    """The host did not answer, or what answers is not a host: it may be tried again later, its episodes are lost."""


class _WrongToken(HostLost):
    """The host wants another token."""


class _HostBusy(Exception):
    """As many episodes are open as the host can have; ``seconds`` is when to ask again."""

    def __init__(self, detail: str, seconds: float) -> None:
        super().__init__(detail)
        self.seconds = seconds


class Host:
    """One host by its base URL, for many threads; reached directly, without a proxy that variables name."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self.capacity = 0
        """Episodes that it can have open; 0 until it has said so."""
        self.open = 0
        """Episodes that this process has open there."""
        self.avoided_until = 0.0
        self.why = "it was not asked yet"
        self._answered = float("-inf")
        bearer = {} if token is None else {"authorization": f"Bearer {token}"}
        self._headers = httpx.Headers({"content-type": "application/json"} | bearer)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=_IDLE_CONNECTION)
        # The transport without a client around it: cookies, redirects and proxies take a third of a request's time.
        self._transport = httpx.HTTPTransport(trust_env=False, limits=limits)

    def greet(self, identity: Identity) -> None:
        """Ask what it serves, and how many episodes it can have.

        Raises HostLost where it does not answer as a host, InputError for another identity and for a wrong token.
        """
        try:
            health = Health.model_validate(self.ask("GET", "/health", None, GREETING))
        except ValidationError as error:
            raise self.lost(f"its health cannot be read: {error.errors()[0]['msg']}") from error
        except _WrongToken as refused:
            raise InputError(f"environment.hosts: {refused}: set {TOKEN} to what the host was started with") from None
        other = identity.difference(health.identity)
        if other is not None:
            raise InputError(
                f"environment.hosts: {self.url} serves {other}: start it from the same checkout, with the same "
                "packages and the run's recipe, or leave it out"
            )
        self.capacity = health.capacity

    def greet_if_silent(self, identity: Identity) -> None:
        """Call ``greet`` unless it has just answered: a host that hangs accepts requests and answers none."""
        if not self.capacity or time.monotonic() - self._answered > FRESH:
            self.greet(identity)

    def ask(self, method: str, path: str, message: BaseModel | None, seconds: float) -> Any:  # noqa: ANN401 - JSON
        """Return the answer to a request within ``seconds``; one whose connection broke is sent again until then.

        Raises HostLost when there is none, what the environment raised when that is the answer, and EnvironmentFault
        for any other failure.
        """
        body = None if message is None else written(message)
        deadline = time.monotonic() + seconds
        for attempt in range(TRIES):
            try:
                status, answer, retry = self._answer(method, path, body, deadline, seconds)
                break
            except httpx.TimeoutException as error:
                raise self._late(path, seconds) from error
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                pause = PAUSE * 2**attempt
                if attempt + 1 == TRIES or time.monotonic() + pause > deadline:
                    raise self.lost(f"{_shown(path)} failed: {error or type(error).__name__}") from error
                time.sleep(pause)
        self._answered = time.monotonic()
        try:
            plain = read(answer)
            failure = None if status == HTTPStatus.OK else HostFailure.model_validate(plain)
        except ValueError as error:  # pydantic's too
            said = answer[:_QUOTED].decode(errors="replace").strip()
            raise self.lost(f"it answered {_shown(path)} with HTTP status {status}, not as a host: {said}") from error
        if failure is not None:
            raise self._raised(failure, retry)
        return plain

    def lost(self, what: str) -> HostLost:
        """Return the fault that reports ``what`` happened."""
        return HostLost(f"environment host {self.url}: {what}")

    def _answer(
        self, method: str, path: str, body: bytes | None, deadline: float, seconds: float
    ) -> tuple[int, bytes, str | None]:
        left = max(deadline - time.monotonic(), 0.001)
        parts: list[bytes] = []
        size = 0
        timeout = {"timeout": httpx.Timeout(left).as_dict()}
        request = httpx.Request(method, self.url + path, headers=self._headers, content=body, extensions=timeout)
        response = self._transport.handle_request(request)
        with closing(response):
            for part in response.iter_raw():
                parts.append(part)
                size += len(part)
                if size > MAX_REPLY:
                    raise EnvironmentFault(
                        f"environment host {self.url}: its answer to {_shown(path)} is longer than {MAX_REPLY} bytes"
                    )
                if time.monotonic() > deadline:
                    raise self._late(path, seconds)
        return response.status_code, b"".join(parts), response.headers.get("retry-after")

    def _late(self, path: str, seconds: float) -> HostLost:
        return self.lost(f"it did not answer {_shown(path)} within {seconds:g} s")

    def _raised(self, failure: HostFailure, retry: str | None) -> Exception:
        if failure.kind in _AS_RAISED:
            return _AS_RAISED[failure.kind](failure.detail)
        detail = f"environment host {self.url}: {failure.detail}"
        if failure.kind is FailureKind.BUSY:
            seconds = float(retry) if retry is not None and retry.isdecimal() else RETRY
            return _HostBusy(detail, min(seconds, LONGEST_RETRY))
        return _FAULTS.get(failure.kind, EnvironmentFault)(detail)


_AS_RAISED = {
    FailureKind.INPUT: InputError,
    FailureKind.ORDER: RuntimeError,
    FailureKind.RECURSION: RecursionError,
}
_FAULTS = {
    FailureKind.DEFECT: EnvironmentDefect,
    FailureKind.TOKEN: _WrongToken,
    FailureKind.IDENTITY: HostLost,  # it is asked what it serves before it is used again
}


class HostPool:
    """Hosts that serve ``identity``; opens each episode on the least loaded one that answers.

    ``seconds`` is the deadline of a request. Raises InputError from every method where a host serves something else.
    """

    def __init__(
        self, urls: Sequence[str], identity: Callable[[], Identity], token: str | None, seconds: float
    ) -> None:
        self.hosts = tuple(Host(url, token) for url in urls)
        self.seconds = seconds
        self._identity_of = identity
        self._identity: Identity | None = None
        self._turn = itertools.count()
        self._lock = threading.Lock()
        self._meeting = threading.Lock()

    @property
    def capacity(self) -> int:
        """The episodes that all hosts that answer can have open. Raises EnvironmentFault when none answers."""
        with self._meeting:
            if not any(host.capacity for host in self.hosts):
                self._meet()
        return sum(host.capacity for host in self.hosts)

    def check(self) -> None:
        """Raise InputError naming the first host that does not answer, or serves something else."""
        for host, why in zip(self.hosts, self._greeted(), strict=True):
            if why is not None:
                raise InputError(
                    f"environment.hosts: {why}: start {host.url} with `coevolve environment serve`, or leave it out"
                ) from why

    def open(self, task: TaskSpec, *, recorded: bool) -> tuple[Host, str]:
        """Open an episode; return its host and its id there.

        Raises InputError as the environment does, and where all hosts serve something else; EnvironmentFault when no
        host answers (with the last cause), when all stay full for ``QUEUE`` seconds, and when the environment cannot
        open it.
        """
        began = time.monotonic()
        while True:
            wait = None
            refused: list[InputError] = []
            for host in self._by_load():
                try:
                    host.greet_if_silent(self._wanted)
                except (HostLost, InputError) as error:
                    refused += [error] if isinstance(error, InputError) else []
                    self.avoid(host, error)
                    continue
                try:
                    return host, self._open_on(host, task, recorded)
                except HostLost as lost:
                    self.avoid(host, lost)
                except _HostBusy as busy:
                    host.why = str(busy)
                    wait = min(busy.seconds, wait or LONGEST_RETRY)
            if len(refused) == len(self.hosts):
                raise refused[-1]
            said = "; ".join(host.why for host in self.hosts)
            if wait is None:
                raise EnvironmentFault(f"no environment host can be reached: {said}")
            if time.monotonic() - began + wait > QUEUE:
                raise EnvironmentFault(f"no environment host had a place for an episode within {QUEUE:g} s: {said}")
            time.sleep(wait)

    def _open_on(self, host: Host, task: TaskSpec, recorded: bool) -> str:
        name = secrets.token_hex(16)
        opening = Opening(id=name, fingerprint=self._wanted.fingerprint, task=task, recorded=recorded)
        with self._lock:
            host.open += 1
        try:
            host.ask("POST", "/episodes", opening, self.seconds)
        except BaseException:
            self.give_back(host)
            raise
        return name

    def avoid(self, host: Host, why: Exception) -> None:
        """Leave a host out for a while, and ask it what it serves before it is used again."""
        host.avoided_until, host.why, host.capacity = time.monotonic() + AVOIDED, str(why), 0

    def give_back(self, host: Host) -> None:
        """Count one episode less on ``host``."""
        with self._lock:
            host.open -= 1

    def _by_load(self) -> Iterator[Host]:
        """Yield each host once, the least loaded first, in turn; where all are left out, all of them."""
        now, first = time.monotonic(), next(self._turn) % len(self.hosts)
        in_turn = [*self.hosts[first:], *self.hosts[:first]]
        waiting = [host for host in in_turn if host.avoided_until <= now] or in_turn
        while waiting:
            with self._lock:
                chosen = min(waiting, key=lambda host: host.open / (host.capacity or 1))
            waiting.remove(chosen)
            yield chosen

    def _meet(self) -> None:
        said = self._greeted()
        if all(why is not None for why in said):
            raise EnvironmentFault(f"no environment host can be reached: {said[-1]}") from said[-1]

    def _greeted(self) -> list[HostLost | None]:
        """Greet all hosts; return what failed of each."""
        identity = self._wanted

        def greeted(host: Host) -> HostLost | None:
            try:
                host.greet(identity)
            except HostLost as lost:
                self.avoid(host, lost)
                return lost
            return None

        with ThreadPoolExecutor(len(self.hosts)) as pool:
            return list(pool.map(greeted, self.hosts))

    @property
    def _wanted(self) -> Identity:
        if self._identity is None:
            self._identity = self._identity_of()
        return self._identity


def _shown(path: str) -> str:
    """Return a request's path without the id of its episode, which differs from run to run."""
    parts = path.split("/")
    return "/".join("ID" if len(part) == 32 else part for part in parts)
