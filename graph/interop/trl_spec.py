"""A run's tasks for TRL's own ``GRPOTrainer``: data set, environments and reward, in the shape of TRL's specs.

``trl.experimental.harbor.HarborSpec`` and ``OpenRewardSpec`` have the same three properties, one for each argument of
the trainer. A rollout is one conversation there: the trainer stops at a message without a call. So in a task of several
user turns a turn ends by the tool ``finish_turn``, which answers with the next one (``graph.interop.attempt``).

TRL reads a tool from a method: its signature and docstring, made here of the tool's schema. Every tool of a task is
offered from its first turn on, those that the environment withholds at first included.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from types import GenericAlias, NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import JsonValue

from environments.base import Environment, EnvironmentFault, InputError, TaskSpec, recorded
from environments.turns import agent_calls
from graph.export.conversations import begin
from graph.interop.attempt import FINISH_TURN, Attempt
from graph.settings import load_recipe
from memory.records import Task
from memory.run import RunDirectory
from memory.tasks import load_tasks
from training.grpo.advantages import reward
from training.rendering.tool_calls import Schema, tool_schema
from training.settings import TrainingSettings

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["CoEvolveSpec", "TaskEnvironment", "environment_class", "outcome_reward"]

_OVER = "The conversation is over: nothing was run."
_FAILED = "The environment failed: this attempt is not scored."
_RESERVED = frozenset({"reset", "get_reward", FINISH_TURN.name})
_SECTIONS = re.compile(r"\b(Args|Returns|Raises|choices):", re.IGNORECASE)
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}
_SCALARS = (str, int, float, bool, NoneType)


class TaskEnvironment:
    """A place for one rollout at a time, which TRL resets to a row's task; subclasses have its tools as methods."""

    _environment: ClassVar[Environment]
    _tasks: ClassVar[Mapping[str, Task]]
    _settings: ClassVar[TrainingSettings]

    def __init__(self) -> None:
        self._attempt: Attempt | None = None
        self._failure: Exception | None = None

    def reset(self, task_id: str, **_: object) -> None:
        """Open the task of a row, whose ``prompt`` is what its agent is shown first."""
        self._close()
        self._task = self._tasks[task_id]
        self._actions, self._over, self._failure = 0, False, None
        with self._watched():
            self._attempt = Attempt(self._environment, self._task)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Keep what goes wrong inside: TRL would show it to the policy and score the rollout."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - outcome_reward raises what is no fault
            self._failure = error

    def _call(self, name: str, arguments: dict[str, JsonValue]) -> str:
        if self._failure is None and self._over:
            return _OVER
        if self._failure is None:
            self._actions += name != FINISH_TURN.name
            with self._watched():
                answer = self._opened.call(name, arguments)
                self._over = answer.done
                return answer.text
        return _FAILED

    def _score(self) -> float | None:
        """Return the rollout's reward, None where the environment failed, and close the attempt.

        An error that is no fault of the environment is raised here.
        """
        scored = None
        if self._failure is None:
            with self._watched():
                scored = reward(self._opened.outcome(), self._actions, agent_calls(self._task), self._settings)
        self._close()
        if self._failure is not None and not isinstance(self._failure, EnvironmentFault):
            raise self._failure
        return scored

    @property
    def _opened(self) -> Attempt:
        if self._attempt is None:
            raise RuntimeError("the attempt is closed: reset the environment first")
        return self._attempt

    def _close(self) -> None:
        if self._attempt is not None:
            self._attempt.close()
            self._attempt = None


def environment_class(
    environment: Environment, tasks: Sequence[Task], settings: TrainingSettings
) -> type[TaskEnvironment]:
    """Return the class of environments for ``tasks``, which all have the same tools, and several turns or one.

    Raises InputError for a tool or parameter whose name no method can have.
    """
    methods = {tool.name: _tool(tool_schema(tool)["function"]) for tool in environment.tools(_names(tasks[0]))}
    if _several_turns(tasks[0]):
        methods[FINISH_TURN.name] = _method(tool_schema(FINISH_TURN)["function"])
    known = {task.id: task for task in tasks}
    given = {"_environment": environment, "_tasks": known, "_settings": settings}
    return type("CoEvolveEnvironment", (TaskEnvironment,), {**given, **methods})


def outcome_reward(
    environments: Sequence[TaskEnvironment], log_metric: Callable[[str, float], None] | None = None, **_: object
) -> list[float | None]:
    """Return the rewards of rollouts, as TRL's reward function. It leaves None out of a group's baseline and update.

    Raises EnvironmentFault when the environment failed all of them.
    """
    rewards = [one._score() for one in environments]
    if log_metric is not None:
        log_metric("infrastructure_faults", float(rewards.count(None)))
    if rewards.count(None) == len(rewards):
        raise EnvironmentFault(f"the environment failed all {len(rewards)} rollouts: {environments[0]._failure}")
    return rewards


