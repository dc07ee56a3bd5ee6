"""A command beside the person who watches it: shows progress on stderr, and stops on SIGINT and SIGTERM.

Progress is lines with the time left. At a signal work stops, its records stay, and the exit status names the signal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import typer

from environments.terminal import say

INTERVAL = 5.0  # seconds between two lines of one stage


class Stage:
    """One piece of work in ``total`` parts (None: unknown)."""

    def __init__(self, label: str, total: int | None) -> None:
        self._label = label
        self._total = total
        self._first: tuple[int, float] | None = None
        self._shown_at = time.monotonic()

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Show that ``done`` parts of ``total`` are done; ``note`` is a few words more, such as a mean so far."""
        if self._first is None and done:
            self._first = (done, time.monotonic())
        self._total = total if total is not None else self._total
        if time.monotonic() - self._shown_at >= INTERVAL:
            self._shown_at = time.monotonic()
            parts = [f"{self._label}: {done}{f' of {self._total}' if self._total else ''}", self._eta(done), note]
            say(", ".join(filter(None, parts)))

    def _eta(self, done: int) -> str:
        """Return the time left, from the pace since the first part: loading a process or model happens only once."""
        if not self._total or self._first is None or done <= self._first[0]:
            return ""
        begun, since = self._first
        left = (time.monotonic() - since) / (done - begun) * (self._total - done)
        return f"{left:.0f} s left"


@contextmanager
def show_stage(label: str, total: int | None = None) -> Iterator[Stage]:
    """Show a stage while the block runs, and its seconds when it did not fail."""
    say(f"{label} ...")
    begun = time.monotonic()
    yield Stage(label, total)
    say(f"{label}: done in {time.monotonic() - begun:.1f} s")


Result = TypeVar("Result")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HUNG_SECONDS = 30.0


def run_interruptible(work: Coroutine[Any, Any, Result], then: str = "") -> Result:
    """Run ``work`` on an event loop; a signal cancels it.

    Raises typer.Exit with the shell's status of a signal that ended it, 130 or 143, after a line on stderr that ends
    with ``then``. A thread that ``work`` abandoned (a branch past its timeout) may continue for HUNG_SECONDS. Then the
    process ends with status 1, because Python would wait for the thread forever.
    """
    watchdog = threading.Timer(HUNG_SECONDS, _give_up)
    watchdog.daemon = True
    try:
        return asyncio.run(_supervise(work, watchdog, then))
    finally:
        watchdog.cancel()


async def _supervise(work: Coroutine[Any, Any, Result], watchdog: threading.Timer, then: str) -> Result:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def receive(number: signal.Signals) -> None:
        received.append(number)
        expect_dropped_branches()
        if task is not None:
            task.cancel()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, receive, number)
    try:
        return await work
    except asyncio.CancelledError:
        if not received:
            raise
        say(f"stopped by {received[0].name}{then}")
        raise typer.Exit(128 + received[0]) from None
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
        watchdog.start()


def expect_dropped_branches() -> None:
    """Silence LangGraph's warning about branches that it drops before they begin, as a stop requires."""
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)


def _give_up() -> None:
    say("error: a call into the environment does not end: leaving, continue with --resume")
    os._exit(1)


def exit_on_signals() -> None:
    """Until an event loop takes over, end the process on a signal with the status of ``run_interruptible``."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    for number in SIGNALS:
        signal.signal(number, leave)
