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

from environments.terminal import say

AGAIN_AFTER = 1.0  # seconds until the exception is raised again where the code swallowed it
SAY_AFTER = 10.0  # seconds past its limit after which a call that goes on is named
TICK = 0.5  # seconds between two looks at the calls


class OutOfTime(BaseException):
    """The call timed out. Not an Exception, so that the user's own ``except Exception`` does not catch it."""


@dataclass(eq=False, slots=True)
class _Call:
    name: str
    seconds: float
    thread: int
    clock: int
    due: float
    raised: float | None = None
    said: bool = False


_lock = threading.Lock()
_calls: set[_Call] = set()
"""The calls in progress."""
_watching: list[threading.Thread] = []


@contextmanager
def time_limit(name: str, seconds: float, *, of_cpu: bool = False) -> Iterator[None]:
    """Raise OutOfTime in the block once it has run for ``seconds``; ``name`` names the call.

    The seconds are those of the thread's own work with ``of_cpu``, so that a busy machine changes nothing; else those
    of the clock. The block may be left half done: do not use its objects afterwards.
    """
    thread = threading.get_ident()
    clock = time.pthread_getcpuclockid(thread) if of_cpu else time.CLOCK_MONOTONIC
    call = _Call(name, seconds, thread, clock, time.clock_gettime(clock) + seconds)
    with _lock:
        if not any(one.is_alive() for one in _watching):  # a forked process has none, and none of these calls
            _calls.clear()
            _watching[:] = [threading.Thread(target=_watch, name="time-limit", daemon=True)]
            _watching[0].start()
        _calls.add(call)
    try:
        yield
    finally:
        _end(call)


def _watch() -> None:
    while True:
        time.sleep(TICK)
        with _lock:
            for call in _calls:
                _enforce(call, time.clock_gettime(call.clock))


def _enforce(call: _Call, now: float) -> None:
    if now < call.due or (call.raised is not None and now < call.raised + AGAIN_AFTER):
        return
    call.raised = now
    _send(call.thread)
    if now > call.due + SAY_AFTER and not call.said:
        call.said = True
        say(
            f"{call.name} has not returned within {call.seconds:g} s and waits where Python cannot end it: give "
            "what it waits for a timeout of its own",
        )


def _end(call: _Call) -> None:
    """Stop watching, also where the exception arrives meanwhile: the call did return."""
    while True:
        try:
            with _lock:
                _calls.discard(call)
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
