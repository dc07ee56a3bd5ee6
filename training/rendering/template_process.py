"""Runs a chat template in a process of its own: a template is a program, and it comes with a model.

Jinja's sandbox keeps a template from files and processes, not from endless loops, recursion and texts as large as the
memory. So each request has limits on CPU time, memory and length; a process that exceeds one is killed, and the caller
gets a sentence. It is forked, because a fresh start of the libraries takes seconds, and keeps no file, lock or socket.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import signal
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

CPU_SECONDS = 10.0
"""CPU time of one rendering (ours): the slowest real templates take milliseconds. Not wall time, so that a busy machine
changes nothing."""
LONGEST_TEXT = 2**24
"""Characters of one rendered conversation (ours): far beyond any model's context."""
MEMORY = 2**30
"""Bytes of address space on top of what the process has when it is forked (ours)."""
GIVE_UP = 600.0
"""Timeout in wall seconds for a process that neither answers nor uses its CPU time."""
_LOOK_FOR_PARENT = 5.0
_DONE, _FAILED = b"1", b"0"
"""First byte of an answer: a text follows, or the reason why there is none."""


class TemplateFailure(Exception):
    """The template could not be rendered; the message gives the reason in a few words."""


class TemplateProcess:
    """Calls ``render`` in a process that is forked by the first call, and again after one that was killed.

    The fork copies ``render`` and its state at that moment; arguments must be plain values. Threads may share one
    object. The process ends with this object, and with the process that owns it.
    """

    def __init__(self, render: Callable[..., object]) -> None:
        self._render = render
        self._lock = threading.Lock()
        self._owner = 0
        self._connection: Connection | None = None
        self._end: weakref.finalize[Any, Any] | None = None

    def __call__(self, *arguments: object, **options: object) -> str:
        """Return ``render``'s result as text. Raises TemplateFailure for whatever it raises, and beyond a limit."""
        with self._lock:
            if self._connection is None or self._owner != os.getpid():
                self._start()
            connection = self._connection
            assert connection is not None
            try:
                connection.send_bytes(pickle.dumps((arguments, options)))
                if not connection.poll(GIVE_UP):
                    raise EOFError
                answer = connection.recv_bytes()
            except BaseException as error:  # also an interruption, after which the answer would be the next call's
                self._stop()
                if isinstance(error, EOFError | OSError):
                    raise TemplateFailure(
                        f"it ran past {CPU_SECONDS:g} s of CPU time or {MEMORY // 2**20} MB of memory and was ended"
                    ) from None
                raise
        text = answer[1:].decode(errors="surrogatepass")
        if answer[:1] != _DONE:
            raise TemplateFailure(text)
        return text

    def _start(self) -> None:
        ours, theirs = Pipe()
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            _serve(theirs, self._render, parent)
        theirs.close()
        self._owner, self._connection = parent, ours
        self._end = weakref.finalize(self, _end, child, ours, parent)

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._connection = self._end = None


def _end(child: int, connection: Connection, owner: int) -> None:
    connection.close()
    if os.getpid() != owner:  # a fork of the owner, to which the child does not belong
        return
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _serve(connection: Connection, render: Callable[..., object], parent: int) -> None:
    """Answer requests until the parent is gone; runs in the forked process."""
    try:
        _forget_the_parent(connection.fileno())
        while True:
            while not connection.poll(_LOOK_FOR_PARENT):
                if os.getppid() != parent:
                    return
            arguments, options = pickle.loads(connection.recv_bytes())
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal kills the process, in a loop of C too
            done, text = _rendered(render, arguments, options)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send_bytes((_DONE if done else _FAILED) + text.encode(errors="surrogatepass"))
    finally:
        os._exit(0)


def _forget_the_parent(kept: int) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which kills this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for number in map(int, os.listdir("/dev/fd")):
        if number > 2 and number != kept:
            with suppress(OSError):
                os.close(number)
    gc.freeze()
    statm = Path("/proc/self/statm")
    if statm.exists():
        used = int(statm.read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = used + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))


def _rendered(render: Callable[..., object], arguments: Any, options: Any) -> tuple[bool, str]:  # noqa: ANN401
    try:
        text = str(render(*arguments, **options))
    except RecursionError:
        return False, "it calls itself without end"
    except MemoryError:
        return False, f"it needs more than {MEMORY // 2**20} MB of memory"
    except Exception as error:  # noqa: BLE001 - whatever a template does wrong is reported
        from jinja2 import TemplateError

        name = "" if isinstance(error, TemplateError | TypeError) else f"{type(error).__name__}: "
        return False, f"{name}{error}"[:1000]
    if len(text) > LONGEST_TEXT:
        return False, f"it writes more than {LONGEST_TEXT} characters"
    return True, text
