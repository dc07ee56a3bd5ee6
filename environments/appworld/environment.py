"""Implement the AppWorld environment: open episodes on the real engine and list the training start states.

Everything in this process that plays the same world shares one engine, which ends with the process. An API only reads
when its documentation names the HTTP method GET.
"""

from __future__ import annotations

import atexit
import copy
import json
import os
import threading
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path

from pydantic import JsonValue

from environments.appworld.client import AppWorldEngine
from environments.appworld.episode import AppWorldEpisode, replayed
from environments.appworld.installation import OPEN_SPLITS, Installation, find_installation, required_apps
from environments.appworld.records import PYTHON, Start, instruction_of, start_of
from environments.appworld.worlds import PlayedWorld, RecordedWorld, WorldRecord
from environments.base import InputError, Parameter, StartState, TaskSpec, ToolCall, ToolSpec
from environments.turns import References, check_turns
from environments.verification.canonical import Canonical, CanonicalStep, canonical_call
from environments.verification.programs import called


def read_apis(installation: Installation) -> frozenset[str]:
    """Return the names (``app.api``) of the APIs that are called by GET."""
    folder = installation.blind / "data" / "api_docs" / "standard"
    return frozenset(
        f"{path.stem}.{api}"
        for path in folder.glob("*.json")
        for api, document in json.loads(path.read_text()).items()
        if isinstance(document, dict) and document.get("method") == "GET"
    )


_engines: dict[tuple[int, Path], AppWorldEngine] = {}
_lock = threading.Lock()


def shared_engine(installation: Installation) -> AppWorldEngine:
    """Return the process's engine for the installation's world; its worker and evaluator start when first needed.

    A forked process gets an engine of its own: two processes must not share one connection. Raises InputError
    where the sandbox is missing (``client.AppWorldEngine``).
    """
    key = (os.getpid(), installation.world)
    with _lock:
        if key not in _engines:
            _engines[key] = AppWorldEngine(installation)
            atexit.register(_end, key)
        return _engines[key]


def _end(key: tuple[int, Path]) -> None:
    if key[0] == os.getpid():
        _engines[key].close()


NAME = "appworld"
MAX_STEPS = 30
UNKNOWN = "unknown"
"""The split in the canonical form of a world that does not belong to an open split."""

ALWAYS = (PYTHON, "api_docs", "supervisor")
"""Classes that every start state has beside the apps that its task needs."""

_PYTHON_TOOL = ToolSpec(
    name=PYTHON,
    group=PYTHON,
    description="Run a block of Python code and answer with what it prints. Variables are kept from block to block. "
    "Apps are called as apis.app_name.api_name(parameter=value); apis.api_docs documents them, and "
    "apis.supervisor.complete_task marks the task as complete.",
    parameters=(
        Parameter(
            name="code",
            type="code",
            description="The code to run.",
            required=True,
            trivial=("apis.supervisor.complete_task()", 'apis.supervisor.complete_task(status="fail")'),
        ),
    ),
)


