"""``python -m memory.guard COMMAND...``: run a program of others that never outlives the process that wanted it.

A program of ours watches its parent itself (memory/processes.py). A server of others does not, and starts processes of
its own. The guard runs in between, leads a process group, and kills the program with all of its processes when

- the program's main process ends, for whatever reason: what it started has no use then;
- the process that started the guard ends, also by SIGKILL: the pipe in ``COEVOLVE_PARENT_PIPE`` closes;
- the guard is asked to end (SIGTERM, SIGINT, SIGHUP): SIGTERM for the program first, SIGKILL after a grace period.

Where the guard itself is killed, a sentinel kills its group: a process that does nothing but wait for that. It is
needed: vLLM's engine lives on when its server is killed, and two processes may be killed at once.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil  # type: ignore[import-untyped]

from memory.processes import ORPHANED, PARENT_PIPE

__all__ = ["GRACE", "guard"]

GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL of the guarded program (ours)."""

_PR_SET_CHILD_SUBREAPER = 36


def _adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux; elsewhere those are found by their group)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _start_sentinel() -> None:
    """Fork a process that kills this one's group as soon as this one has ended, however that was."""
    group = os.getpgrp()
    watched, kept = os.pipe()
    if os.fork():
        os.close(watched)  # ``kept`` stays open as long as this process lives
        return
    os.setsid()
    os.close(kept)
    for descriptor in range(3):
        os.close(descriptor)  # whoever reads the program's output must not wait for the sentinel
    while os.read(watched, 1):
        pass
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    os._exit(0)


def _kill_descendants() -> None:
    """Kill every process below this one, until there is none: one may start another in the meantime.

    Those whose parent has ended are below the guard again, because it is a subreaper.
    """
    while children := [one for one in psutil.Process().children(recursive=True) if _lives(one)]:
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        time.sleep(0.01)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def guard(argv: list[str]) -> int:
    """Run ``argv`` to its end, kill what it leaves behind, and return its exit status (negative: a signal's number).

    Raises FileNotFoundError and PermissionError where there is no such program.
    """
    if os.getpgrp() != os.getpid():
        os.setpgrp()
    _adopt_orphans()
    _start_sentinel()
    pipe = os.environ.pop(PARENT_PIPE, None)
    if pipe is not None:
        os.set_inheritable(int(pipe), False)
    program = subprocess.Popen(argv)

    orphaned = threading.Event()

    def end_with_the_parent() -> None:
        assert pipe is not None
        while os.read(int(pipe), 1024):
            pass
        orphaned.set()
        _kill_descendants()
        os._exit(ORPHANED)

    def end(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            program.terminate()
        threading.Timer(GRACE, _kill_descendants).start()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    if pipe is not None:
        threading.Thread(target=end_with_the_parent, daemon=True).start()
    status = program.wait()
    _kill_descendants()
    return ORPHANED if orphaned.is_set() else status


if __name__ == "__main__":
    ended = guard(sys.argv[1:])
    # At once: a timer that no longer matters must not hold the guard.
    sys.stdout.flush()
    os._exit(ended if ended >= 0 else 128 - ended)
