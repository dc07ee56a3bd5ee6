"""What the engine's processes answer, as records."""

from __future__ import annotations

from enum import StrEnum

from pydantic import JsonValue

from environments.base import Record


class ApiCall(Record):
    """One call of an API by an agent's code.

    ``status`` is the HTTP status of the app's answer, None when the call was refused before it reached the app.
    """

    app: str
    api: str
    arguments: dict[str, JsonValue]
    status: int | None

    @property
    def name(self) -> str:
        """``app.api``."""
        return f"{self.app}.{self.api}"


class ExecutionStatus(StrEnum):
    """How an execution went.

    ``ok``: it ended. ``failed``: it raised, ran out of its time, or was no Python. ``refused``: by the code filter,
    nothing of it ran.
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
    """What is known at the start of an episode; ``now`` is the world's frozen time, ISO 8601, ``apps`` describes them.

    AppWorld's own prompt tells an agent these things.
    """

    instruction: str
    now: str
    supervisor: Supervisor
    apps: dict[str, str]


class UpdatedRecord(Record):
    """A record that was there before: the fields that changed, with their new values (None for accidental ones)."""

    id: int
    fields: dict[str, JsonValue]


class ModelChanges(Record):
    """What changed in one model: records by their business fields, in an order of their own."""

    added: tuple[dict[str, JsonValue], ...]
    updated: tuple[UpdatedRecord, ...]
    removed: tuple[dict[str, JsonValue], ...]


class Difference(Record):
    """How a state differs from its task's start: by ``app.Model``; and the task's status and answer.

    Two ways to the same end give equal differences: ids, times and random codes are left out.
    """

    changes: dict[str, ModelChanges]
    status: str | None
    answer: JsonValue


NO_OP_FAIL = "no_op_fail"
NOT_GIVEN = "<<NOT_GIVEN>>"
"""A task's answer as long as nobody has given one."""


class Check(Record):
    """One check of the official evaluation; ``label`` is no_op_fail or no_op_pass (it holds when nothing is done)."""

    requirement: str
    label: str | None


class Evaluation(Record):
    """The official verdict on one task: success when every check passes."""

    success: bool
    difficulty: int | None
    passes: tuple[Check, ...]
    failures: tuple[Check, ...]


class EngineLimits(Record):
    """EngineLimits of the engine.

    Seconds: ``warm_up`` of a process, ``open`` of an episode, ``execute`` of one piece of code (the benchmark's 100;
    the code is told), ``grace`` on top before a world that does not answer is killed, ``answer`` of everything else,
    ``evaluate``, ``queue`` for a server that others play on. ``api_calls`` in one execution (the benchmark's 1000),
    ``megabytes`` that a world may grow by, ``episodes`` of a worker before it is replaced by a fresh one.
    """

    warm_up: float = 180.0
    open: float = 60.0
    execute: int = 100
    grace: float = 20.0
    answer: float = 60.0
    evaluate: float = 120.0
    queue: float = 900.0
    api_calls: int = 1000
    megabytes: int = 1024
    episodes: int = 500