class AppWorldEnvironment:
    """Implements ``environments.base.Environment``; may be used from several threads, one for each episode.

    An action is a block of Python (the tool ``python``, the benchmark's way) or one API by its name ``app.api``, which
    is run as one printed line. Code may call every API, whatever the task's tools.

    Args:
        max_steps: actions in one user turn before further ones are not run (official: 30).
        engine: opens the worlds; by default the process's own for the world that ``find_installation`` names.

    Worlds of train and dev open here, those of a test split never: see ``evaluation_sets``.

    Raises InputError when AppWorld is not installed, there is no world, or agents' code cannot be sandboxed.
    """

    name: str = NAME

    def __init__(self, max_steps: int = MAX_STEPS, engine: AppWorldEngine | None = None) -> None:
        self._engine = engine or shared_engine(find_installation())
        self._max_steps = max_steps
        self._record = WorldRecord()
        self._recalls = False
        self._references = References(
            lambda task: replayed(self._recorded._play, task), "initial_state", "setup", "turns", "reference"
        )

    def open(self, task: TaskSpec) -> AppWorldEpisode:
        """Open a fresh episode.

        Raises InputError for a task of another environment, or unknown worlds, apps or tools, and EnvironmentFault when
        the engine cannot open a world.
        """
        self._check(task)
        return AppWorldEpisode(task, self._play(task), self._references, self._max_steps)

    def recorded(self) -> AppWorldEnvironment:
        """Return this environment with a cache (``environments.base``), the same object at every call.

        Official tasks are always played: some of their checks read the calls that reached the apps.
        """
        return self._recorded

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """Return the documentation of ``python`` and of APIs by ``app.api``, in the given order. Raises InputError."""
        for name in names:
            if name not in self._tools:
                raise InputError(f"AppWorld has no tool {name!r}: use {PYTHON}, or an API as app.api")
        return tuple(self._tools[name] for name in names)

    def starts(self) -> tuple[StartState, ...]:
        """Return the start states of the tasks of the training split, each with the apps that its task needs."""
        return self._starts

    def canonical(self, task: TaskSpec) -> Canonical:
        """Return the task's canonical form without opening a world (``verification.canonical``).

        The world's id determines the start state and its split; the APIs of a call determine whether it only reads.
        Raises InputError for an initial state that is not AppWorld's.
        """
        world = start_of(task).task
        parts: dict[str, JsonValue] = {"world": world}
        split = next((name for name in OPEN_SPLITS if world in self._engine.installation.task_ids(name)), UNKNOWN)
        steps = tuple(self._step(call) for calls in task.reference for call in calls)
        return Canonical(parts=parts, prepared=parts, steps=steps, split=split)

    def _step(self, call: ToolCall) -> CanonicalStep:
        group, text = canonical_call(self, call)
        code = call.arguments.get("code")
        try:
            names = called(code) if call.name == PYTHON and isinstance(code, str) else (call.name,)
        except ValueError:  # it is not Python, and may do anything
            names = (PYTHON,)
        return CanonicalStep(group, text, observation="", change="", reads=all(name in self._reads for name in names))

    @cached_property
    def _recorded(self) -> AppWorldEnvironment:
        with_memory = copy.copy(self)
        with_memory._recalls = True
        with_memory.__dict__["_recorded"] = with_memory
        return with_memory

    @cached_property
    def _tools(self) -> dict[str, ToolSpec]:
        return {PYTHON: _PYTHON_TOOL, **self._engine.api_docs}

    @cached_property
    def _reads(self) -> Collection[str]:
        return read_apis(self._engine.installation)

    @cached_property
    def _starts(self) -> tuple[StartState, ...]:
        installation = self._engine.installation
        installation.require_split("train")
        starts = []
        for task_id in installation.task_ids("train"):
            classes = tuple(dict.fromkeys((*ALWAYS, *required_apps(installation, task_id))))
            start = StartState(
                id=task_id,
                environment=NAME,
                split="train",
                classes=classes,
                initial_state=Start(task=task_id).initial_state(),
                tools=tuple(tool.name for group in classes for tool in self._tools.values() if tool.group == group),
            )
            starts.append(start)
        return tuple(starts)

    def _play(self, task: TaskSpec) -> PlayedWorld | RecordedWorld:
        start, tools, reads = start_of(task), self._tools, self._reads

        def opened() -> PlayedWorld:
            return PlayedWorld(self._engine.open(start.task, instruction_of(task)), tools, reads)

        if start.official:
            return opened()
        return RecordedWorld(self._record, start.task, opened, reads, recalls=self._recalls)

    @cached_property
    def _open_worlds(self) -> frozenset[str]:
        return frozenset(task for split in OPEN_SPLITS for task in self._engine.installation.task_ids(split))

    def _check(self, task: TaskSpec) -> None:
        """Check the names of world, apps, tools and calls; errors of the latter an agent never observes."""
        check_turns(task, NAME, len(task.turns) - 1)
        world, known = start_of(task).task, {tool.group for tool in self._tools.values()}
        if world not in self._open_worlds:
            self._engine.installation.require_task(world)
            raise InputError(f"the world of the task {world!r} is not open here: use an id of train or dev")
        for name in task.classes:
            if name not in known:
                raise InputError(f"{name!r} is not an app of AppWorld: use some of {', '.join(sorted(known))}")
        for tool in self.tools((*task.tools, *(name for names in task.withheld.values() for name in names))):
            if tool.group not in task.classes:
                raise InputError(f"the tool {tool.name!r} belongs to none of the task's apps {', '.join(task.classes)}")
        for call in (*task.setup, *(call for calls in task.reference for call in calls)):
            if call.name not in self._tools:
                raise InputError(f"the task calls {call.name!r}, which AppWorld does not have: use app.api")
