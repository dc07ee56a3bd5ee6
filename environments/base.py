"""The contract between agents and the places they act in: tasks, calls, observations, outcomes, episodes.

An ``Environment`` opens single-use ``Episode`` objects. An episode is driven by actions, answers each with an
``Observation``, and ends in an ``Outcome`` that holds the checks of every user turn. Everything else in the project
(verification, roles, training, evaluation) is written against these types.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol, Self, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator


class InputError(ValueError):
    """A user's mistake, told in one sentence that names the file, key or task and what to do (exit status 2)."""


class EnvironmentFault(RuntimeError):
    """The environment itself failed (a dead worker, a deadline of ours): never the agent's fault, never reward 0."""


class EnvironmentDefect(EnvironmentFault):
    """A bug in an environment's own code: the same call fails again, so nobody tries again.

    The message names the tool, the exception, and the file and line where it was raised.
    """


class Record(BaseModel):
    """Base of every record: immutable, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolCall(Record):
    """A call of one tool with named, JSON-valued arguments."""

    name: str
    arguments: dict[str, JsonValue] = {}


class MalformedCall(Record):
    """What an agent wrote where a call was expected, and why it is none."""

    text: str
    reason: str


Action = ToolCall | MalformedCall


class Parameter(Record):
    """One parameter of a tool as its documentation states it.

    ``type`` is one of string, integer, float, boolean, array, dict, code; ``choices`` are the documented values (for
    an array: of its items), empty when any value may be given. ``code`` is a text: a program in Python that calls the
    environment's other tools as ``apis.NAME(parameter=value)``, its values are the program's literals
    (``environments.programs``). ``trivial`` are values that take no reading of the task to give: verification tries
    them (``environments.trivial_policies``).
    """

    name: str
    type: str
    description: str
    required: bool
    choices: tuple[JsonValue, ...] = ()
    default: JsonValue = None
    items: str | None = None
    trivial: tuple[JsonValue, ...] = ()


class ToolSpec(Record):
    """Documentation of one tool; ``group`` is the official class it belongs to."""

    name: str
    group: str
    description: str
    parameters: tuple[Parameter, ...] = ()

    def parameter(self, name: str) -> Parameter | None:
        """The parameter called ``name``, or None."""
        return next((p for p in self.parameters if p.name == name), None)

    @property
    def program(self) -> Parameter | None:
        """The parameter of type code where it is the only one that the tool requires, else None."""
        required = [p for p in self.parameters if p.required]
        return required[0] if len(required) == 1 and required[0].type == "code" else None


class TaskSpec(Record):
    """What an environment needs to open an episode and to judge it.

    ``reference`` holds one sequence of calls for each user turn in ``turns``. ``setup`` calls run before the first
    user turn: they change the state and their observations are never shown. ``withheld`` maps a turn index to the
    tools that become available only at that turn (BFCL's miss_func).
    """

    environment: str
    split: str
    classes: tuple[str, ...]
    turns: tuple[str, ...]
    initial_state: dict[str, JsonValue]
    setup: tuple[ToolCall, ...] = ()
    tools: tuple[str, ...]
    reference: tuple[tuple[ToolCall, ...], ...]
    withheld: dict[int, tuple[str, ...]] = {}
    long_context: bool = False

    @model_validator(mode="after")
    def _one_reference_a_turn(self) -> Self:
        if len(self.turns) != len(self.reference):
            raise ValueError(f"{len(self.turns)} turns but {len(self.reference)} reference turns: give one a turn")
        return self


class StartState(Record):
    """An initial state that an explorer may open: where tasks of one split begin."""

    id: str
    environment: str
    split: str
    classes: tuple[str, ...]
    initial_state: dict[str, JsonValue]
    tools: tuple[str, ...]


class UserTurn(Record):
    """A user message and the names of the tools available from here on.

    ``preface`` is what the environment tells an agent before the first message: whom it works for, what time it is,
    how to act; empty in later turns, and in environments that have nothing to tell. Language models are shown it, the
    compact rendering leaves it out, and nothing in it counts as seen (``environments.grounding``).
    """

    index: int
    text: str
    tools: tuple[str, ...]
    preface: str = ""


class ObservationStatus(StrEnum):
    """How an action went.

    ``ok``: ran and told or changed something. ``empty``: ran, changed nothing and told nothing ("no matches", null).
    ``error``: the tool refused or raised. ``malformed``: the action was not a call.
    """

    OK = "ok"
    EMPTY = "empty"
    ERROR = "error"
    MALFORMED = "malformed"


class Observation(Record):
    """The environment's answer to one action, with the tool calls that it ran."""

    text: str
    status: ObservationStatus
    calls: tuple[ToolCall, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the action was refused, raised or was no call."""
        return self.status in (ObservationStatus.ERROR, ObservationStatus.MALFORMED)


class TurnOutcome(Record):
    """The checks of one user turn, all evaluated, none hidden behind an earlier failure.

    A check is None when it does not apply (the reference of the turn is empty) or could not be evaluated
    (``checker_error`` says why).
    """

    calls: int
    malformed: int = 0
    reference_calls: int
    reference_error: bool = False
    instances: bool | None = None
    state: bool | None = None
    response: bool | None = None
    checker_error: str | None = None


def _is_none(value: object) -> bool:
    return value is None


class Outcome(Record):
    """Whether the episode succeeded by the environment's official rule, and each turn's checks.

    ``failure`` is the official error type of the first failure, None on success. ``failed_turn`` is its turn index,
    None on success and where no single turn is to blame. ``partial`` is how far it got, in [0, 1]: the share of the
    checks that doing nothing fails which pass (ours). None, and not written, in an environment that does not tell.
    """

    success: bool
    turns: tuple[TurnOutcome, ...]
    failure: str | None = None
    failed_turn: int | None = None
    partial: float | None = Field(None, ge=0.0, le=1.0, exclude_if=_is_none)


@runtime_checkable
class Episode(Protocol):
    """One attempt at one task; single use. Methods that are called out of order raise RuntimeError."""

    def start(self) -> UserTurn:
        """Run the setup and return the first user turn. Call once, first."""
        ...

    def step(self, action: Action) -> Observation:
        """Execute one action in the current turn. A malformed action is answered and counted, never raised."""
        ...

    def end_turn(self) -> UserTurn | None:
        """The agent is done with this turn: the next user turn, or None when the episode is over."""
        ...

    def state(self) -> str:
        """Canonical text of the state that the official check compares; equal texts mean equal states."""
        ...

    def outcome(self) -> Outcome:
        """Judge what was done so far, turns not reached included. Pure: calling it changes nothing."""
        ...

    def close(self) -> None:
        """Release what the episode holds. Idempotent."""
        ...


@runtime_checkable
class Environment(Protocol):
    """Opens episodes, documents tools, and names the initial states of its training split."""

    name: str

    def open(self, task: TaskSpec) -> Episode:
        """A fresh episode of ``task``. Raises InputError for a task that this environment cannot open."""
        ...

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """Documentation of the named tools, in the given order. Raises InputError for a name it does not have."""
        ...

    def starts(self) -> tuple[StartState, ...]:
        """The initial states that explorers may open: training split only."""
        ...
