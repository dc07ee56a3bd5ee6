"""The checkpointer that the command line and Studio share: SQLite in the run directory, one writer at a time."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from environments.base import InputError
from memory.run import RunDirectory

if TYPE_CHECKING:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

STUDIO_RUN = "COEVOLVE_RUN"
RUNS = Path("runs")


def studio_run() -> Path:
    """The run that Studio opens: the one that COEVOLVE_RUN names, else the newest below runs/.

    Raises InputError when there is none.
    """
    named = os.environ.get(STUDIO_RUN)
    if named:
        return Path(named)
    runs = sorted(RUNS.glob("*/settings.yaml"), key=lambda path: path.stat().st_mtime)
    if not runs:
        raise InputError(f"no run below {RUNS}/: make one with python -m graph.run_iteration or set {STUDIO_RUN}")
    return runs[-1].parent


@asynccontextmanager
async def run_checkpoints(run: RunDirectory) -> AsyncIterator[AsyncSqliteSaver]:
    """The checkpointer of ``run``, for whoever holds the run's lock."""
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(run.checkpoints_path)) as saver:
        yield saver


@asynccontextmanager
async def open_checkpoints() -> AsyncIterator[AsyncSqliteSaver]:
    """The checkpointer of Studio's run, named in langgraph.json; the run's lock is held while the server has it.

    Raises InputError when there is no run, or when another process works on it.
    """
    run = await asyncio.to_thread(_take)
    try:
        async with run_checkpoints(run) as saver:
            yield saver
    finally:
        await asyncio.to_thread(_release, run)


# The server opens its checkpointer once an event loop, and it may have several: they share the process's lock.
_guard = threading.Lock()
_held: dict[Path, tuple[int, ExitStack]] = {}


def _take() -> RunDirectory:
    run = RunDirectory.open(studio_run().resolve())
    with _guard:
        count, stack = _held.get(run.root, (0, ExitStack()))
        if count == 0:
            stack.enter_context(run.lock())
        _held[run.root] = (count + 1, stack)
    return run


def _release(run: RunDirectory) -> None:
    with _guard:
        count, stack = _held.pop(run.root)
        if count > 1:
            _held[run.root] = (count - 1, stack)
        else:
            stack.close()
