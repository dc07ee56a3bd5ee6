"""The time limit of a call: it ends loops, in any thread, and leaves the interpreter as it was."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from environments.python_class.time_limit import OutOfTime, time_limit

pytestmark = pytest.mark.wallclock

SECONDS = 0.01
PATIENCE = 60.0  # for what takes no time when it works

# A function that is traced goes round in circles where the interpreter's flag of an exception to come is left set.
TRACED = """
import sys, time
from environments.python_class.time_limit import OutOfTime, time_limit
def loop():
    while True:
        time.sleep(0)
with time_limit("quick", 60.0):
    pass
try:
    with time_limit("slow", 0.01):
        loop()
except OutOfTime:
    pass
sys.settrace(lambda *_: None)
(lambda: None)()
print("done")
"""


def endless() -> None:
    while True:
        time.sleep(0)


def test_a_loop_is_ended_and_what_comes_after_is_not() -> None:
    for _ in range(3):
        with pytest.raises(OutOfTime), time_limit("endless", SECONDS):
            endless()
        with time_limit("quick", PATIENCE):
            assert sum(range(1000)) == 499500


def test_a_call_that_swallows_the_exception_and_returns_has_returned() -> None:
    def swallowing() -> str:
        try:
            endless()
        except OutOfTime:
            return "returned"
        return "never"

    with time_limit("swallowing", SECONDS):
        assert swallowing() == "returned"


def test_a_call_within_a_call_ends_alone() -> None:
    with time_limit("around", PATIENCE):
        with pytest.raises(OutOfTime), time_limit("within", SECONDS):
            endless()
        assert sum(range(1000)) == 499500


def test_every_thread_has_its_own_limit() -> None:
    ended: list[str] = []

    def work() -> None:
        try:
            with time_limit("endless", SECONDS):
                endless()
        except OutOfTime:
            ended.append("ended")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert ended == ["ended"] * 4


@pytest.mark.process
def test_the_interpreter_is_left_as_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "done\n"
