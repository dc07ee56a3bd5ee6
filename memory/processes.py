"""Child processes that never outlive their parent, and locks with one holder at a time.

A parent starts a child with ``run_child``: in a process group of its own, with a timeout, its output in a log file, and
one end of a pipe in ``COEVOLVE_PARENT_PIPE``. The child first calls ``watch_parent``: when the parent ends, for
whatever reason, the pipe closes and the child ends, too. It runs its command with ``run_to_end``.

``exclusive`` and ``shared`` hold a lock file, and write its holder's process id beside it. ``hold_lock`` is the lock of
a child, which a resumed parent can take over from an orphan.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil  # type: ignore[import-untyped]
from filelock import FileLock, Timeout

from environments.base import InputError, Record
from environments.import_path import child_variables
from memory.jsonl import write_json

__all__ = [
    "PARENT_PIPE",
    "ChildFailure",
    "Holder",
    "end_of_log",
    "exclusive",
    "forget",
    "hold_lock",
    "holder",
    "run_child",
    "run_to_end",
    "shared",
    "watch_parent",
]

# Locks that this process holds: the process that took each by resolved path (a forked child holds none of them).
_held: dict[Path, int] = {}
# How many parts of this process share a lock, and the stack that releases it.
_shares: dict[Path, tuple[int, ExitStack]] = {}
# Reentrant: the garbage collector may close an abandoned part while this thread holds the guard.
_guard = threading.RLock()


def _holder_file(lock: Path) -> Path:
    # Not the lock file itself: some versions of filelock truncate it when a second process tries.
    return lock.with_name(f"{lock.name}.pid")


def holder(lock: Path) -> int | None:
    """Return the process id recorded beside ``lock``; None where there is none.

    It names the holder of a lock that could not be taken. It does not show that the lock is held: a killed holder's id
    stays.
    """
    try:
        return int(_holder_file(lock).read_text())
    except (FileNotFoundError, ValueError):
        return None


@contextmanager
def exclusive(lock: Path, subject: str) -> Iterator[None]:
    """Hold ``lock`` while the block runs, without waiting for it.

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
    """Hold ``lock`` against all other processes, jointly with other parts of this one.

    Nothing is taken where a caller in this process already holds it by ``exclusive``. Raises InputError naming
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
    """Remove the files of a lock; its holder calls this when it removes the guarded files."""
    for path in (_holder_file(lock), lock):
        path.unlink(missing_ok=True)


def _in_use(pid: int | None, subject: str) -> str:
    if pid == os.getpid():
        return f"this process (pid {pid}) already uses {subject}: close it first"
    who = "another process" if pid is None else f"another process (pid {pid})"
    return f"{who} uses {subject}: wait until it ends or stop it"


PARENT_PIPE = "COEVOLVE_PARENT_PIPE"
ORPHANED = 3  # exit status of a child whose parent is gone
LOST_OUTPUT = 120  # Python's exit status where the last of the output could not be written
LOG_TAIL = 4000  # bytes of a log that a failure quotes
TERMINATE_GRACE = 5.0  # seconds between SIGTERM and SIGKILL
_WATCH = "watch-parent"


class ChildFailure(RuntimeError):
    """A child that failed or timed out.

    ``status`` is its exit status (negative: the signal that ended it), None after a timeout. ``log_tail`` is the end of
    its output.
    """

    def __init__(self, message: str, status: int | None, log_tail: str) -> None:
        super().__init__(f"{message}; the end of its log:\n{log_tail}" if log_tail else message)
        self.status = status
        self.log_tail = log_tail


class Holder(Record):
    """The holder of a lock and its parent process, each by pid and start time, because pids are reused."""

    pid: int
    started: float
    parent: int
    parent_started: float | None


def watch_parent() -> None:
    """End this process and its children with status 3 once its parent is gone; do nothing without a parent pipe.

    The variable is removed, so that this process's own children do not mistake it for theirs.
    Raises InputError when the variable names no open file descriptor.
    """
    value = os.environ.pop(PARENT_PIPE, None)
    if value is None:
        return
    try:
        descriptor = int(value)
        os.set_inheritable(descriptor, False)
    except (ValueError, OSError):
        raise InputError(f"{PARENT_PIPE}={value} names no open file descriptor: unset it") from None

    def wait_for_end() -> None:
        while os.read(descriptor, 1024):
            pass
        with suppress(psutil.Error):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    process.kill()
        os._exit(ORPHANED)

    threading.Thread(target=wait_for_end, name=_WATCH, daemon=True).start()


def run_to_end(command: Callable[[], None]) -> NoReturn:
    """Run a command as the whole work of this process; one that watches its parent then exits at once.

    Python's shutdown takes a second or more once torch is loaded. No thread runs in that time, and the end of the
    parent would go unnoticed. ``atexit`` functions are called. Exceptions, and processes without a parent to watch,
    exit as usual.
    """
    status = 0
    try:
        command()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    if not any(thread.name == _WATCH for thread in threading.enumerate()):
        sys.exit(status)
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = status or LOST_OUTPUT
    os._exit(status)


async def run_child(
    argv: Sequence[str],
    *,
    log_path: Path,
    deadline: float,
    on_line: Callable[[str], None] | None = None,
    accept: Collection[int] = (0,),
    env: Mapping[str, str] | None = None,
) -> int:
    """Run ``argv`` to its end and return its exit status.

    Its stdout and stderr are appended to ``log_path``; ``on_line`` also receives each line of stdout at once.
    ``deadline`` is the timeout in seconds. ``accept``: statuses that are returned instead of raised. ``env``: variables
    in addition to this process's. On failure, cancellation and timeout the whole process group is ended, SIGTERM first.
    Raises ChildFailure, which holds the end of the log, and FileNotFoundError for an unknown program.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    watched, kept = os.pipe()
    try:
        with log_path.open("ab") as log:
            log_start = log.tell()
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log if on_line is None else asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **child_variables(), **(env or {}), PARENT_PIPE: str(watched)},
                pass_fds=(watched,),
                process_group=0,
            )
        try:
            async with asyncio.timeout(deadline):
                if on_line is not None:
                    assert process.stdout is not None
                    await _copy_lines(process.stdout, log_path, on_line)
                status = await process.wait()
        except TimeoutError:
            await _end_group(process)
            message = f"{shlex.join(argv)} did not finish within {deadline:g} s and was ended"
            raise ChildFailure(message, None, end_of_log(log_path, log_start)) from None
        finally:
            await asyncio.shield(_end_group(process))
    finally:
        os.close(watched)
        os.close(kept)
    if status not in accept:
        raise ChildFailure(f"{shlex.join(argv)} ended with status {status}", status, end_of_log(log_path, log_start))
    return status