class CoEvolveSpec:
    """The tasks of a run as arguments of ``GRPOTrainer``.

    Rewards are those of the run's ``training`` settings; every other setting of the training is TRL's.

    Args:
        run: a run's folder with tasks; no round need be finished.

    Raises InputError for a folder that is no run, a run without tasks, and an environment that cannot be opened or
    rewarded.
    """

    def __init__(self, run: str | Path) -> None:
        directory = RunDirectory.open(Path(run))
        settings = load_recipe(directory.settings_path)
        directory.check_settings()
        tasks = load_tasks(directory)
        if not tasks:
            raise InputError(f"{directory.tasks_path} holds no task: make D_0 with coevolve evolve")
        self._settings = settings.training
        self._environment = recorded(settings.environment.open())
        groups: dict[tuple[object, ...], list[Task]] = defaultdict(list)
        for task in tasks:
            groups[_several_turns(task), *sorted(_names(task))].append(task)
        self._groups = {f"{self._environment.name}-{n}": tasks for n, tasks in enumerate(groups.values())}

    @cached_property
    def train_dataset(self) -> Dataset:
        """Rows of ``prompt`` (messages), ``environment`` (a key of ``environment_factory``) and ``task_id``.

        Opens an episode of each task. Raises InputError for one that cannot be opened.
        """
        from datasets import Dataset, Features, Json, List, Value

        rows = [
            {"prompt": self._prompt(task), "environment": name, "task_id": task.id}
            for name, tasks in self._groups.items()
            for task in tasks
        ]
        features = Features({"prompt": List(Json()), "environment": Value("string"), "task_id": Value("string")})
        return Dataset.from_list(rows, features=features)

    @cached_property
    def environment_factory(self) -> dict[str, type[TaskEnvironment]]:
        """A class for each set of tools: a prompt shows those of its task alone."""
        return {
            name: environment_class(self._environment, tasks, self._settings) for name, tasks in self._groups.items()
        }

    @property
    def reward_funcs(self) -> Callable[..., list[float | None]]:
        """The reward of the environment's outcome: see ``outcome_reward``."""
        return outcome_reward

    def _prompt(self, task: Task) -> list[Mapping[str, Any]]:
        try:
            with closing(self._environment.open(task)) as episode:
                return list(begin(self._environment, episode, task, documented=_names(task)).messages)
        except EnvironmentFault as fault:
            raise InputError(f"task {task.id} cannot be opened ({fault}): remove it") from fault


def _names(task: TaskSpec) -> tuple[str, ...]:
    """Return the tools that a task offers in any of its turns."""
    return tuple(dict.fromkeys((*task.tools, *(name for names in task.withheld.values() for name in names))))


def _several_turns(task: TaskSpec) -> bool:
    return len(task.turns) - task.played > 1


def _tool(schema: Schema) -> Callable[..., str]:
    """Return the method of a tool. Raises InputError where none can have its name."""
    name = schema["name"]
    if not name.isidentifier() or name.startswith("_") or name in _RESERVED:
        raise InputError(f"TRL calls tools as methods, and none can be called {name!r}: leave the tool out")
    return _method(schema)


def _method(schema: Schema) -> Callable[..., str]:
    """Return a method whose signature and docstring transformers reads as the given schema.

    What neither can say (defaults, keys of objects, bounds) is JSON at the end of a description.
    """
    from transformers.utils.chat_template_utils import get_json_schema

    name, words, parameters = schema["name"], schema["description"], schema["parameters"]

    def method(self: TaskEnvironment, /, **arguments: JsonValue) -> str:
        return self._call(name, arguments)

    if shared := {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}:
        words = f"{words} {json.dumps(shared, ensure_ascii=False)}"
    listed, required = parameters.get("properties", {}), parameters.get("required", ())
    properties = {one: given if isinstance(given, dict) else {} for one, given in listed.items()}
    described = {one: str(given.get("description", "")) for one, given in properties.items()}
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    try:
        taken = [
            inspect.Parameter(
                one,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=_hint(given),
                default=inspect.Parameter.empty if one in required else None,
            )
            for one, given in properties.items()
        ]
        method.__signature__ = inspect.Signature([receiver, *taken])  # type: ignore[attr-defined]
    except ValueError as error:
        raise InputError(
            f"TRL calls tools as methods, and {name} cannot be one ({error}): leave the tool out"
        ) from None
    method.__name__ = method.__qualname__ = name
    method.__annotations__ = {one.name: one.annotation for one in taken}
    method.__doc__ = _docstring(name, words, described)
    read = get_json_schema(method)["function"]["parameters"]["properties"]
    for one, given in properties.items():
        lost = {key: value for key, value in given.items() if key != "description" and read[one].get(key) != value}
        if lost:
            described[one] = f"{described[one]} {json.dumps(lost, ensure_ascii=False)}"
    method.__doc__ = _docstring(name, words, described)
    return method


def _hint(schema: Schema) -> Any:  # noqa: ANN401 - a type
    choices, kind = schema.get("enum"), schema.get("type")
    if choices and all(isinstance(one, _SCALARS) for one in choices):
        return Literal[tuple(choices)]
    if kind == "array":
        return GenericAlias(list, (_hint(schema["items"]),)) if isinstance(schema.get("items"), dict) else list
    return _TYPES.get(kind, Any) if isinstance(kind, str) else Any


def _docstring(name: str, words: str, described: Mapping[str, str]) -> str:
    """Return a docstring of Google's form; no description in it begins a section, or a list of choices."""

    def line(text: str) -> str:
        return _SECTIONS.sub(r"\1 -", " ".join(text.split()))

    listed = "".join(f"\n    {one}: {line(text) or one}" for one, text in described.items())
    return f"{line(words) or name}\n\nArgs:{listed}\n" if listed else line(words) or name
