"""Define the records of the answers of the engine's processes."""

from __future__ import annotations

from enum import StrEnum

from pydantic import JsonValue, field_validator

from environments.appworld.engine.protocol import MAX_DEPTH, depth_of
from environments.base import Record


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