async def _copy_lines(stream: asyncio.StreamReader, log_path: Path, on_line: Callable[[str], None]) -> None:
    """Log stdout and pass it on by whole lines, so that stderr, which goes to the log directly, does not split them."""
    pending = b""
    with log_path.open("ab", buffering=0) as log:
        try:
            while chunk := await stream.read(65536):
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    log.write(line + b"\n")
                    on_line(line.decode(errors="replace"))
        finally:
            log.write(pending)
    if pending:
        on_line(pending.decode(errors="replace"))


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """End the process and the rest of its group, if any."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(TERMINATE_GRACE):
                await process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def end_of_log(log_path: Path, start: int) -> str:
    """Return the end of what was written to a log since its byte ``start``, at most ``LOG_TAIL`` bytes of it."""
    with log_path.open("rb") as log:
        end = log.seek(0, os.SEEK_END)
        log.seek(max(start, end - LOG_TAIL))
        return log.read().decode(errors="replace").strip()


@contextmanager
def hold_lock(path: Path, *, end_orphan: bool, wait: float = 20.0) -> Iterator[None]:
    """Hold the lock file ``path`` while the block runs; ``path`` + ".json" beside it names the holder.

    ``end_orphan`` (for ``--resume``): wait up to ``wait`` seconds for an earlier holder, which ends itself when its
    parent is gone; then end it if it is such an orphan, by the recorded pid and start time.
    Raises InputError when another live process keeps the lock.
    """
    lock = FileLock(path)
    holder_path = path.with_name(path.name + ".json")
    try:
        lock.acquire(timeout=wait if end_orphan else 0)
    except Timeout:
        holder = _read_holder(holder_path)
        if not end_orphan or holder is None or not _end_if_orphan(holder):
            who = f"process {holder.pid}" if holder else "another process"
            raise InputError(f"{path} is held by {who}: wait until it ends, or end it, and start again") from None
        lock.acquire(timeout=wait)
    try:
        write_json(holder_path, _this_process())
        yield
    finally:
        holder_path.unlink(missing_ok=True)
        lock.release()


def _this_process() -> Holder:
    me = psutil.Process()
    return Holder(pid=me.pid, started=me.create_time(), parent=os.getppid(), parent_started=_start_time(os.getppid()))


def _start_time(pid: int) -> float | None:
    """Return when the process started, None when it is gone; a zombie is gone."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None


def _read_holder(path: Path) -> Holder | None:
    try:
        return Holder.model_validate(json.loads(path.read_text()))
    except (FileNotFoundError, ValueError):
        return None


def _end_if_orphan(holder: Holder) -> bool:
    """End the holder unless its parent still runs. Return whether the holder is gone."""
    if holder.parent_started is not None and _start_time(holder.parent) == holder.parent_started:
        return False
    with suppress(ProcessLookupError):
        for step in (signal.SIGTERM, signal.SIGKILL):
            end = time.monotonic() + TERMINATE_GRACE
            if _start_time(holder.pid) == holder.started:
                os.kill(holder.pid, step)
            while _start_time(holder.pid) == holder.started and time.monotonic() < end:
                time.sleep(0.05)
    return True
