"""One holder at a time, whoever else tries, and however the holder ends."""

import os
import signal
import subprocess
import sys

import pytest

from environments.base import InputError
from memory.processes import exclusive, shared

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
