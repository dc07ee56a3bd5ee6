"""The engine's processes as this machine numbers them: behind the wall they have numbers of their own."""

from __future__ import annotations

from pathlib import Path

import psutil  # type: ignore[import-untyped]

from environments.appworld.client import World
from environments.appworld.engine_process import EngineProcess

_ZYGOTE = 2  # its number behind the wall, where bubblewrap is the first


def zygote_pid(process: EngineProcess) -> int:
    """The worker or the judge itself, below bubblewrap's two processes."""
    if not process.walled:
        return process.pid
    for first in psutil.Process(process.pid).children():
        for child in first.children():
            if _numbers(child.pid)[-1] == _ZYGOTE:
                return int(child.pid)
    raise psutil.NoSuchProcess(process.pid)


def waiting_pid(world: World) -> int:
    """The child of the worker that the worker knows: it waits for the world's own process."""
    if not world.process.walled:
        return world.pid
    for child in psutil.Process(zygote_pid(world.process)).children():
        if _numbers(child.pid)[-1] == world.pid:
            return int(child.pid)
    raise psutil.NoSuchProcess(world.pid)


def world_pid(world: World) -> int:
    """The process that agents' code runs in."""
    if not world.process.walled:
        return world.pid
    (enclosed,) = psutil.Process(waiting_pid(world)).children()
    return int(enclosed.pid)


def _numbers(pid: int) -> list[int]:
    """The process's numbers, from this machine's to its innermost namespace's."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    return [int(number) for line in lines if line.startswith("NSpid:") for number in line.split()[1:]]
