"""Define the records of AppWorld: the start of a task, and the answers of the engine's processes."""

from __future__ import annotations

from enum import StrEnum

from pydantic import JsonValue, ValidationError, field_validator

from environments.appworld.engine.protocol import MAX_DEPTH, depth_of
from environments.base import InputError, Record, TaskSpec

KEY = "appworld"
PYTHON = "python"
"""The tool that runs a block of code, its argument ``code``: the benchmark's way to act."""

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


class ApiCall(Record):
    """One call of an API by an agent's code.

    ``status`` is the HTTP status of the app's answer, None when the call was refused before it reached the app.
    """

    app: str
    api: str
    arguments: dict[str, JsonValue]
    status: int | None

    @field_validator("arguments")
    @classmethod
    def _can_be_recorded(cls, arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """The engine checks it too, but code that broke out of Python can report anything."""
        if any(depth_of(value) > MAX_DEPTH for value in arguments.values()):
            raise ValueError(f"an argument is nested more than {MAX_DEPTH} deep")
        return arguments

    @property
    def name(self) -> str:
        """``app.api``."""
        return f"{self.app}.{self.api}"


class ExecutionStatus(StrEnum):
    """Status of an execution.

    ``ok``: it ended. ``failed``: it raised, timed out, or was not Python. ``refused``: by the code filter, without
    running.
    """

    OK = "ok"
    FAILED = "failed"
    REFUSED = "refused"


class Executed(Record):
    """The answer to one execution: the text the benchmark shows, the calls made, and whether the task is completed."""

    output: str
    status: ExecutionStatus
    calls: tuple[ApiCall, ...]
    completed: bool


class Supervisor(Record):
    """The person whom the agent works for."""

    first_name: str
    last_name: str
    email: str
    phone_number: str


class WorldOpening(Record):
    """The start of an episode; ``now`` is the world's frozen time, ISO 8601."""

    now: str
    supervisor: Supervisor


class UpdatedRecord(Record):
    """A record that existed before: the fields that changed, with their new values (None for accidental ones)."""

    id: int
    fields: dict[str, JsonValue]


class ModelChanges(Record):
    """The changes in one model: records by their business fields, in a canonical order."""

    added: tuple[dict[str, JsonValue], ...]
    updated: tuple[UpdatedRecord, ...]
    removed: tuple[dict[str, JsonValue], ...]


class Difference(Record):
    """The difference of a state from its task's start, by ``app.Model``, with the task's status and answer.

    Different ways to the same end state give equal differences: ids, times and random codes are left out.
    """

    changes: dict[str, ModelChanges]
    status: str | None
    answer: JsonValue


NO_OP_FAIL = "no_op_fail"
NOT_GIVEN = "<<NOT_GIVEN>>"
"""A task's answer before one was given."""


class Check(Record):
    """One check of the official evaluation; ``label`` is no_op_fail or no_op_pass (it holds when nothing is done)."""

    requirement: str
    label: str | None


class Evaluation(Record):
    """The official evaluation of one task: success when every check passes."""

    success: bool
    passes: tuple[Check, ...]
    failures: tuple[Check, ...]


class EngineLimits(Record):
    """Limits of the engine.

    Timeouts in seconds: ``warm_up`` of a process, ``open`` of an episode, ``execute`` of one piece of code (the
    benchmark's 100; the code gets an error), ``grace`` in addition before a world that does not answer is killed,
    ``answer`` of all other requests, ``evaluate``. ``api_calls`` in one execution (the benchmark's 1000), ``megabytes``
    of a world's growth.
    """

    warm_up: float = 180.0
    open: float = 60.0
    execute: int = 100
    grace: float = 20.0
    answer: float = 60.0
    evaluate: float = 120.0
    api_calls: int = 1000
    megabytes: int = 1024
