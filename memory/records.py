"""Every record that rooms exchange: tasks, trajectories, signals, failure contexts, interactions, drafts, verdicts.

A record's id is a hash of its parents' ids and its position (``memory.ids``), so that a run that is killed and
resumed writes the same ids again.
"""

from __future__ import annotations

import operator
from enum import StrEnum
from typing import Literal

from pydantic import Field, JsonValue

from environments.base import Action, Cue, Observation, Outcome, Record, TaskSpec, ToolCall, guided_text
from environments.verification.decontamination import Nearest

__all__ = [
    "Cause",
    "Difficulty",
    "Draft",
    "Evidence",
    "FailureContext",
    "Interaction",
    "Measured",
    "Signal",
    "SignalKind",
    "Step",
    "Task",
    "Trajectory",
    "TrajectoryTurn",
    "Unsignalled",
    "Verdict",
]


class Task(TaskSpec):
    """A member of the task set D_t.

    ``origin``: seed (unguided exploration), evolved (admitted by an iteration), given (by the user), official (the
    benchmark's own) or panel (held out).
    ``admitted_at`` is the iteration that admitted it; None for tasks that were there before the first.
    ``parents`` are ids of the records it came from: draft, context, signal, trajectory, task.
    """

    id: str
    origin: Literal["seed", "evolved", "given", "panel", "official"]
    parents: tuple[str, ...] = ()
    admitted_at: int | None = None


class Measured(Record):
    """Fields that differ between equal runs: times and costs. Equality of records ignores them.

    ``calls`` are requests to a model. ``money`` is in the currency of the settings' prices, 0 without prices.
    """

    seconds: float = 0.0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    money: float = 0.0


class Step(Record):
    """One action and what the environment answered."""

    action: Action
    observation: Observation


class TrajectoryTurn(Record):
    """One user turn of a rollout. ``ended``: the agent ended it itself (False: a limit cut it off).

    ``text`` is the user's message; ``guidelines`` were shown in front of it.
    """

    text: str
    guidelines: tuple[Cue, ...] = Field((), exclude_if=operator.not_)
    steps: tuple[Step, ...] = ()
    ended: bool = False

    @property
    def full_text(self) -> str:
        """The guidelines and the message, as a language model reads them."""
        return guided_text(self.guidelines, self.text)


class Trajectory(Record):
    """One rollout of one task.

    ``step`` is the global training step, ``sample`` the index within the group of K. ``outcome`` and ``reward`` are
    None exactly when ``infrastructure_error`` is set; such a trajectory takes part in no statistic.

    ``lent``: no rollout of the policy but the task's reference, played for a group without any success; ``sample`` is
    then that of the rollout in whose place it was learnt from (the last one's where it was a loss of its own). Lent
    trajectories have a file of their own, and the key is written only where it is true.
    """

    id: str
    task_id: str
    iteration: int
    step: int
    sample: int
    turns: tuple[TrajectoryTurn, ...]
    outcome: Outcome | None = None
    reward: float | None = None
    infrastructure_error: str | None = None
    sampled_tokens: int = 0
    lent: bool = Field(default=False, exclude_if=operator.not_)
    measured: Measured = Measured()

    @property
    def success(self) -> bool:
        """Whether the official rule was met; False for an infrastructure error, which callers must filter first."""
        return self.outcome is not None and self.outcome.success

    def calls(self) -> tuple[ToolCall, ...]:
        """Every tool call that ran, in order."""
        return tuple(call for turn in self.turns for step in turn.steps for call in step.observation.calls)


class SignalKind(StrEnum):
    """The weaknesses of CoEvolve, section 3 of the paper."""

    FORGETTING = "forgetting"
    BOUNDARY = "boundary"
    RARE = "rare"


class Unsignalled(StrEnum):
    """Contexts of a baseline, with no weakness behind them (our choice).

    ``random``: a call drawn uniformly from a round's trajectories, whether it went well or not. ``unguided``: a start
    state, explored without a guide. ``tool``: a start state and one of its tools, each in turn, for the starter's data.
    """

    RANDOM = "random"
    UNGUIDED = "unguided"
    TOOL = "tool"


class Signal(Record):
    """A weakness of one task, with the trajectory that is its evidence.

    ``successful_evidence`` marks that no failed trajectory showed it. ``pattern`` is the rare API-name n-gram.
    ``score`` is the group mean now; ``previous`` the best earlier one that made it forgetting.
    """

    id: str
    kind: SignalKind
    iteration: int
    task_id: str
    trajectory_id: str
    successful_evidence: bool = False
    pattern: tuple[str, ...] = ()
    score: float | None = None
    previous: float | None = None
    count: int | None = None


