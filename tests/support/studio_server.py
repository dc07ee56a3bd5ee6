"""Serves a run as `coevolve studio` does, for tests that ask the server as Studio's page would."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

from environments.checkout import child_variables
from memory.processes import end_of_log
from memory.run import RunDirectory

__all__ = ["serving"]

BOOT = 120.0  # seconds until the server answers, on a busy machine
GRACE = 20.0  # seconds between SIGINT and SIGKILL
_COMMAND = (sys.executable, "-m", "graph.command", "studio")  # `coevolve studio`


@contextmanager
def serving(run: RunDirectory) -> Iterator[SyncLangGraphClient]:
    """Serve ``run`` from an empty folder, and end the server. Raises RuntimeError with its log where it does not start.

    The server keeps its list of threads in that folder.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log, url = Path(folder) / "server.log", f"http://127.0.0.1:{port}"
        argv = [*_COMMAND, "--run", str(run.root), "--no-browser", "--port", str(port)]
        environment = {**os.environ, **child_variables()}
        with log.open("wb") as out:
            server = subprocess.Popen(argv, cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            end = time.monotonic() + BOOT
            while not _answers(url):
                if server.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"no server: {end_of_log(log, 0)}")
                time.sleep(0.2)
            yield get_sync_client(url=url)
        finally:
            _end(server)


def _answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{url}/ok", timeout=2).read())
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server as Ctrl-C does, then whatever is left of its group."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(server.pid, signal.SIGINT)
        server.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
