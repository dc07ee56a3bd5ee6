"""End a call into a user's class that does not return, in any thread.

Signals reach only the main thread, and a thread cannot be ended from outside. Python can raise an exception in a
chosen thread at its next step, which ends any loop in Python. A call that waits outside Python (a socket without a
timeout) cannot be ended; it is named on stderr, and the deadline of its branch ends the wait for it.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from environments.command import say

AGAIN_AFTER = 1.0  # seconds until the exception is raised again where the code swallowed it
SAY_AFTER = 10.0  # seconds past its limit after which a call that goes on is named
TICK = 0.5  # seconds between two looks at the calls


class OutOfTime(BaseException):
    """The call timed out. Not an Exception, so that the user's own ``except Exception`` does not catch it."""


@dataclass(slots=True)
class _Call:
    name: str
    seconds: float
    clock: int
    due: float
    raised: float | None = None
    said: bool = False


class _Watch:
    """The calls in progress, one per thread, and the thread that enforces their timeouts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._thread: threading.Thread | None = None

    def begin(self, call: _Call) -> _Call | None:
        """Watch this thread's call; return the enclosing one, which ``end`` restores."""
        own = threading.get_ident()
        with self._lock:
            around = self._calls.get(own)
            self._calls[own] = call
            if self._thread is None or not self._thread.is_alive():  # a forked process has none
                self._thread = threading.Thread(target=self._look, name="time-limit", daemon=True)
                self._thread.start()
        return around

    def end(self, around: _Call | None) -> None:
        """Stop watching this thread's call: no further exception is sent to it, but one may be pending."""
        own = threading.get_ident()
        with self._lock:
            if around is not None:
                self._calls[own] = around
            else:
                self._calls.pop(own, None)

    def _look(self) -> None:
        while True:
            time.sleep(TICK)
            with self._lock:
                for thread, call in self._calls.items():
                    self._enforce(thread, call, time.clock_gettime(call.clock))

    def _enforce(self, thread: int, call: _Call, now: float) -> None:
        if now < call.due or (call.raised is not None and now < call.raised + AGAIN_AFTER):
            return
        call.raised = now
        _send(thread)
        if now > call.due + SAY_AFTER and not call.said:
            call.said = True
            say(
                f"{call.name} has not returned within {call.seconds:g} s and waits where Python cannot end it: give "
                "what it waits for a timeout of its own",
            )


_watch = _Watch()


@contextmanager
def time_limit(name: str, seconds: float, *, of_cpu: bool = False) -> Iterator[None]:
    """Raise OutOfTime in the block once it has run for ``seconds``; ``name`` names the call.

    The seconds are those of the thread's own work with ``of_cpu``, so that a busy machine changes nothing; else those
    of the clock. The block may be left half done: do not use its objects afterwards.
    """
    clock = time.pthread_getcpuclockid(threading.get_ident()) if of_cpu else time.CLOCK_MONOTONIC
    call = _Call(name, seconds, clock, time.clock_gettime(clock) + seconds)
    around = _watch.begin(call)
    try:
        yield
    finally:
        _end(call, around)


def _end(call: _Call, around: _Call | None) -> None:
    """Stop watching, also where the exception arrives meanwhile: the call did return."""
    while True:
        try:
            _watch.end(around)
            if call.raised is not None:
                _receive()
            return
        except OutOfTime:
            continue


def _send(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(OutOfTime))


def _receive() -> None:
    """Receive an exception that may be pending.

    A new exception replaces it and is awaited. Clearing a pending one leaves the interpreter's flag for it set, which
    slows every function and makes traced ones loop (CPython 3.11).
    """
    try:
        _send(threading.get_ident())
        while True:
            time.sleep(0)
    except OutOfTime:
        pass
