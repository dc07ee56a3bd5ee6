"""Commands that are forks of the preloaded process behave as if they had been started themselves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.killing import seconds_until_gone
from support.preloaded import preloaded_process, through

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.usefixtures("preloaded")]

TOLD = """
import json, os, sys
sys.stderr.write("said\\n")
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["GIVEN"], sys.stdin.read(), "torch" in sys.modules]))
os.write(int(sys.argv[1]), b"through a pipe")
sys.exit(7)
"""
WAITING = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print("ready", flush=True)
time.sleep(600)
"""


def start(code: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize(("variables", "forked"), [({}, True), ({"PYTHONHASHSEED": "1"}, False)])
def test_a_command_has_what_it_was_started_with(tmp_path: Path, variables: dict[str, str], forked: bool) -> None:
    reading, writing = os.pipe()
    environment = {**os.environ, "GIVEN": "x", **variables}
    with start(
        TOLD, str(writing), "a b", cwd=tmp_path, env=environment, pass_fds=[writing], stderr=subprocess.PIPE
    ) as process:
        os.close(writing)
        out, err = process.communicate("asked")
    assert (process.returncode, err) == (7, "said\n")
    assert json.loads(out) == [[str(writing), "a b"], str(tmp_path), "x", "asked", forked]
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "through a pipe"


def test_what_a_package_sets_and_what_comes_first_keep_no_later_command_from_being_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = []
    with preloaded_process("yaml") as address:
        monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")  # as torch does in whichever worker asks for a device first
        with through(address):
            for variables in ({"OMP_NUM_THREADS": "7"}, {}):
                with start("import sys; print('yaml' in sys.modules)", env={**os.environ, **variables}) as process:
                    answers.append(process.communicate()[0])
    assert answers == ["False\n", "True\n"]


def test_a_command_ends_by_the_signal_that_ends_it() -> None:
    with start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)") as process:
        assert process.wait(60) == -signal.SIGKILL


def test_a_signal_reaches_a_command_and_nothing_of_it_stays(tmp_path: Path) -> None:
    for number, status in ((signal.SIGTERM, 5), (signal.SIGKILL, -signal.SIGKILL)):
        with start(WAITING, str(tmp_path)) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            named = [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in (one.info["cmdline"] or ())]
            assert len(named) == 2, "the process that was started, and the fork with its command line"
            process.send_signal(number)
            assert process.wait(60) == status
        assert seconds_until_gone(tmp_path, []) < 60


def test_a_command_that_is_killed_as_it_begins_leaves_nothing_open() -> None:
    """Whoever reads its output sees the end of it; at whatever moment of the handing over it is killed."""
    for wait in range(12):
        with start(WAITING) as process:
            time.sleep(wait * 0.008)
            process.kill()
            process.communicate(timeout=60)  # ends when nobody can write any more


@pytest.mark.parametrize("sent", [b"", (9).to_bytes(4, "big"), (9).to_bytes(4, "big") + b"{"])
def test_a_command_that_is_killed_before_it_said_all_is_the_only_one_that_ends(sent: bytes) -> None:
    with preloaded_process("yaml") as address, through(address):
        with socket.socket(socket.AF_UNIX) as killed:
            killed.connect(address)
            killed.sendall(sent)
        with start("import sys; print('yaml' in sys.modules)") as process:
            assert process.communicate(timeout=60)[0] == "True\n"


def test_a_process_that_ended_keeps_no_command_waiting_and_is_told() -> None:
    before = set(psutil.Process().children())
    answers = []

    def kill_and_start() -> None:
        with preloaded_process("yaml") as address, through(address):
            (process,) = set(psutil.Process().children()) - before
            process.kill()
            while process.status() != psutil.STATUS_ZOMBIE:  # not waited for: its status is its starter's to read
                time.sleep(0.01)
            with start("print('here')", stderr=subprocess.PIPE) as command:
                answers.extend(command.communicate(timeout=60))

    with pytest.raises(RuntimeError, match="ended with -9"):
        kill_and_start()
    assert answers[0] == "here\n"
    assert "ConnectionRefusedError" in answers[1]


def test_nothing_runs_on_after_the_process_was_to_end() -> None:
    with preloaded_process("yaml") as address, through(address):
        command = start("print('begun', flush=True)\nimport time\ntime.sleep(600)")
        assert command.stdout is not None
        assert command.stdout.readline() == "begun\n"
    assert command.wait(60) == -signal.SIGKILL
    command.stdout.close()
