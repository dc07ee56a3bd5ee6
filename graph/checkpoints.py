"""The checkpointer that the command line and Studio share: SQLite in the run directory, one writer at a time.

Both find the graph of an iteration by the id of its thread there.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING

from environments.base import InputError
from environments.terminal import say
from memory.run import RunDirectory

if TYPE_CHECKING:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

STUDIO_RUN = "COEVOLVE_RUN"
RUNS = Path("runs")


def thread_id(iteration: int) -> str:
    """Return the thread of an iteration; running a thread again would append to the results of its branches.

    Studio's server takes UUIDs only: this one ends in the iteration's number.
    """
    return f"00000000-0000-4000-8000-{iteration:012d}"


def studio_run() -> Path:
    """Return the run that Studio opens: the one that COEVOLVE_RUN names, else the newest below runs/ except copies.

    Raises InputError when there is none.
    """
    named = os.environ.get(STUDIO_RUN)
    if named:
        return Path(named)
    found = (run.settings_path for run in map(RunDirectory, RUNS.glob("*")) if not run.fork_path.exists())
    runs = sorted((path for path in found if path.is_file()), key=lambda path: path.stat().st_mtime)
    if not runs:
        raise InputError(f"no run below {RUNS}/: make one with coevolve evolve, or set {STUDIO_RUN}")
    return runs[-1].parent


def discard_damaged(path: Path) -> bool:
    """Remove a database that cannot be read, so that a new one is made; return whether it was removed.

    No record is lost: they are in JSON files, and the iteration's graph begins afresh. Raises sqlite3.OperationalError
    where the disk, not the file, is the cause.
    """
    if not path.is_file() or _is_whole(path):
        return False
    for suffix in ("", "-wal", "-shm"):  # a new one must not replay the damaged one's
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return True


def _is_whole(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path)) as database:
            return bool(database.execute("pragma quick_check(1)").fetchone() == ("ok",))
    except sqlite3.OperationalError:  # a full disk, a missing permission
        raise
    except sqlite3.DatabaseError:
        return False


@asynccontextmanager
async def run_checkpoints(run: RunDirectory) -> AsyncIterator[AsyncSqliteSaver]:
    """Open the checkpointer of ``run``; the caller holds the run's lock. A damaged one is replaced, with a warning.

    It is checked first, because the library opens it in a thread of its own, whose failure would go unnoticed.
    """
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    if await asyncio.to_thread(discard_damaged, run.checkpoints_path):
        say(f"warning: {run.checkpoints_path} is damaged and made anew: the iteration's graph begins afresh")
    async with AsyncSqliteSaver.from_conn_string(str(run.checkpoints_path)) as saver:
        yield saver


@asynccontextmanager
async def open_checkpoints() -> AsyncIterator[AsyncSqliteSaver]:
    """Open the checkpointer of Studio's run, named in langgraph.json; the run's lock is held while the server has it.

    Raises InputError when there is no run, or when another process works on it.
    """
    run = await asyncio.to_thread(_take)
    try:
        async with run_checkpoints(run) as saver:
            yield saver
    finally:
        await asyncio.to_thread(_release, run)


# The server opens its checkpointer once per event loop, and may have several loops: they share the process's lock.
_guard = threading.Lock()
_held: dict[Path, tuple[int, ExitStack]] = {}


def opened_run() -> RunDirectory:
    """Return the run that a server in this process has opened, or would open. Raises InputError without one."""
    with _guard:
        root = next(iter(_held), None)
    return RunDirectory.open(root or studio_run().resolve())


def _take() -> RunDirectory:
    run = opened_run()
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
