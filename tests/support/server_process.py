"""A server that a command starts, in a process group of its own, for as long as a block runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx


@dataclass(frozen=True)
class RunningServer:
    """A started server: its ``url``, and its process, which leads the group of all of its processes."""

    url: str
    process: subprocess.Popen[bytes]

    def answers(self, path: str, statuses: Collection[int] = (200,)) -> bool:
        """Return whether ``path`` answers with one of the statuses within two seconds."""
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}{path}", timeout=2.0, trust_env=False).status_code in statuses
        return False


@contextmanager
def running(
    argv: Sequence[str],
    log: Path,
    health: str = "/health",
    statuses: Collection[int] = (200,),
    *,
    port: int = 0,
    seconds: float = 120.0,
    ends_by: signal.Signals = signal.SIGTERM,
    **given: Any,
) -> Iterator[RunningServer]:
    """Run ``argv`` with a free port, or ``port``, in place of "PORT", from when ``health`` answers.

    It is ended by the signal ``ends_by``, and 20 seconds later with all that is left of its group.
    """
    with socket.socket() as free:
        # A server that was killed a moment ago leaves connections that wait at its address.
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))
        port = free.getsockname()[1]
    command = [str(port) if word == "PORT" else word for word in argv]
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, process_group=0, **given)
    server = RunningServer(f"http://127.0.0.1:{port}", process)
    try:
        end = time.monotonic() + seconds
        while not server.answers(health, statuses):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < end, log.read_text()[-4000:]
            time.sleep(0.2)
        yield server
    finally:
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, ends_by)
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
