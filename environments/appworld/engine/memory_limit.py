"""Limit the memory of an agent's code, with a reserve for the engine that runs it."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_RESERVE = 512 * 1024 * 1024  # bytes for saving and comparing databases while the code's data fill its share


class MemoryLimit:
    """Limit the growth of the process's address space; beyond it is a MemoryError. Linux only: elsewhere no limit.

    The limit holds inside ``applied``; outside, the engine has a reserve. Create it while there is a ``/proc``, which
    the sandbox removes.
    """

    def __init__(self) -> None:
        self._code = self._most = resource.RLIM_INFINITY
        self._size = open("/proc/self/statm", "rb", buffering=0) if sys.platform == "linux" else None  # noqa: SIM115

    def set(self, megabytes: int) -> None:
        """Allow a growth of ``megabytes`` from the current size. Call once."""
        if self._size is None:
            return
        with self._size:
            used = int(self._size.read(100).split()[0]) * resource.getpagesize()
        self._code = used + megabytes * 1024 * 1024
        self._most = self._code + _RESERVE
        resource.setrlimit(resource.RLIMIT_AS, (self._most, self._most))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Hold the code's own limit while the block runs."""
        resource.setrlimit(resource.RLIMIT_AS, (self._code, self._most))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (self._most, self._most))
