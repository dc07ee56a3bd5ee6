"""Process ids, on this machine, of the AppWorld engine's processes, which have others in the sandbox."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from environments.appworld.client import EngineProcess, World


def worker_of(world: World) -> EngineProcess:
    return world._connection.process


def zygote_pid(process: EngineProcess) -> int:
    """Raises psutil.NoSuchProcess."""
    first = psutil.Process(process._process.pid)
    # Bubblewrap's own process is the first, the zygote its child.
    return _with_number(first.children()[0], 2).pid


def world_pid(world: World) -> int:
    """Raises psutil.NoSuchProcess."""
    waiting = _with_number(psutil.Process(zygote_pid(worker_of(world))), world._connection.number)  # for the isolated
    return int(next((own.pid for own in waiting.children()), waiting.pid))


def _with_number(parent: psutil.Process, number: int) -> psutil.Process:
    """Return the child that has this id in its own namespace."""
    for child in parent.children():
        with suppress(OSError):  # it may end meanwhile
            lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
            if any(line.startswith("NSpid:") and line.split()[-1] == str(number) for line in lines):
                return child
    raise psutil.NoSuchProcess(number)
