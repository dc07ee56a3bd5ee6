"""Limits the memory of an agent's code, and leaves the engine that runs it room to go on."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_RESERVE = 512 * 1024 * 1024  # bytes for saving and comparing databases while the code's data fill its share


class MemoryLimit:
    """The process's address space may grow by ``megabytes`` from what it is now; beyond it is a MemoryError.

    The limit holds inside ``applied``; outside, the engine has a reserve. Linux only: elsewhere there is none.
    """

    def __init__(self, megabytes: int) -> None:
        self._code = self._most = resource.RLIM_INFINITY
        if sys.platform != "linux":
            return
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
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
