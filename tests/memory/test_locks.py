"""One holder at a time, whoever else tries, and however the holder ends."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest

from environments.base import InputError
from memory.processes import Holder, exclusive, shared
from memory.run import write_json

pytestmark = pytest.mark.process

HOLD = """
import sys, time
from pathlib import Path
from memory.processes import exclusive

with exclusive(Path(sys.argv[1]), "the run"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path):
    return tmp_path / "run.lock"


@pytest.fixture
def other_process(lock):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait(timeout=30)
        process.stdout.close()
        process.stdin.close()


def test_another_process_is_named_by_its_pid(lock, other_process):
    with (
        pytest.raises(InputError, match=rf"another process \(pid {other_process.pid}\) uses the run"),
        exclusive(lock, "the run"),
    ):
        pass


@pytest.mark.parametrize("end", [signal.SIGKILL, None])
def test_the_lock_ends_with_its_holder(lock, other_process, end):
    if end is None:
        other_process.stdin.close()
    else:
        other_process.send_signal(end)
    other_process.wait(timeout=30)
    with exclusive(lock, "the run"):
        assert f'"pid": {os.getpid()},' in lock.with_name("run.lock.json").read_text()
    assert not lock.with_name("run.lock.json").exists()


def test_a_second_hold_in_this_process_is_refused_and_the_first_one_kept(lock):
    with exclusive(lock, "the run"):
        for _ in range(2):
            with (
                pytest.raises(InputError, match=rf"this process \(pid {os.getpid()}\) already uses the run"),
                exclusive(lock, "the run"),
            ):
                pass
    with exclusive(lock, "the run"):
        pass


def test_the_lock_is_released_when_the_block_fails(lock):
    with pytest.raises(KeyError), exclusive(lock, "the run"):
        raise KeyError
    with exclusive(lock, "the run"):
        pass


def test_parts_of_this_process_share_a_lock_until_the_last_one_is_done(lock):
    first, second = shared(lock, "the run"), shared(lock, "the run")
    with first:
        second.__enter__()
    with pytest.raises(InputError, match="already uses the run"), exclusive(lock, "the run"):
        pass
    second.__exit__(None, None, None)
    with exclusive(lock, "the run"), shared(lock, "the run"):
        pass
    assert not lock.with_name("run.lock.json").exists()


def test_a_shared_lock_is_refused_where_another_process_holds_it(lock, other_process):
    with pytest.raises(InputError, match=rf"pid {other_process.pid}\) uses the run"), shared(lock, "the run"):
        pass


FOREIGN = """
import fcntl, os, sys

lock = open(sys.argv[1], "a")
if sys.argv[2] == "orphan" and os.fork():
    os._exit(0)
fcntl.flock(lock, fcntl.LOCK_EX)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(lock, how="child"):
    """Hold the lock in another process, which starts at once; its pid. An orphan's parent has ended."""
    argv = [sys.executable, "-S", "-c", FOREIGN, str(lock), how]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield int(process.stdout.readline())


def name_as_holder(lock, pid, parent=1, **changes):
    """Write into the file beside the lock that a process holds it, as anybody may."""
    holder = Holder(pid=pid, started=psutil.Process(pid).create_time(), parent=parent)
    write_json(lock.with_name("run.lock.json"), holder.model_copy(update=changes))


def refused_within(lock, told=r"^another process uses the run: .*; fuser .*run\.lock names it$"):
    with pytest.raises(InputError, match=told), exclusive(lock, "the run", end_orphan=True, wait=0.1):
        pass


@pytest.fixture
def bystander(lock):
    """A process that has nothing to do with the lock, but has its file open."""
    with lock.open("a") as opened:
        process = subprocess.Popen(["sleep", "600"], pass_fds=[opened.fileno()])
    yield process.pid
    assert process.poll() is None, "it was ended"
    process.kill()
    process.wait(timeout=30)


def test_who_is_named_beside_a_lock_and_does_not_hold_it_is_not_ended(lock, bystander):
    with holding(lock) as holder:
        name_as_holder(lock, bystander)
        refused_within(lock)
        assert psutil.pid_exists(holder)


@pytest.mark.parametrize("changes", [{"parent": os.getpid()}, {"started": 1.0}])
def test_a_holder_whose_parent_lives_or_with_another_start_is_not_ended(lock, changes):
    with holding(lock) as holder:
        name_as_holder(lock, holder, **changes)
        refused_within(lock, "uses the run")
        assert psutil.Process(holder).status() != psutil.STATUS_ZOMBIE


def test_who_holds_another_lock_that_is_a_hard_link_of_this_one_is_not_ended(lock):
    other = lock.with_name("of_another_run")
    with holding(other, "orphan") as orphan:
        lock.hardlink_to(other)
        name_as_holder(lock, orphan, parent=os.getpid())
        refused_within(lock)
        assert psutil.Process(orphan).status() != psutil.STATUS_ZOMBIE


def test_without_the_kernels_word_nobody_is_ended(lock, monkeypatch):
    monkeypatch.setattr("memory.processes.OPEN_FILES", "/nowhere/{}/fd")
    with holding(lock, "orphan") as orphan:
        name_as_holder(lock, orphan, parent=os.getpid())
        refused_within(lock)
        assert psutil.Process(orphan).status() != psutil.STATUS_ZOMBIE


def test_an_orphan_that_holds_the_lock_is_ended(lock):
    with holding(lock, "orphan") as orphan:
        name_as_holder(lock, orphan, parent=os.getpid())
        with exclusive(lock, "the run", end_orphan=True, wait=0.1):
            assert not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE


def test_a_lock_holds_where_nothing_can_be_written_beside_it(lock):
    lock.with_name("run.lock.json").mkdir()
    for _ in range(2):
        with exclusive(lock, "the run"):
            pass


BESIDE = ["", "{}", "[]", '{"pid": -1, "started": 1.0, "parent": 1}', '{"pid": 1e99}', "\0", "x" * 99]


def test_whatever_stands_beside_a_lock_is_one_sentence(lock):
    with holding(lock):
        for text in BESIDE:
            lock.with_name("run.lock.json").write_text(text)
            refused_within(lock)
