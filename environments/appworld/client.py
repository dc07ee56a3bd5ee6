"""Drives the AppWorld engine: opens worlds, executes code in them, and has their states judged."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import threading
from functools import cached_property
from types import TracebackType
from typing import Self

from environments.appworld.api_documentation import read_api_documentation
from environments.appworld.engine_process import Connection, EngineProcess
from environments.appworld.installation import Installation, find_installation
from environments.appworld.records import Difference, Evaluation, Executed, Limits, Opening
from environments.base import ToolSpec

_WORKER = "environments.appworld.engine.worker"
_JUDGE = "environments.appworld.engine.judge"
_STATE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class AppWorldEngine:
    """A worker and a judge, each started when first needed, replaced when it died.

    The worker is also replaced after ``limits.episodes`` episodes; those that are open go on until they are closed.
    Use one for many episodes, from several threads if you like (one thread a world); close it when done. A process
    that forgets to, or is killed, takes the engine with it.

    Raises InputError when AppWorld is not installed or there is no world. Implements ``backend.Backend``.
    """

    at_once: int | None = None
    """A world for each episode, as many as the memory holds."""

    def __init__(self, installation: Installation | None = None, limits: Limits | None = None) -> None:
        self.installation = installation or find_installation()
        self.limits = limits or Limits()
        self._lock = threading.Lock()
        self._worker: EngineProcess | None = None
        self._retired: list[EngineProcess] = []
        self._judge: EngineProcess | None = None
        self._numbers = itertools.count(1)
        self._closed = False

    @cached_property
    def api_docs(self) -> dict[str, ToolSpec]:
        """Every API's documentation by ``app.api``, as the world's own files state it."""
        return read_api_documentation(self.installation)

    def open(self, task_id: str, instruction: str | None = None) -> World:
        """A fresh world of ``task_id``; ``instruction`` replaces the task's own, also where the apps show it.

        Raises InputError for an unknown task, EnvironmentFault when no world could be opened in time.
        """
        self.installation.require_task(task_id)
        with self._lock:  # so that nobody replaces the worker in between
            connection = self._live_worker().connect()
        return World(self, connection, task_id, instruction, next(self._numbers))

    def evaluate(self, task_id: str, folder: str) -> Evaluation:
        """The official verdict on the state that a world saved in ``folder``. Raises EnvironmentFault."""
        return Evaluation.model_validate(self._ask_judge("evaluate", task_id, folder))

    def difference(self, task_id: str, folder: str) -> Difference:
        """How the state that a world saved in ``folder`` differs from the task's start, told by the judge."""
        return Difference.model_validate(self._ask_judge("difference", task_id, folder))

    def close(self) -> None:
        """End every process. Idempotent; worlds that are open end too."""
        with self._lock:
            self._closed = True
            ended = [process for process in (self._worker, self._judge, *self._retired) if process is not None]
            self._worker = self._judge = None
            self._retired.clear()
        for process in ended:
            process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def release(self, process: EngineProcess) -> None:
        """Tell that one of ``process``'s worlds was closed: one that was replaced ends with its last world."""
        with self._lock:
            if process not in self._retired or process.busy:
                return
            self._retired.remove(process)
        process.end()

    def _live_worker(self) -> EngineProcess:
        """The worker to open an episode on; the lock is held."""
        self._require_open()
        worker = self._worker
        if worker is not None and worker.opened >= self.limits.episodes:
            self._worker = None
            if worker.busy:
                self._retired.append(worker)
            else:
                worker.end()
        elif worker is not None and not worker.alive():
            self._worker = None
            worker.end()
        if self._worker is None:
            self._worker = self._start(_WORKER)
        return self._worker

    def _ask_judge(self, operation: str, task_id: str, folder: str) -> object:
        with self._lock:
            self._require_open()
            if self._judge is not None and not self._judge.alive():
                ended, self._judge = self._judge, None
                ended.end()
            if self._judge is None:
                self._judge = self._start(_JUDGE)
            connection = self._judge.connect()
        try:
            return connection.ask(operation, self.limits.evaluate, task_id=task_id, folder=folder)
        finally:
            connection.close()

    def _start(self, module: str) -> EngineProcess:
        root = self.installation.blind if module == _WORKER else self.installation.full
        return EngineProcess(module, self.installation, root, self.limits.warm_up)

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("the AppWorld engine was closed")


class World:
    """One episode's world, in a process of its own; made by ``AppWorldEngine.open``.

    Every method raises EnvironmentFault when the process died or did not answer in time: the world is gone then, and
    nothing else is.
    """

    def __init__(
        self, engine: AppWorldEngine, connection: Connection, task_id: str, instruction: str | None, number: int
    ) -> None:
        self.task_id = task_id
        self.folder = connection.process.scratch / f"episode-{number}"
        self._engine = engine
        self._limits = engine.limits
        self._connection = connection
        self._saved: set[str] = set()
        try:
            self.opening = Opening.model_validate(
                self._connection.ask(
                    "open",
                    self._limits.open,
                    task_id=task_id,
                    folder=str(self.folder),
                    instruction=instruction,
                    execute_seconds=self._limits.execute,
                    api_calls=self._limits.api_calls,
                    memory_megabytes=self._limits.megabytes,
                )
            )
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process's id, which is also its group's."""
        return self._connection.pid

    @property
    def alive(self) -> bool:
        """Whether the process is there and can be asked."""
        return self._connection.alive

    def execute(self, code: str) -> Executed:
        """Run ``code`` as the benchmark does, and keep the databases' changes where the judge finds them."""
        seconds = self._limits.execute + self._limits.grace
        return Executed.model_validate(self._connection.ask("execute", seconds, code=code))

    def save(self, name: str) -> None:
        """Keep the databases under ``name``; variables of the code are not part of it.

        Raises ValueError for a name of other than 1 to 64 letters, digits, _ and -.
        """
        if not _STATE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot name a state: use letters, digits, _ and -, 64 at most")
        self._connection.ask("save", self._limits.answer, name=name)
        self._saved.add(name)

    def restore(self, name: str) -> None:
        """Return to the databases kept under ``name``; the engine's random seed begins anew, variables stay.

        Raises ValueError for a name that nothing was saved under.
        """
        if name not in self._saved:
            raise ValueError(f"nothing was saved under {name!r}")
        self._connection.ask("restore", self._limits.answer, name=name)

    def diff(self) -> Difference:
        """How the world differs from its task's start, as the world's own process tells it."""
        return Difference.model_validate(self._connection.ask("difference", self._limits.answer))

    def state(self) -> str:
        """Canonical text of ``diff``: equal texts mean equal states of one task, but for ids, times and codes."""
        return json.dumps(self.diff().model_dump(mode="json"), sort_keys=True, ensure_ascii=False)

    def evaluate(self) -> Evaluation:
        """The official verdict on the world as it is after the last execution or restore."""
        return self._engine.evaluate(self.task_id, str(self.folder))

    def judged_diff(self) -> Difference:
        """``diff`` as the judge tells it, from the saved changes."""
        return self._engine.difference(self.task_id, str(self.folder))

    def close(self) -> None:
        """End the process and remove what it wrote. Idempotent."""
        self._connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._engine.release(self._connection.process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
