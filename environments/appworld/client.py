"""Drive the AppWorld engine: open worlds, execute code in them, and evaluate their states.

``EngineProcess`` starts one of the engine's processes, exchanges messages within deadlines, and ends it with all its
children.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import psutil  # type: ignore[import-untyped]

from environments.appworld import sandbox
from environments.appworld.engine.protocol import ConnectionEnded, receive, send
from environments.appworld.installation import REPOSITORY, Installation, find_installation, read_api_documentation
from environments.appworld.records import Difference, EngineLimits, Evaluation, Executed, WorldOpening
from environments.appworld.sandbox import sandboxed
from environments.base import EnvironmentFault, Record, ToolSpec

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


_WORKER = "environments.appworld.engine.worker"
_EVALUATOR = "environments.appworld.engine.evaluator"
_R = TypeVar("_R", bound=Record)


class WorldLost(Exception):
    """Agents' code ended or damaged the world that it ran in: the agent's failure, not a fault of the environment.

    Every failure after a world was given code counts as such: a process that code ended cannot be distinguished from
    one that ended by itself, and code could otherwise avoid a failure by causing a fault.
    """


@contextmanager
def after_code(given: bool) -> Iterator[None]:
    """Read a world's answer in the block: an error becomes WorldLost where the world was ``given`` code.

    Otherwise it is an EnvironmentFault. An answer that does not parse as the requested record counts as no answer.
    """
    try:
        yield
    except ValueError as error:  # pydantic's, or of JSON
        if given:
            raise WorldLost(f"its answer cannot be read ({str(error).splitlines()[0]})") from error
        raise EnvironmentFault(f"AppWorld's answer cannot be read: {error}") from error
    except EnvironmentFault as fault:
        if given:
            raise WorldLost(str(fault).splitlines()[0]) from fault
        raise


class AppWorldEngine(AbstractContextManager["AppWorldEngine"]):
    """A worker and an evaluator, each started when first needed, replaced when it died.

    Use one engine for many episodes, also from several threads (one thread per world); close it when done. The engine
    also ends with this process.

    Raises InputError when AppWorld is not installed, there is no world, or the sandbox is missing (``sandbox``).
    """

    def __init__(self, installation: Installation | None = None, limits: EngineLimits | None = None) -> None:
        self.installation = installation or find_installation()
        self.limits = limits or EngineLimits()
        sandbox.require(self.installation)
        self._lock = threading.Lock()
        self._worker: EngineProcess | None = None
        self._evaluator: EngineProcess | None = None
        self._closed = False

    @cached_property
    def api_docs(self) -> dict[str, ToolSpec]:
        """Every API's documentation by ``app.api``, as the world's own files document it."""
        return read_api_documentation(self.installation)

    def open(self, task_id: str, instruction: str | None = None) -> World:
        """Open a fresh world of ``task_id``; ``instruction`` replaces the task's own, also where the apps show it.

        Raises InputError for an unknown task, EnvironmentFault when no world could be opened in time.
        """
        self.installation.require_task(task_id)
        with self._lock:  # so that no other thread replaces the worker in between
            self._worker = self._live(_WORKER, self._worker)
            connection = self._worker.connect()
        return World(self, connection, task_id, instruction)

    def evaluator(self) -> Connection:
        """Open a fresh child of the evaluator. Raises EnvironmentFault."""
        with self._lock:
            self._evaluator = self._live(_EVALUATOR, self._evaluator)
            return self._evaluator.connect()

    def close(self) -> None:
        """End every process. Idempotent; worlds that are open end too."""
        with self._lock:
            self._closed = True
            ended = [process for process in (self._worker, self._evaluator) if process is not None]
            self._worker = self._evaluator = None
        for process in ended:
            process.end()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _live(self, module: str, process: EngineProcess | None) -> EngineProcess:
        if self._closed:
            raise RuntimeError("the AppWorld engine was closed")
        if process is not None and process.alive():
            return process
        if process is not None:
            process.end()
        root = self.installation.blind if module == _WORKER else self.installation.full
        return EngineProcess(module, self.installation, root, self.limits.warm_up)


class World(AbstractContextManager["World"]):
    """One episode's world, in a process of its own; made by ``AppWorldEngine.open``.

    Every method raises EnvironmentFault when the process died or did not answer in time, and WorldLost instead once it
    was given code: the world is gone then, and nothing else is.
    """

    def __init__(self, engine: AppWorldEngine, connection: Connection, task_id: str, instruction: str | None) -> None:
        self.task_id = task_id
        self._engine = engine
        self._limits = engine.limits
        self._connection = connection
        self._given_code = False
        try:
            self.opening = self._ask(
                WorldOpening,
                "open",
                self._limits.open,
                task_id=task_id,
                instruction=instruction,
                execute_seconds=self._limits.execute,
                api_calls=self._limits.api_calls,
                memory_megabytes=self._limits.megabytes,
            )
        except BaseException:
            self.close()
            raise

    def execute(self, code: str) -> Executed:
        """Run ``code`` as the benchmark does, and keep the databases' changes for the evaluator."""
        self._given_code = True
        return self._ask(Executed, "execute", self._limits.execute + self._limits.grace, code=code)

    def diff(self) -> Difference:
        """Return how the world differs from its task's start, computed by the world's own process."""
        return self._ask(Difference, "difference", self._limits.answer)

    def state(self) -> str:
        """Return the canonical text of ``diff``.

        Equal texts mean equal states of one task, except for ids, times and codes.
        """
        return json.dumps(self.diff().model_dump(mode="json"), sort_keys=True, ensure_ascii=False)

    def evaluate(self) -> Evaluation:
        """Return the official evaluation of the world after the last execution."""
        return self._evaluated(Evaluation, "evaluate")

    def evaluated_diff(self) -> Difference:
        """Return ``diff`` computed by the evaluator from the saved changes."""
        return self._evaluated(Difference, "difference")

    def close(self) -> None:
        """End the process and what it wrote. Idempotent."""
        self._connection.close()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _ask(self, kind: type[_R], operation: str, seconds: float, **arguments: Any) -> _R:  # noqa: ANN401
        with after_code(self._given_code):
            return kind.model_validate(self._connection.ask(operation, seconds, **arguments))

    def _evaluated(self, kind: type[_R], operation: str) -> _R:
        """Return the evaluator's answer on the saved state; a missing evaluator is always an EnvironmentFault."""
        with after_code(self._given_code):
            saved = self._connection.ask("saved", self._limits.answer)
        evaluator = self._engine.evaluator()
        try:
            with after_code(self._given_code):
                reply = evaluator.ask(operation, self._limits.evaluate, task_id=self.task_id, saved=saved)
                return kind.model_validate(reply)
        finally:
            evaluator.close()
