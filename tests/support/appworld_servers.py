"""Starts `appworld serve environment` processes on a copy of the world's root, and always ends them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from environments.appworld.installation import Installation
from environments.appworld.servers import Server
from environments.base import EnvironmentFault

__all__ = ["Serving", "serving"]

BOOT = 300.0  # seconds until all servers must answer
_ANSWER = 5.0  # seconds for one answer of a server that has booted
_POLL = 0.05  # seconds
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "APPWORLD_CACHE")


class Serving(NamedTuple):
    """A server that responds: its base URL, process id and AppWorld root."""

    url: str
    pid: int
    root: Path


@contextmanager
def serving(installation: Installation, count: int) -> Iterator[Sequence[Serving]]:
    """``count`` servers of the installation's world, each booted, on ports of their own.

    They write to a folder that is removed afterwards. They listen on every interface, without a password: that is how
    the package starts them. Raises RuntimeError, with the end of a log, when one does not answer in time.
    """
    folder = Path(tempfile.mkdtemp(prefix="coevolve-appworld-servers-"))
    (folder / "data").symlink_to(installation.full / "data")
    processes: list[subprocess.Popen[bytes]] = []
    try:
        servers = []
        for port in _free_ports(count):
            processes.append(_start(installation, folder, port))
            servers.append(Serving(f"http://127.0.0.1:{port}", processes[-1].pid, folder))
        deadline = time.monotonic() + BOOT
        for server, process in zip(servers, processes, strict=True):
            _wait_for(server, process, folder, deadline)
        yield servers
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # SIGTERM does not end one whose world is open
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _start(installation: Installation, folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = [str(installation.python.parent / "appworld"), "serve", "environment", "--no-show-usage"]
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    with (folder / f"{port}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--port", str(port), "--root", str(folder)],
            cwd=folder,
            env=kept | {"PYTHON_DOTENV_DISABLED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _wait_for(server: Serving, process: subprocess.Popen[bytes], folder: Path, deadline: float) -> None:
    while True:
        try:
            Server(server.url).greet(_ANSWER)
            return
        except EnvironmentFault as fault:
            if process.poll() is not None or time.monotonic() > deadline:
                log = (folder / f"{server.url.rpartition(':')[2]}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{fault}; the end of its log:\n{log}") from fault
        time.sleep(_POLL)
