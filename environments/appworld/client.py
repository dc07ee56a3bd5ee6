"""Drive the AppWorld engine: open worlds, execute code in them, and evaluate their states."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeVar

from environments.appworld import sandbox
from environments.appworld.engine_process import Connection, EngineProcess
from environments.appworld.installation import Installation, find_installation, read_api_documentation
from environments.appworld.records import Difference, EngineLimits, Evaluation, Executed, WorldOpening
from environments.base import EnvironmentFault, Record, ToolSpec

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


class AppWorldEngine:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _live(self, module: str, process: EngineProcess | None) -> EngineProcess:
        """Return the process if it lives, else a new one."""
        if self._closed:
            raise RuntimeError("the AppWorld engine was closed")
        if process is not None and process.alive():
            return process
        if process is not None:
            process.end()
        root = self.installation.blind if module == _WORKER else self.installation.full
        return EngineProcess(module, self.installation, root, self.limits.warm_up)


class World:
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
        limits = {"execute_seconds": self._limits.execute, "api_calls": self._limits.api_calls}
        limits["memory_megabytes"] = self._limits.megabytes
        try:
            with after_code(given=False):
                opening = connection.ask("open", self._limits.open, task_id=task_id, instruction=instruction, **limits)
                self.opening = WorldOpening.model_validate(opening)
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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
