"""Lends servers, each to one episode at a time, among all the threads and processes of this user on this machine."""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from environments.appworld.server_client import NoAnswer, Server
from environments.base import EnvironmentFault, InputError

_GREETING = 5.0  # seconds for the shortest of answers
_AVOIDED = 10.0  # seconds for which a server that failed is left out
_POLL = 0.05  # seconds
_PLAYED_ON = "plays another episode"

_held: dict[tuple[int, str], int] = {}  # (process, server) to the thread that holds it


class ServerPool:
    """Servers by their base URLs. Raises InputError for one that is none, or cannot be reached.

    A server keeps one world, so whoever opens another takes it over. Locks in the system's folder for temporary files
    keep this user's processes on this machine apart; others are noticed (``served_worlds.ServedWorld``).
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._servers = tuple(Server(url) for url in urls)
        self._avoided: dict[str, tuple[float, str]] = {}  # until when, and why
        self._next = itertools.count()
        for server in self._servers:
            try:
                server.check(_GREETING)
            except NoAnswer:  # at work for somebody: it may be free by the time that it is needed
                continue
            except EnvironmentFault as fault:
                raise InputError(
                    f"environment.servers: {fault}: start it with `appworld serve environment`, or leave it out"
                ) from fault

    def __len__(self) -> int:
        return len(self._servers)

    def lend(self, seconds: float, queue: float) -> Loan:
        """A server that is free and answers.

        Raises EnvironmentFault when none answers within about ``seconds``, or those that others play on are not given
        back within about ``queue`` seconds; InputError at once when this thread holds all of them: nobody could give
        one back.
        """
        self._refuse_endless_wait()
        began = time.monotonic()
        first = next(self._next)
        said: dict[str, str] = {}
        while True:
            for position in range(len(self)):
                server = self._servers[(first + position) % len(self)]
                until, said[server.url] = self._avoided.get(server.url, (0.0, ""))
                if until > time.monotonic():
                    continue
                loan, said[server.url] = self._try(server, min(_GREETING, seconds))
                if loan is not None:
                    return loan
            others = any(words.endswith(_PLAYED_ON) and not _is_mine(url) for url, words in said.items())
            limit = queue if others else seconds
            if time.monotonic() - began > limit:
                reasons = "; ".join(said.values())
                raise EnvironmentFault(f"no server of AppWorld was free within {limit:g} s: {reasons}")
            time.sleep(_POLL)

    def _try(self, server: Server, seconds: float) -> tuple[Loan | None, str]:
        """The server if it answers within ``seconds``, or why it cannot be had now."""
        lock = FileLock(_lock_path(server.url), thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None, f"{server.url} {_PLAYED_ON}"
        try:
            server.greet(seconds)
        except EnvironmentFault as fault:
            lock.release()
            self._avoided[server.url] = (time.monotonic() + _AVOIDED, str(fault))
            return None, str(fault)
        except BaseException:
            lock.release()
            raise
        return Loan(server, lock), ""

    def _refuse_endless_wait(self) -> None:
        if all(_is_mine(server.url) for server in self._servers):
            raise InputError(
                f"environment.servers names {len(self)}, and more AppWorld episodes than that are to be open at once: "
                "name more servers, or leave them out to use the project's own worker"
            )


class Loan:
    """A server that one episode has for itself until ``give_back``."""

    def __init__(self, server: Server, lock: FileLock) -> None:
        self.server = server
        self._lock = lock
        self._key = (os.getpid(), server.url)
        self._out = True
        _held[self._key] = threading.get_ident()

    def give_back(self) -> None:
        """Let others have it. Idempotent."""
        if self._out:
            self._out = False
            _held.pop(self._key, None)
            self._lock.release()


def _is_mine(url: str) -> bool:
    """Whether this thread holds the server, so that nobody else will give it back."""
    return _held.get((os.getpid(), url)) == threading.get_ident()


def _lock_path(url: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"coevolve-appworld-servers-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.lock"
