"""Start one of the engine's processes, exchange messages within deadlines, and end it with all its children."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from environments.appworld.engine.protocol import ConnectionEnded, receive, send
from environments.appworld.installation import REPOSITORY, Installation
from environments.appworld.sandbox import sandboxed
from environments.base import EnvironmentFault

LOG_TAIL = 4000  # bytes of a log that a fault quotes
MAX_REPLY = 16 * 1024 * 1024  # bytes of a world's answer
_CONTROL_SECONDS = 30.0  # for one answer of a zygote, which only ever forks
_END_SECONDS = 10.0


class EngineProcess:
    """A zygote (``engine/zygote.py``): the worker or the evaluator.

    Args:
        module: the program, as a module.
        installation: whose Python runs it.
        root: the AppWorld root it works on.
        warm_up: seconds until it must be ready.

    Safe to use from several threads. Raises EnvironmentFault, with the end of its log, when it does not become ready.
    """

    def __init__(self, module: str, installation: Installation, root: Path, warm_up: float) -> None:
        self.name = module.rsplit(".", maxsplit=1)[-1]
        self._lock = threading.Lock()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - without a name, so it needs no removal
        self._control, theirs = socket.socketpair()
        arguments = ["-W", "ignore", "-m", module, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                sandboxed(installation, (root,), arguments),
                cwd=REPOSITORY,
                env={"PATH": os.environ.get("PATH", os.defpath)},  # code could read bubblewrap's own variables
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        try:
            self._ask({"root": str(root)}, warm_up)
        except EnvironmentFault:
            self.end()
            raise

    def alive(self) -> bool:
        """Return whether it answers."""
        if self._process.poll() is not None:
            return False
        try:
            with self._lock:
                return "alive" in self._ask({"op": "ping"}, _CONTROL_SECONDS)
        except EnvironmentFault:
            return False

    def connect(self) -> Connection:
        """Open a connection to a fresh child. Raises EnvironmentFault."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                send(self._control, {"op": "open"})
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
                pid = self._ask(None, _CONTROL_SECONDS)["pid"]
            except EnvironmentFault:
                ours.close()
                raise
            except OSError as error:
                ours.close()
                raise self.fault("it ended before the episode began") from error
        return Connection(self, ours, pid)

    def kill(self, connection: Connection) -> None:
        """Kill a child and its group through its zygote; every child ends with that.

        In the sandbox a child has another process id than here.
        """
        with self._lock, suppress(EnvironmentFault):
            if self._process.poll() is None:
                self._ask({"op": "kill", "pid": connection.number}, _CONTROL_SECONDS)

    def end(self) -> None:
        """End it and all its children. Idempotent."""
        self._control.close()  # the zygote waits for this and then kills its children
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()

    def fault(self, what: str, trace: str = "") -> EnvironmentFault:
        """Return the fault with ``what`` happened, where (``trace``), and the end of the log."""
        status = self._process.poll()
        ended = "" if status is None else f" (it ended with status {status})"
        return EnvironmentFault(f"AppWorld's {self.name}{ended}: {what}; the end of its log:\n{self._tail()}{trace}")

    def _ask(self, message: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
        """Exchange one message over the control connection; without a message, only receive the answer."""
        try:
            if message is not None:
                self._control.settimeout(seconds)
                send(self._control, message)
            return receive(self._control, seconds)
        except TimeoutError as error:
            self._kill()  # a zygote that does not answer cannot be used again
            raise self.fault(f"it did not answer within {seconds:g} s") from error
        except (OSError, ValueError) as error:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            raise self.fault("it ended") from error

    def _kill(self) -> None:
        """Kill the process and bubblewrap's first process, with which all others end."""
        with suppress(psutil.Error):
            for child in psutil.Process(self._process.pid).children():
                child.kill()
        self._process.kill()

    def _tail(self) -> str:
        descriptor = self._log.fileno()
        start = max(0, os.fstat(descriptor).st_size - LOG_TAIL)
        return os.pread(descriptor, LOG_TAIL, start).decode(errors="replace").strip()


class Connection:
    """A child of an engine process; for one thread at a time."""

    def __init__(self, process: EngineProcess, connection: socket.socket, pid: int) -> None:
        self.process = process
        self.number = pid  # in the zygote's namespace
        self._socket = connection
        self._open = True

    def ask(self, operation: str, seconds: float, **arguments: Any) -> Any:  # noqa: ANN401 - JSON, parsed into a record by the caller
        """Request ``operation`` of the child. Raises EnvironmentFault; the child is then gone."""
        if not self._open:
            raise self.process.fault(f"{operation} was asked of an episode that is over")
        try:
            self._socket.settimeout(seconds)
            send(self._socket, {"op": operation, **arguments})
            reply = receive(self._socket, seconds, MAX_REPLY)
        except TimeoutError as error:
            self.close()
            raise self.process.fault(f"{operation} did not end within {seconds:g} s, the episode was killed") from error
        except (OSError, ValueError) as error:
            self.close()
            what = "the episode's process ended" if isinstance(error, ConnectionEnded) else str(error)
            raise self.process.fault(f"{what} during {operation}") from error
        if "value" not in reply:
            self.close()
            why = str(reply.get("error"))[:LOG_TAIL]
            raise self.process.fault(f"{operation} failed: {why}", str(reply.get("trace", ""))[-LOG_TAIL:])
        return reply["value"]

    def close(self) -> None:
        """Kill the child without waiting for it. Idempotent."""
        if self._open:
            self._open = False
            self._socket.close()
            self.process.kill(self)
