"""Define the interface between agents and environments: tasks, calls, observations, outcomes, episodes.

An ``Environment`` opens single-use ``Episode`` objects. An episode takes actions, answers each with an
``Observation``, and ends in an ``Outcome`` that holds the checks of every user turn. Everything else in the project
(verification, roles, training, evaluation) is written against these types.

``environments.turns`` implements what episodes share. The optional protocol ``Recording`` extends ``Environment``: it
answers equal calls from a cache instead of executing them again.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Protocol, Self, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator


class InputError(ValueError):
    """A user's mistake, reported in one sentence that names the file, key or task and what to do (exit status 2)."""


class EnvironmentFault(RuntimeError):
    """The environment itself failed (a dead worker, a deadline of ours): never the agent's fault, never reward 0."""


class EnvironmentDefect(EnvironmentFault):
    """A bug in an environment's own code: the same call fails again, so it is not retried.

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
    """Text that an agent wrote instead of a call, and the reason why it is not a call."""

    text: str
    reason: str


Action = ToolCall | MalformedCall


class Parameter(Record):
    """One parameter of a tool as its documentation states it.

    ``type`` is one of string, integer, float, boolean, array, dict, code; ``choices`` are the documented values (for
    an array: of its items), empty when any value is allowed. ``code`` is a text: a program in Python that calls the
    environment's other tools as ``apis.NAME(parameter=value)``; its values are the program's literals
    (``verification.programs``). ``trivial`` are values that an agent can give without reading the task: verification
    tries them (``verification.verify``). ``fields`` are the documented properties of a dict, and ``item`` is the item
    of an array whose items ``items`` does not describe whole: objects, arrays, booleans. Both may be empty.
    """

    name: str
    type: str
    description: str
    required: bool
    choices: tuple[JsonValue, ...] = ()
    default: JsonValue = None
    items: str | None = None
    trivial: tuple[JsonValue, ...] = ()
    fields: tuple[Parameter, ...] = Field((), exclude_if=operator.not_)
    item: Parameter | None = Field(None, exclude_if=operator.not_)

    def nested(self) -> Iterator[Parameter]:
        """Yield the parameter itself and all that are documented within it, from the outside in."""
        yield self
        for inner in (*self.fields, *([self.item] if self.item else [])):
            yield from inner.nested()


class ToolSpec(Record):
    """Documentation of one tool; ``group`` is the official class it belongs to.

    ``json_schema`` is the schema of all its arguments where the environment has one (``environments.json_schema``):
    arguments are then checked against it, and renderings show it whole. ``parameters`` are read from it.
    """

    name: str
    group: str
    description: str
    parameters: tuple[Parameter, ...] = ()
    json_schema: dict[str, JsonValue] = Field({}, exclude_if=operator.not_)

    def parameter(self, name: str) -> Parameter | None:
        """Return the parameter called ``name``, or None."""
        return next((p for p in self.parameters if p.name == name), None)

    @property
    def program(self) -> Parameter | None:
        """The parameter of type code where it is the only one that the tool requires, else None."""
        required = [p for p in self.parameters if p.required]
        return required[0] if len(required) == 1 and required[0].type == "code" else None


class TaskSpec(Record):
    """A task: the data that an environment needs to open an episode and to check it.

    ``reference`` holds one sequence of calls for each user turn in ``turns``. ``setup`` calls run before the first
    user turn: they change the state and their observations are never shown. ``withheld`` maps a turn index to the
    tools that become available only at that turn (BFCL's miss_func; there the number of turns means never). In the
    first ``played`` turns the reference acts in the agent's place: the agent reads them as its history and acts from
    the turn after them (ours).
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
    played: int = Field(0, ge=0, exclude_if=operator.not_)

    @model_validator(mode="after")
    def _one_reference_a_turn(self) -> Self:
        if len(self.turns) != len(self.reference):
            raise ValueError(f"{len(self.turns)} turns but {len(self.reference)} reference turns: give one per turn")
        if self.played and self.played >= len(self.turns):
            raise ValueError(f"{self.played} of {len(self.turns)} turns are played: leave one to the agent")
        return self


SAMPLE = "sample"
"""The key of an initial state under which some of the facts stand that an episode shows which begins there.

An environment whose start does not itself hold facts (a large database) adds it for those who explore. It is a view of
the start and no part of it: starts that differ in it alone are one start, and tasks from them can be equal.
"""


def begun(initial_state: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return an initial state without a sample of its facts: what an episode begins with."""
    return {key: value for key, value in initial_state.items() if key != SAMPLE}


class StartState(Record):
    """An initial state of one split, which an explorer may open."""

    id: str
    environment: str
    split: str
    classes: tuple[str, ...]
    initial_state: dict[str, JsonValue]
    tools: tuple[str, ...]


class Cue(Record):
    """One line of advice that a wrapper of an environment adds to a user's message or to an observation.

    Cues are kept apart from the text that they belong to: renderings join the two, no code parses them out again. The
    wording of the joined line is ours. ``kind`` is one word. Raises ValueError for a ``text`` of several lines.
    """

    kind: str
    text: str

    @field_validator("text")
    @classmethod
    def _is_one_line(cls, text: str) -> str:
        if "\n" in text:
            raise ValueError(f"a cue is one line: {text!r}")
        return text


def guided_text(guidelines: Sequence[Cue], text: str) -> str:
    """Return a user's message after its guidelines, one line per guideline."""
    return "".join(f"[guideline: {cue.kind}] {cue.text}\n" for cue in guidelines) + text


class UserTurn(Record):
    """A user message and the names of the tools available from here on.

    ``note`` (one line on how to read the tools' documentation) and ``guidelines`` (general advice) come from a wrapper
    of the environment; empty by default. A language model reads them as ``advice``, in the system message if its format
    has one, else in front of the user's.

    ``preface`` is the environment's introduction before the first message: the user, the time, how to act. It is empty
    in later turns, and in environments without an introduction. Language models are shown it, the pointer-copy
    rendering leaves it out, and its values do not count as seen (``environments.task_text``).
    """

    index: int
    text: str
    tools: tuple[str, ...]
    preface: str = ""
    note: str = Field("", exclude_if=operator.not_)
    guidelines: tuple[Cue, ...] = Field((), exclude_if=operator.not_)

    @property
    def advice(self) -> str:
        """The note, and after it the guidelines, one line each: what a wrapper adds to the system message."""
        listed = "\n".join(("Guidelines:", *(f"- {cue.text}" for cue in self.guidelines))) if self.guidelines else ""
        return "\n\n".join(filter(None, (self.note, listed)))

    @property
    def full_text(self) -> str:
        """The guidelines and the message, as plain text."""
        return guided_text(self.guidelines, self.text)


class ObservationStatus(StrEnum):
    """Status of an executed action.

    ``ok``: ran and returned or changed something. ``empty``: ran, changed nothing and returned nothing ("no matches",
    null). ``error``: the tool refused or raised. ``malformed``: the action was not a call.
    """

    OK = "ok"
    EMPTY = "empty"
    ERROR = "error"
    MALFORMED = "malformed"


class Observation(Record):
    """The environment's answer to one action, with the tool calls that it ran.

    ``hint`` advises how to recover from an error; a wrapper of the environment adds it.
    """

    text: str
    status: ObservationStatus
    calls: tuple[ToolCall, ...] = ()
    hint: Cue | None = Field(None, exclude_if=operator.not_)

    @property
    def full_text(self) -> str:
        """The answer and, on a line of its own, the hint, as a language model reads them."""
        return self.text if self.hint is None else f"{self.text}\n[hint: {self.hint.kind}] {self.hint.text}"

    @property
    def failed(self) -> bool:
        """Return whether the action was refused, raised an error or was not a valid call."""
        return self.status in (ObservationStatus.ERROR, ObservationStatus.MALFORMED)


class TurnOutcome(Record):
    """The checks of one user turn; all are evaluated, also after an earlier failure.

    A check is None when it does not apply (the reference of the turn is empty) or could not be evaluated
    (``checker_error`` has the reason).
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
    None on success and where the failure does not belong to a single turn. ``partial`` is the progress, in [0, 1]: of
    the checks that an agent without actions fails, the share that passes (ours). It is None, and not written, in an
    environment that does not report checks.
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
        """End the current turn and return the next user turn, or None when the episode is over."""
        ...

    def state(self) -> str:
        """Return the canonical text of the state that the official check compares; equal texts mean equal states."""
        ...

    def outcome(self) -> Outcome:
        """Check the actions so far, with turns not reached included. Pure: calling it changes nothing."""
        ...

    def close(self) -> None:
        """Release what the episode holds. Idempotent."""
        ...


@runtime_checkable
class Environment(Protocol):
    """Opens episodes, documents tools, and names the initial states of its training split."""

    name: str

    def open(self, task: TaskSpec) -> Episode:
        """Open a fresh episode of ``task``. Raises InputError for a task that this environment cannot open."""
        ...

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """Return the documentation of the named tools, in the given order. Raises InputError for an unknown name."""
        ...

    def starts(self) -> tuple[StartState, ...]:
        """Return the initial states that explorers may open: training split only."""
        ...


@runtime_checkable
class Recording(Protocol):
    """A deterministic environment that is expensive enough to cache the results of calls."""

    def recorded(self) -> Environment:
        """Return the same environment with a cache: equal calls from equal starts are answered from it."""
        ...


def recorded(environment: Environment) -> Environment:
    """Return ``environment`` with its cache where it has one, else itself.

    Use it for rollouts and for the many attempts of verification. Never use it for the replays that test whether an
    environment is deterministic: the cache would answer them.
    """
    return environment.recorded() if isinstance(environment, Recording) else environment