class Evidence(Record):
    """What a reflector reads: the signal, its task and the trajectory."""

    signal: Signal
    task: Task
    trajectory: Trajectory


class Cause(StrEnum):
    """Why an attempt failed, as a reflector names it."""

    WRONG_CALL = "wrong_call"
    MISSING_CALL = "missing_call"
    WRONG_ARGUMENT = "wrong_argument"
    UNMET_PRECONDITION = "unmet_precondition"
    STOPPED_EARLY = "stopped_early"
    MALFORMED = "malformed"
    SUPERFLUOUS_CALL = "superfluous_call"
    UNSTABLE = "unstable"


class FailureContext(Record):
    """A weakness turned into a place to explore.

    ``where`` is (turn, step) of the first thing that went wrong. ``tool`` is the tool it is about, ``error_class``
    the normalised error text. ``how`` and ``why`` are sentences; ``facts`` are the values that make this context
    differ from others of the same kind (they are what is embedded). ``explore`` names tools worth reaching,
    most promising first. ``label`` and ``turn_cause`` are an optional diagnosis of the failed turn, one word each; they
    are part of the signature. ``classes``, ``initial_state``, ``setup`` and ``tools`` say where the explorer opens its
    episodes. The context of unguided exploration has no weakness behind it: its ``cause`` is None, its ``kind`` None
    for D_0 and ``unguided`` for the baseline, and its signal, task and trajectory ids are empty. One of a ``random``
    call has neither cause nor error class nor signal; its other fields are those of the drawn call
    (``agents.scripted.baselines``).
    """

    id: str
    signal_id: str = ""
    task_id: str = ""
    trajectory_id: str = ""
    iteration: int | None = None
    kind: SignalKind | Unsignalled | None = None
    environment: str
    cause: Cause | None = None
    where: tuple[int, int] = (0, 0)
    tool: str = ""
    error_class: str = ""
    label: str | None = Field(None, exclude_if=operator.not_)
    turn_cause: str | None = Field(None, exclude_if=operator.not_)
    how: str = ""
    why: str = ""
    facts: tuple[str, ...] = ()
    explore: tuple[str, ...] = ()
    classes: tuple[str, ...]
    initial_state: dict[str, JsonValue]
    setup: tuple[ToolCall, ...] = ()
    tools: tuple[str, ...]
    measured: Measured = Measured()

    def signature(self) -> str:
        """The exact part of deduplication: environment, failing tool, cause, normalised error class, diagnosis."""
        parts = [self.environment, self.tool, self.cause or "", self.error_class]
        return "|".join(parts if self.label is None else [*parts, self.label, self.turn_cause or ""])


class Interaction(Record):
    """One (action, observation) triplet of an explorer, with the run it belongs to.

    Interactions of one ``run`` happened in one live episode in order of ``position``, after ``setup`` of the context.
    ``changed``: the action changed the state that the official check compares.
    """

    id: str
    context_id: str
    run: int
    position: int
    action: Action
    observation: Observation
    changed: bool
    measured: Measured = Measured()


class Difficulty(StrEnum):
    """How hard a draft is by its reference (our choice).

    ``easy``: one call. ``medium``: several calls, in one turn, that do not need each other. ``hard``: a later call
    takes a value from an earlier one's answer or answers otherwise without it; or there are several user turns.
    """

    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"


class Draft(TaskSpec):
    """A task proposed by an abstractor and not yet verified.

    ``difficulty`` is None where the abstractor does not grade. A task's is that of the draft among its parents.
    """

    id: str
    context_id: str
    parents: tuple[str, ...] = ()
    difficulty: Difficulty | None = None
    measured: Measured = Measured()


class Verdict(Record):
    """The answer of verification to one draft. ``reason`` is None exactly when it is accepted.

    ``solved`` is the solver's success rate over its ``attempts`` that could be judged, in [0, 1]; None where no solver
    was asked or none of its attempts could be judged. ``nearest`` are the held-out tasks most like an accepted draft.
    """

    draft_id: str
    context_id: str
    accepted: bool
    reason: str | None = None
    detail: str = Field(default="", description="one sentence: which call, argument or turn; why no solver judged it")
    solved: float | None = None
    attempts: int = 0
    nearest: Nearest | None = Field(None, exclude_if=operator.not_)
