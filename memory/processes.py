"""Child processes that never outlive their parent, and locks with one holder at a time.

A parent starts a child with ``run_child``, in a process group of its own, with one end of a pipe in
``COEVOLVE_PARENT_PIPE``. The child first calls ``watch_parent``: when the parent ends, for whatever reason, the pipe
closes and the child ends, too. It runs its command with ``run_to_end``. A child that becomes another program calls
``end_with_parent`` instead. ``exclusive`` and ``shared`` hold a lock file, and write its holder beside it; a resumed
run takes a lock over from an orphan.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import select
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil  # type: ignore[import-untyped]
from filelock import FileLock, Timeout

from environments.base import InputError, Record
from environments.checkout import child_variables
from memory.files import opened, read_end
from memory.jsonl import read_json, write_json

# Reentrant: the garbage collector may close an abandoned part while this thread holds the guard.
_guard = threading.RLock()


class Holder(Record):
    """The process that holds a lock, by pid and start time, because pids are reused, and the pid of its parent."""

    pid: int
    started: float
    parent: int


OPEN_FILES = "/proc/{}/fd"
"""The files that a process has open, on Linux."""


def _holder_file(lock: Path) -> Path:
    return lock.with_name(f"{lock.name}.json")


@contextmanager
def exclusive(
    lock: Path, subject: str, *, joined: bool = False, end_orphan: bool = False, wait: float = 20.0
) -> Iterator[None]:
    """Hold ``lock`` while the block runs, without waiting for it; ``lock`` + ".json" beside it names the holder.

    The lock ends with the process, however that ends. ``joined``: other parts of this process may hold it, too.
    ``end_orphan`` (for ``--resume``): wait up to ``wait`` seconds for an earlier holder, which ends itself when its
    parent is gone; then end it if it is such an orphan. Raises InputError naming ``subject`` and the holder's process
    id when another process, or another part of this one, holds it.
    """
    wait = wait if end_orphan else 0.0
    lock.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(lock):
        with opened(lock):  # raises for a link
            pass
    with _guard:
        file_lock = FileLock(lock.parent.resolve() / lock.name, thread_local=False, is_singleton=True)
        if file_lock.is_locked and not joined:
            raise InputError(f"this process (pid {os.getpid()}) already uses {subject}: close it first")
        try:
            file_lock.acquire(timeout=wait)
        except Timeout:
            holder = _holder(lock)
            ended = wait > 0 and holder is not None and _end_if_orphan(holder)
            try:
                file_lock.acquire(timeout=wait if ended else 0.0)
            except Timeout:
                raise InputError(_in_use(lock, subject, holder)) from None
        if file_lock.lock_counter == 1:
            with suppress(OSError, InputError):  # a full disk, a folder in its place: the lock holds without it
                me = psutil.Process()
                write_json(_holder_file(lock), Holder(pid=me.pid, started=me.create_time(), parent=me.ppid()))
    try:
        yield
    finally:
        with _guard:
            if file_lock.lock_counter == 1:
                with suppress(OSError):
                    _holder_file(lock).unlink()
            file_lock.release()


def shared(lock: Path, subject: str) -> AbstractContextManager[None]:
    """Hold ``lock`` against all other processes, jointly with other parts of this one. Raises like ``exclusive``."""
    return exclusive(lock, subject, joined=True)


def forget(lock: Path) -> None:
    """Remove the files of a lock; its holder calls this when it removes the guarded files."""
    for path in (_holder_file(lock), lock):
        path.unlink(missing_ok=True)


def _holder(lock: Path) -> Holder | None:
    """Return the process that holds ``lock``, as the file beside it says and the kernel confirms; None otherwise.

    Anybody may have written the file. On Linux the kernel lists the locks of each open file of a process, also where
    file systems lie on each other; the file's name tells it from a hard link, the lock of something else. Elsewhere
    nothing confirms a holder, and None is returned.
    """
    with suppress(InputError, OSError, psutil.Error, ValueError):
        holder, wanted, place = read_json(_holder_file(lock), Holder), lock.stat(), os.path.realpath(lock)
        if psutil.Process(holder.pid).create_time() == holder.started:
            for one in Path(OPEN_FILES.format(holder.pid)).iterdir():
                with suppress(FileNotFoundError):  # closed meanwhile
                    said = one.parent.with_name("fdinfo").joinpath(one.name)
                    same = os.readlink(one) == place and os.path.samestat(one.stat(), wanted)
                    if same and "FLOCK" in said.read_text():
                        return holder
    return None


def _in_use(lock: Path, subject: str, holder: Holder | None) -> str:
    who = "another process" if holder is None else f"another process (pid {holder.pid})"
    how = f"; fuser {lock} names it" if holder is None else ""
    return f"{who} uses {subject}: wait until it ends or stop it{how}"


def _end_if_orphan(holder: Holder) -> bool:
    """End the holder unless its parent still runs: an orphan gets another one. Return whether the holder is gone."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(holder.pid)
        if process.create_time() == holder.started and process.ppid() == holder.parent:
            return False
        for step in (process.terminate, process.kill):
            end = time.monotonic() + TERMINATE_GRACE
            if _is(process, holder):
                step()
            while _is(process, holder) and time.monotonic() < end:
                time.sleep(0.05)
    return True


