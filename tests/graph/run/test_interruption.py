"""Signals during work on an event loop."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import typer

from environments.command import run_interruptible
from memory.processes import run_child

pytestmark = [pytest.mark.process, pytest.mark.wallclock]


ENDS = pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)


@ENDS
def test_a_signal_cancels_the_work_and_gives_the_shells_status(number: signal.Signals, status: int) -> None:
    cleaned = []

    async def work() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.sleep(30)
        finally:
            cleaned.append(True)

    with pytest.raises(typer.Exit) as caught:
        run_interruptible(work())
    assert caught.value.exit_code == status
    assert cleaned == [True]


def test_a_signal_ends_the_child_process_that_is_waited_for(tmp_path: Path) -> None:
    told: list[str] = []

    async def work() -> None:
        code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
        child = run_child([sys.executable, "-c", code], log_path=tmp_path / "log", deadline=60, on_line=stop)
        await child

    def stop(line: str) -> None:
        told.append(line)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(typer.Exit):
        run_interruptible(work())
    assert not psutil.pid_exists(int(told[0]))


def test_work_that_ends_by_itself_gives_its_result() -> None:
    async def work() -> int:
        return 7

    assert run_interruptible(work()) == 7


def test_a_cancellation_that_no_signal_caused_is_no_interruption() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_interruptible(work())


FAN_OUT = """
import asyncio, os, signal
from typing import TypedDict
import typer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from environments.command import run_interruptible

class State(TypedDict):
    begun: int

async def branch(state: State) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(30)

builder = StateGraph(State)
builder.add_node("branch", branch)
builder.add_conditional_edges(START, lambda state: [Send("branch", state)] * 4, ["branch"])
builder.add_edge("branch", END)
try:
    run_interruptible(builder.compile().ainvoke({"begun": 0}, {"max_concurrency": 1}))
except typer.Exit as stop:
    raise SystemExit(stop.exit_code)
"""  # Three of the four branches wait for the first when the signal comes.


def test_branches_that_had_not_begun_are_nothing_to_tell_of() -> None:
    done = subprocess.run([sys.executable, "-c", FAN_OUT], check=False, timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "stopped by SIGTERM\n")


@ENDS
def test_before_the_loop_the_status_is_the_same(number: signal.Signals, status: int) -> None:
    code = (
        "import os, time\nfrom environments.command import exit_on_signals\nexit_on_signals()\n"
        f"os.kill(os.getpid(), {int(number)})\ntime.sleep(30)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=20).returncode == status


@pytest.mark.parametrize(
    "work", ["sys.exit(5)", "asyncio.run(command._supervise(ended(), threading.Timer(0, len), ''))"]
)
def test_a_closed_terminal_does_not_end_what_nohup_started(work: str) -> None:
    code = (
        "import asyncio, os, signal, sys, threading\nfrom environments import command\n"
        "async def ended():\n    os.kill(os.getpid(), signal.SIGHUP)\n    sys.exit(5)\n"
        f"command.exit_on_signals()\nos.kill(os.getpid(), signal.SIGHUP)\n{work}"
    )
    done = subprocess.run(["nohup", sys.executable, "-c", code], check=False, timeout=60, capture_output=True)
    assert done.returncode == 5


@pytest.mark.process
def test_a_thread_that_does_not_end_does_not_keep_the_process() -> None:
    code = (
        "import asyncio, time\nfrom environments import command\ncommand.HUNG_SECONDS = 0.3\n"
        "async def work():\n"
        "    async with asyncio.timeout(0.1):\n"
        "        await asyncio.to_thread(time.sleep, 60)\n"
        "command.run_interruptible(work())"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False, timeout=20, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "a call into the environment or of a model on this machine does not end" in ended.stderr
