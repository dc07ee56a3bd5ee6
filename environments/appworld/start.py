"""Read and write the initial state of an AppWorld episode, as tasks and start states hold it."""

from __future__ import annotations

from pydantic import JsonValue, ValidationError

from environments.base import InputError, Record, TaskSpec

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
