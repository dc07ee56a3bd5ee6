"""The guard: a program of others, with all that it starts, ends with the process that wanted it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support import ROOT

from memory.processes import ORPHANED, PARENT_PIPE

pytestmark = pytest.mark.process

PROGRAM = 'sleep 600 & setsid sleep 600 & (setsid sleep 600 &) ; : > "$0"; {end}'
"""Starts a process of its own group, one of another session, and one whose parent ends at once."""


def start(end: str, ready: Path, **options) -> subprocess.Popen[bytes]:
    """Start a guard of a program that comes to this end once its processes run, and wait until they do."""
    argv = [sys.executable, "-m", "memory.guard", "bash", "-c", PROGRAM.format(end=end), str(ready)]
    guard = subprocess.Popen(argv, cwd=ROOT, process_group=0, **options)
    limit = time.monotonic() + 30
    while not ready.exists() and guard.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.01)
    return guard


def gone(processes: list[psutil.Process], within: float = 10.0) -> bool:
    limit = time.monotonic() + within
    while any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes):
        if time.monotonic() > limit:
            return False
        time.sleep(0.01)
    return True


def started(guard: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The guard's processes: its sentinel, the program, and three that the program started."""
    limit = time.monotonic() + 10
    while len(found := psutil.Process(guard.pid).children(recursive=True)) < 5:
        assert time.monotonic() < limit, found
        time.sleep(0.01)
    return found


@pytest.mark.parametrize(("end", "status"), [("exit 7", 7), ("kill -9 $$", 128 + 9)])
def test_nothing_is_left_when_the_program_ends(end: str, status: int, tmp_path: Path) -> None:
    go = tmp_path / "go"
    guard = start(f"while [ ! -e {go} ]; do sleep 0.02; done; {end}", tmp_path / "ready")
    processes = started(guard)
    go.touch()
    assert guard.wait(timeout=20) == status
    assert gone(processes, within=2.0)


def test_it_ends_with_the_process_that_wanted_it(tmp_path: Path) -> None:
    watched, kept = os.pipe()
    guard = start("wait", tmp_path / "ready", pass_fds=(watched,), env={**os.environ, PARENT_PIPE: str(watched)})
    os.close(watched)
    processes = started(guard)
    os.close(kept)  # as when this process is killed
    assert guard.wait(timeout=20) == ORPHANED
    assert gone(processes, within=2.0)


def test_it_passes_sigterm_on(tmp_path: Path) -> None:
    guard = start("trap 'exit 5' TERM; while true; do sleep 0.02; done", tmp_path / "ready")
    processes = started(guard)
    time.sleep(0.2)  # until the trap is set
    guard.send_signal(signal.SIGTERM)
    assert guard.wait(timeout=20) == 5
    assert gone(processes, within=2.0)


def test_a_killed_guard_leaves_no_process_of_its_group(tmp_path: Path) -> None:
    guard = start("wait", tmp_path / "ready")
    processes = started(guard)
    group = [one for one in processes if os.getpgid(one.pid) == guard.pid]
    assert len(group) == 2
    guard.kill()
    guard.wait()
    assert gone(group)
    for left in processes:  # of sessions of their own: only a guard that lives finds them
        if left.is_running():
            left.kill()
