"""Run a server's command, and end all that it started once its stdin closes, at a signal, or when it has ended.

``python -I -S supervisor.py FOLDER COMMAND ...`` is the parent of each server. Its stdin is the server's, a pipe whose
other end is in the process that asked: the kernel closes it however that process ends, by SIGKILL too.
Whatever the server started becomes a child of this process (a subreaper, on Linux) once its own parent is gone, a
process in a session of its own too. FOLDER, the server's own, is removed at the end; empty where it has none.

The functions of folders follow no link, and hold a descriptor or two however deep a folder is.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress

LEAVE_SECONDS = 0.3
"""Seconds that a server has to end by itself, and again after SIGTERM (our choice)."""

KILL_SECONDS = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of linux/prctl.h

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
"""Flags that open a folder, and not what a link names."""


@contextmanager
def opened_folder(name: str, within: int | None = None) -> Iterator[int]:
    """Open a folder that is not a link; ``within`` is the descriptor of the folder that holds it. Raises OSError."""
    descriptor = os.open(name, OPEN_FOLDER, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def empty_folder(folder: int, most: float = math.inf) -> None:
    """Remove all entries of an open folder. Raises OSError, also where there are more than ``most``."""
    removed = 0
    while entries := _entries(folder, most):
        for name, is_folder in entries.items():
            if is_folder:
                with opened_folder(name, folder) as inner:
                    for below, has_entries in _entries(inner, most).items():
                        if has_entries:  # its turn comes on this level, so that no depth is too great
                            up = f".removed-{os.urandom(8).hex()}"
                            os.rename(below, up, src_dir_fd=inner, dst_dir_fd=folder)
                        else:
                            os.unlink(below, dir_fd=inner)
                        removed += 1
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
            removed += 1
            if removed > most:  # also where a server fills it meanwhile
                raise OSError(errno.EFBIG, f"it has more than {most:,} entries")


def _entries(folder: int, most: float) -> dict[str, bool]:
    """Return the names in a folder, and of each whether it is a folder."""
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            found[entry.name] = entry.is_dir(follow_symlinks=False)
            if len(found) > most:
                raise OSError(errno.EFBIG, f"it has more than {most:,} entries")
    return found


def main(folder: str, command: Sequence[str]) -> None:
    """Run ``command`` to its end, or to the end of whoever asked, and leave nothing of it."""
    waking, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *_SIGNALS):
        signal.signal(number, lambda *_: None)  # the descriptor has its number
    _ask_kernel(_SUBREAPER, 1)
    us = os.getpid()
    with opened_folder(folder) if folder else nullcontext() as own:
        child = os.fork()
        if child == 0:
            _become(command, us)
        _watch(child, waking)
        _end(child)
        if own is not None:
            with suppress(OSError):
                empty_folder(own)
                if os.path.samestat(os.fstat(own), os.stat(folder, follow_symlinks=False)):
                    os.rmdir(folder)


def _watch(child: int, waking: int) -> None:
    """Return once stdin is closed, a signal came or the child has ended."""
    poll = select.poll()
    poll.register(0, 0)  # that it is closed is always reported
    poll.register(waking, select.POLLIN)
    while _alive(child):
        ready = [descriptor for descriptor, _ in poll.poll()]
        if 0 in ready or set(os.read(waking, 4096)) & set(_SIGNALS):
            return


def _become(command: Sequence[str], parent: int) -> None:
    """Become the command, in a session of its own."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, *_SIGNALS):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    _ask_kernel(_DEATH_SIGNAL, signal.SIGKILL)  # should this process be killed
    try:
        if os.getppid() == parent:
            os.execv(command[0], [*command])
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}".encode(errors="replace"))
    os._exit(127)


def _ask_kernel(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _alive(child: int) -> bool:
    """Take note of every child that has ended, and return whether ``child`` is not among them."""
    with suppress(ChildProcessError):
        while ended := os.waitpid(-1, os.WNOHANG)[0]:
            if ended == child:
                return False
    return True


def _end(child: int) -> None:
    """End the command with all that it started: by itself, by SIGTERM, by SIGKILL."""
    if _within(LEAVE_SECONDS, lambda: None):
        return
    with suppress(OSError):
        os.killpg(child, signal.SIGTERM)
    if not _within(LEAVE_SECONDS, lambda: None):
        _within(KILL_SECONDS, lambda: _kill(child))


def _within(seconds: float, act: Callable[[], None]) -> bool:
    """Return whether no child is left within ``seconds``; ``act`` before each look."""
    due = time.monotonic() + seconds
    while time.monotonic() < due:
        act()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(0.005)
    return False


def _kill(child: int) -> None:
    """Kill the command's group and the children of this process: theirs become its own, and are killed next."""
    with suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        with suppress(OSError, ValueError):
            with open(f"/proc/{int(name)}/stat", "rb") as stat:
                parent = stat.read().rpartition(b")")[2].split()[1]
            if int(parent) == os.getpid():
                os.kill(int(name), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