def _is(process: psutil.Process, holder: Holder) -> bool:
    return bool(process.create_time() == holder.started and process.status() != psutil.STATUS_ZOMBIE)


PARENT_PIPE = "COEVOLVE_PARENT_PIPE"
ORPHANED = 3  # exit status of a child whose parent is gone
LOST_OUTPUT = 120  # Python's exit status where the last of the output could not be written
LOG_TAIL = 4000  # bytes of a log that a failure quotes
TERMINATE_GRACE = 5.0  # seconds between SIGTERM and SIGKILL
_WATCH = "watch-parent"
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


class ChildFailure(RuntimeError):
    """A child that failed or timed out.

    ``status`` is its exit status (negative: the signal that ended it), None after a timeout. ``log_tail`` is the end of
    its output.
    """

    def __init__(self, message: str, status: int | None, log_tail: str) -> None:
        super().__init__(f"{message}; the end of its log:\n{log_tail}" if log_tail else message)
        self.status = status
        self.log_tail = log_tail


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
        end_all()

    threading.Thread(target=wait_for_end, name=_WATCH, daemon=True).start()


def end_all() -> NoReturn:
    """End this process and its children, whose parent is gone, with status 3."""
    with suppress(psutil.Error):
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                process.kill()
    os._exit(ORPHANED)


def end_with_parent() -> None:
    """Make Linux send SIGTERM to this process once its parent is gone, also after it has become another program.

    For a program that cannot call ``watch_parent``. Without a parent pipe nothing is done: what a shell started may
    outlive it. Elsewhere than on Linux neither.
    """
    value = os.environ.pop(PARENT_PIPE, None)
    if value is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if select.select([int(value)], [], [], 0)[0]:  # closed: the parent ended before the kernel was asked
        sys.exit(ORPHANED)


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
    watched, kept = os.pipe()
    try:
        with opened(log_path, "ab+") as log:
            log_start = log.seek(0, os.SEEK_END)
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
    with opened(log_path, "ab+") as log:
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
    return read_end(log_path, start, LOG_TAIL)


def reason_in(log_path: Path, start: int = 0) -> str:
    """Return why a command ended, from what was written to its log since the byte ``start``; empty where nothing was.

    It is the last sentence behind "error: ", else the last line: stdout and stderr reach a log by different ways.
    """
    lines = read_end(log_path, start).splitlines()
    reasons = (line for line in reversed(lines) if line.startswith("error: "))
    return next(reasons, lines[-1] if lines else "").removeprefix("error: ")
