"""Read the start of a task, and the world's own tasks as task specifications, by split.

They are read from the full root: instructions, apps and solutions of train and dev only. Their content is not written
into the project.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from environments.appworld.installation import Installation
from environments.appworld.worlds import PYTHON
from environments.base import InputError, Record, TaskSpec, ToolCall
from environments.benchmark import OfficialTask, OfficialTasks

KEY = "appworld"
NO_INSTRUCTION = "(no instruction yet)"
"""The task's text in the apps where a task has none: they refuse an empty one."""


class Start(Record):
    """The world of the benchmark's task ``task``; ``official``: the benchmark's checks of that task apply."""

    task: str
    official: bool = False

    def initial_state(self) -> dict[str, JsonValue]:
        """Return the initial state in the form of a task."""
        return {KEY: self.model_dump(exclude_defaults=True)}


def start_of(task: TaskSpec) -> Start:
    """Return the start of ``task``. Raises InputError for an initial state that is not AppWorld's."""
    if set(task.initial_state) != {KEY}:
        raise InputError(f'the initial state of an AppWorld task is {{"{KEY}": {{"task": ID}}}}: write it so')
    try:
        start = Start.model_validate(task.initial_state[KEY])
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise InputError(f"initial_state.{KEY}.{where}: {error.errors()[0]['msg']}") from error
    if start.official and len(task.turns) != 1:
        raise InputError(f"the official task {start.task} has {len(task.turns)} user turns: give it one")
    return start


def instruction_of(task: TaskSpec) -> str | None:
    """Return the instruction for the apps to show: the first user turn; None keeps the benchmark's own."""
    if start_of(task).official:
        return None
    return task.turns[0] if task.turns[0].strip() else NO_INSTRUCTION


_RUN = "solution(apis, None)"


def official_task(installation: Installation, task_id: str, split: str) -> TaskSpec:
    """Return the benchmark's task ``task_id`` of ``split``, which the benchmark's checks evaluate.

    The reference is its compiled solution, which needs no import of the package, as one block of code. Raises
    InputError for a split other than train and dev, a task that is not in it, and a task whose files are incomplete.
    """
    if task_id not in installation.task_ids(split):
        raise InputError(f"the split {split} has no task {task_id!r}: use one of its ids")
    solution = ToolCall(name=PYTHON, arguments={"code": _solution(installation, task_id)})
    return as_task(installation, task_id, split, (solution,))


def as_task(installation: Installation, task_id: str, split: str, reference: tuple[ToolCall, ...]) -> TaskSpec:
    """Return the benchmark's task with this reference. Raises InputError for files that cannot be read.

    Its only tool is ``python``: the code that the agent writes may call every API.

    This function does not check the split, only that the world has the task: the caller must check the split.
    """
    installation.require_task(task_id)
    specification = _read_json(_folder(installation, task_id) / "specs.json")
    return TaskSpec(
        environment="appworld",
        split=split,
        classes=(PYTHON,),
        turns=(specification["instruction"],),
        initial_state=Start(task=task_id, official=True).initial_state(),
        tools=(PYTHON,),
        reference=(reference,),
    )


def required_apps(installation: Installation, task_id: str) -> tuple[str, ...]:
    """Return the apps that the task requires by its metadata, in order of name."""
    return tuple(sorted(_read_json(_folder(installation, task_id) / "ground_truth" / "required_apps.json")))


def training_tasks(installation: Installation) -> OfficialTasks:
    """Return the tasks of the train split. Raises InputError for a world that is not whole."""
    installation.require_split("train")
    ids = installation.task_ids("train")
    tasks = tuple(OfficialTask(one, official_task(installation, one, "train")) for one in ids)
    return OfficialTasks(tasks=tasks, total=len(ids))


def _solution(installation: Installation, task_id: str) -> str:
    path = _folder(installation, task_id) / "ground_truth" / "compiled_solution.py"
    try:
        return f"{path.read_text()}\n{_RUN}"
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): build or download the world anew") from error


def _folder(installation: Installation, task_id: str) -> Path:
    return installation.full / "data" / "tasks" / task_id


def _read_json(path: Path) -> Any:  # noqa: ANN401 - the benchmark's file
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): build or download the world anew") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): build or download the world anew") from error
