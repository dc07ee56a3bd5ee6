"""One holder at a time: a lock file, and beside it the process that holds it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from environments.base import InputError

__all__ = ["exclusive", "forget", "holder", "shared"]

# Locks that this process holds, by resolved path: the process that took each (a forked child holds none of them).
_held: dict[Path, int] = {}
# How many parts of this process share a lock, and what gives it up.
_shares: dict[Path, tuple[int, ExitStack]] = {}
# Reentrant: the garbage collector may end a part that was never closed while this thread holds it.
_guard = threading.RLock()


def _holder_file(lock: Path) -> Path:
    # Not the lock file itself: some versions of filelock truncate it when a second process tries.
    return lock.with_name(f"{lock.name}.pid")


def holder(lock: Path) -> int | None:
    """The process id that wrote itself down as the holder of ``lock``; None when nobody did.

    It says who holds a lock that could not be had, not whether it is held: a killed holder's id stays behind.
    """
    try:
        return int(_holder_file(lock).read_text())
    except (FileNotFoundError, ValueError):
        return None


@contextmanager
def exclusive(lock: Path, subject: str) -> Iterator[None]:
    """Hold ``lock`` for the duration of the block, without waiting for it.

    The lock ends with the process, however that ends. Raises InputError naming ``subject`` and the holder's process
    id when another process, or another part of this one, holds it.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    file_lock = FileLock(lock, blocking=False, thread_local=False)
    try:
        file_lock.acquire()
    except Timeout:
        raise InputError(_in_use(holder(lock), subject)) from None
    resolved = lock.resolve()
    _held[resolved] = os.getpid()
    try:
        with suppress(OSError):  # on a full disk: the lock holds without it
            _holder_file(lock).write_text(str(os.getpid()))
        yield
    finally:
        del _held[resolved]
        _holder_file(lock).unlink(missing_ok=True)
        file_lock.release()


@contextmanager
def shared(lock: Path, subject: str) -> Iterator[None]:
    """Hold ``lock`` together with every other part of this process that does, against all other processes.

    Where a caller of this process holds it by ``exclusive`` for longer, nothing is taken. Raises InputError naming
    ``subject`` and the holder's process id when another process holds it.
    """
    resolved = lock.resolve()
    with _guard:
        owned = _held.get(resolved) == os.getpid() and resolved not in _shares
        if not owned:
            count, stack = _shares.get(resolved, (0, ExitStack()))
            if count == 0:
                stack.enter_context(exclusive(lock, subject))
            _shares[resolved] = (count + 1, stack)
    try:
        yield
    finally:
        if not owned:
            with _guard:
                count, stack = _shares.pop(resolved)
                if count > 1:
                    _shares[resolved] = (count - 1, stack)
                else:
                    stack.close()


def forget(lock: Path) -> None:
    """Remove the files of a lock, for its holder, where what it guards is removed too."""
    for path in (_holder_file(lock), lock):
        path.unlink(missing_ok=True)


def _in_use(pid: int | None, subject: str) -> str:
    if pid == os.getpid():
        return f"this process (pid {pid}) already uses {subject}: close it first"
    who = "another process" if pid is None else f"another process (pid {pid})"
    return f"{who} uses {subject}: wait until it ends or stop it"
