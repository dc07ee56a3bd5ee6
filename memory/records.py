"""The records that packages exchange, from tasks and trajectories to drafts and their verification results.

A record's id is a hash of its parents' ids and its position (``memory.jsonl.record_id``), so that a resumed run writes
the same ids again.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import partial
from typing import Literal, NamedTuple

from pydantic import Field, JsonValue

from environments.base import Action, Cue, Observation, Outcome, Record, TaskSpec, ToolCall, guided_text

_MISSING = partial(operator.is_, None)


class _RecordedTask(TaskSpec):
    """A task in a record: what few tasks have is written where a task has it."""

    withheld: dict[int, tuple[str, ...]] = Field({}, exclude_if=operator.not_)
    long_context: bool = Field(False, exclude_if=operator.not_)


class Task(_RecordedTask):
    """A member of the task set D_t.

    ``origin``: seed (unguided exploration), evolved (admitted by an iteration), given (by the user), official (the
    benchmark's own) or panel (held out).
    ``admitted_at`` is the iteration that admitted it; None for tasks of D_0.
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
    """One action and its observation."""

    action: Action
    observation: Observation


class StopReason(StrEnum):
    """Why a user turn of a rollout stopped. All but the first and the last end the episode too."""

    END_OF_TURN = "end_of_turn"
    """The agent ended it."""
    MESSAGE_TOKENS = "message_tokens"
    """Its last message was cut off at the tokens of one message, and the episode has none left for the answer."""
    EPISODE_TOKENS = "episode_tokens"
    """The episode has no tokens left for a message."""
    ACTIONS = "actions"
    """The agent asked for more actions than one user turn may have."""
    EPISODE_STEPS = "episode_steps"
    """The episode has as many messages as it may have."""
    REFUSED = "refused"
    """The endpoint's moderation refused the messages (a served model)."""
    FAULT = "fault"
    """The environment failed, in this turn or while it evaluated the episode (``Trajectory.infrastructure_error``)."""
    PLAYED = "played"
    """The reference acted in the agent's place, and ended it (``TaskSpec.played``)."""


class TrajectoryTurn(Record):
    """One user turn of a rollout.

    ``ended``: the agent ended it itself (False: a limit or a fault cut it off). ``stop_reason`` is None, and not
    written, for a turn that no sampler played; it is ``fault`` also where the agent had ended the turn before.
    ``text`` is the user's message; ``guidelines`` were shown with it (``UserTurn.advice``).
    """

    text: str
    guidelines: tuple[Cue, ...] = Field((), exclude_if=operator.not_)
    steps: tuple[Step, ...] = ()
    ended: bool = False
    stop_reason: StopReason | None = Field(None, exclude_if=operator.not_)

    @property
    def full_text(self) -> str:
        """The guidelines and the message, as transcripts show them."""
        return guided_text(self.guidelines, self.text)

    @property
    def played(self) -> bool:
        """Whether the reference acted here: its steps are given to the agent, and are not the agent's own."""
        return self.stop_reason is StopReason.PLAYED


class Trajectory(Record):
    """One rollout of one task.

    ``step`` is the global training step, ``sample`` the index within the group of K. ``outcome`` and ``reward`` are
    None exactly when ``infrastructure_error`` is set; such a trajectory is left out of every statistic.

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
    measured: Measured = Measured()

    @property
    def success(self) -> bool:
        """Return whether the official rule was met; False for an infrastructure error: callers must filter it first."""
        return self.outcome is not None and self.outcome.success

    @property
    def played(self) -> int:
        """How many turns the reference played, all of them before the agent's."""
        return sum(turn.played for turn in self.turns)

    def own_steps(self) -> Iterator[tuple[tuple[int, int], Step]]:
        """Yield the agent's steps in order, each behind its (turn, step)."""
        for t, turn in enumerate(self.turns):
            if not turn.played:
                yield from (((t, s), step) for s, step in enumerate(turn.steps))

    def calls(self) -> tuple[ToolCall, ...]:
        """Return every tool call of the agent that ran, in order."""
        return tuple(call for _, step in self.own_steps() for call in step.observation.calls)


def count_stops(turns: Iterable[TrajectoryTurn]) -> dict[StopReason, int]:
    """Count the agent's turns by why they stopped, in the order of StopReason; reasons without one are left out."""
    counts = Counter(turn.stop_reason for turn in turns if not turn.played)
    return {reason: counts[reason] for reason in StopReason if counts[reason]}


class SignalKind(StrEnum):
    """The weaknesses that a trajectory can show: those of CoEvolve (section 3.1)."""

    FORGETTING = "forgetting"
    BOUNDARY = "boundary"
    RARE = "rare"


class KindOfSignal(NamedTuple):
    """What readers, roles and the choice of signals need to know of a kind.

    ``meaning`` completes "a rollout is marked: it is ...". ``absent`` says why there is none. ``objective`` asks a
    scripted explorer for more than the cause of a weakness does. ``share`` of the contexts of an iteration, scaled to
    sum to 1 where not all kinds are followed (ours). ``failing``: marked tasks fail at times. ``paper``: percent of all
    signals in CoEvolve's figure 4, on its two benchmarks.
    """

    meaning: str
    absent: str
    objective: str
    share: float
    failing: bool = True
    paper: tuple[float, float] | None = None


KINDS = {
    SignalKind.FORGETTING: KindOfSignal(
        meaning="a failed rollout of a task that one of its last rollouts in earlier steps solved",
        absent="no task was solved in a step and failed in a later one",
        objective="Repeat what worked before, then with other values.",
        share=0.3,
        paper=(29.8, 29.9),
    ),
    SignalKind.BOUNDARY: KindOfSignal(
        meaning="a rollout of a group of which some solve the task and others do not",
        absent="all rollouts of each group ended alike",
        objective="Find out what separates the attempts that succeed from those that fail.",
        share=0.5,
        paper=(51.4, 45.5),
    ),
    SignalKind.RARE: KindOfSignal(
        meaning="a rollout with a combination of tools that few others of the run have, at least one",
        absent="no set of tools was called with success less often than there are different ones",
        objective="Find more situations in which these calls work together.",
        share=0.2,
        failing=False,
        paper=(18.8, 24.6),
    ),
}
"""The kinds of signal (CoEvolve, section 3.1), each in one entry."""


class Unsignalled(StrEnum):
    """Contexts that come from no signal (ours).

    ``random``: a call drawn uniformly from a round's trajectories, successful or not. ``unguided``: a start state,
    explored without a guide. ``coverage``: a start state and a tool, or two one after the other, that no task or few
    tasks exercise.
    """

    RANDOM = "random"
    UNGUIDED = "unguided"
    COVERAGE = "coverage"


class Signal(Record):
    """A weakness of one task: a kind, and the trajectory that it marks (CoEvolve, section 3.1).

    ``successful_evidence``: the trajectory succeeded. ``pattern`` are the tools of the rare pattern, ``count`` is its
    c_p. ``score`` is the trajectory's own in [0, 1] and ``previous`` the best one in the window of forgetting.
    ``counterpart_id`` names a rollout of the same group with the other result, for boundary. ``group`` counts successes
    and rollouts of the step's group, ``recent`` successes and scores in the window of forgetting.
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
    counterpart_id: str = Field("", exclude_if=operator.not_)
    group: tuple[int, int] | None = Field(None, exclude_if=operator.not_)
    recent: tuple[int, int] | None = Field(None, exclude_if=operator.not_)


class Evidence(Record):
    """The input of a reflector: the signal, its task and the trajectory.

    ``counterpart`` is a rollout of the same group with the other result, for boundary: a success beside a failure.
    """

    signal: Signal
    task: Task
    trajectory: Trajectory
    counterpart: Trajectory | None = None


class Cause(StrEnum):
    """The cause of a failed rollout, as a reflector names it."""

    WRONG_CALL = "wrong_call"
    MISSING_CALL = "missing_call"
    WRONG_ARGUMENT = "wrong_argument"
    UNMET_PRECONDITION = "unmet_precondition"
    STOPPED_EARLY = "stopped_early"
    MALFORMED = "malformed"
    SUPERFLUOUS_CALL = "superfluous_call"
    UNSTABLE = "unstable"


class FailureContext(Record):
    """A weakness and where to explore it.

    ``where`` is (turn, step) of the first mistake. ``tool`` is its tool, ``error_class`` the normalised error text.
    ``how`` and ``why`` are sentences; ``facts`` are the values in which contexts of one signature differ (these are
    embedded). ``explore`` names the tools to reach, most promising first.

    The paper's structure of a reflection (Figure 11) is ``summary``, ``why`` (its failure_cause),
    ``instability_pattern``, ``focus_pattern``, ``exploration_objectives`` and ``do_not_repeat``. All are empty, and all
    but ``why`` are not written, where no reflector filled them.

    The explorer opens its episodes from ``classes``, ``initial_state``, ``setup`` and ``tools``. The context of
    unguided exploration comes from no signal: its ``cause`` is None, its ``kind`` None for D_0 and ``unguided`` for the
    baseline, and its signal, task and trajectory ids are empty. One of a ``random`` call has no cause, error class or
    signal; its other fields are the drawn call's (``graph.unsignalled``). One of ``coverage`` has no task,
    facts or cause either; its ``focus_pattern`` are the one or two tools that it is for (``graph.unsignalled``, too).
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
    how: str = ""
    why: str = ""
    summary: str = Field("", exclude_if=operator.not_)
    instability_pattern: str = Field("", exclude_if=operator.not_)
    focus_pattern: tuple[str, ...] = Field((), exclude_if=operator.not_)
    exploration_objectives: tuple[str, ...] = Field((), exclude_if=operator.not_)
    do_not_repeat: tuple[str, ...] = Field((), exclude_if=operator.not_)
    facts: tuple[str, ...] = ()
    explore: tuple[str, ...] = ()
    classes: tuple[str, ...]
    initial_state: dict[str, JsonValue]
    setup: tuple[ToolCall, ...] = ()
    tools: tuple[str, ...]
    measured: Measured = Measured()

    @property
    def comparable(self) -> bool:
        """Return whether it has facts by which the failure memory can separate it from others with its signature."""
        return self.kind not in (Unsignalled.UNGUIDED, Unsignalled.COVERAGE)

    def signature(self) -> str:
        """Return the exact part of deduplication: environment, failing tool, cause, error class and diagnosis."""
        parts = [self.environment, self.tool, self.cause or "", self.error_class]
        return "|".join(parts if self.label is None else [*parts, self.label])


class Interaction(Record):
    """One (action, observation) triplet of an explorer, with the run it belongs to.

    Interactions of one ``run`` happened in one live episode in order of ``position``, after ``setup`` of the context.
    ``changed``: the action changed the state that the official check compares. Neighbours of one ``purpose`` were
    proposed together (ours). ``aim`` is what a chat explorer said that the action was for, cut, "" where nobody did.
    """

    id: str
    context_id: str
    run: int
    position: int
    action: Action
    observation: Observation
    changed: bool
    purpose: int = Field(0, exclude_if=operator.not_)
    aim: str = Field("", exclude_if=operator.not_)
    measured: Measured = Measured()


class Difficulty(StrEnum):
    """The difficulty of a draft by its reference (ours).

    ``easy``: one call. ``medium``: several independent calls in one turn. ``hard``: a later call takes a value from an
    earlier one's result or has another result without it; or there are several user turns.
    """

    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"


class Writing(Record):
    """How a language model worded a draft whose calls were given (ours). Figures are in nats per token.

    ``drawn`` wordings were drawn, ``wordings`` of them have all that they must. ``round_trip``: a reader returns the
    calls exactly. ``margin`` is what the words add to the log-probability of the calls for the reader, ``realism`` the
    log-probability of the calls for the writer, ``difference`` what teaching it added to that of the words; the three
    are None, and not written, where an endpoint words. ``read``: the other calls that the endpoint returned.
    ``understood``: the words ask for the calls, by the reader; other drafts are refused.
    """

    drawn: int
    wordings: int
    round_trip: bool
    margin: float | None = Field(None, exclude_if=_MISSING)
    realism: float | None = Field(None, exclude_if=_MISSING)
    difference: float | None = Field(None, exclude_if=_MISSING)
    read: str = Field("", exclude_if=operator.not_)
    understood: bool


class Draft(_RecordedTask):
    """A task proposed by an abstractor and not yet verified.

    ``writing`` is None, and not written, where no local model worded it. ``difficulty`` is None where the abstractor
    does not grade. A task's difficulty is that of its parent draft.
    """

    id: str
    context_id: str
    parents: tuple[str, ...] = ()
    difficulty: Difficulty | None = None
    writing: Writing | None = Field(None, exclude_if=operator.not_)
    measured: Measured = Measured()


class AgentValidation(Record):
    """The result of one run of the validator on a draft (CoEvolve, section 3.3).

    ``accepted``: the task was completed, or the environment gave a positive reward. ``completed``: whether the LLM
    judge found it completed; None where the judge did not answer.
    ``success`` is the environment's official outcome, ``reward`` its reward in [0, 1]: 1 for a success, else
    ``Outcome.partial``, or 0 in an environment that does not report it (ours; the paper does not say what reward a
    synthetic task has). ``actions`` counts all actions of the run, ``detail`` is the judge's reason.
    """

    accepted: bool
    completed: bool | None
    success: bool
    reward: float
    actions: int
    detail: str = ""


class DraftVerification(Record):
    """The verification result of one draft. ``reason`` is None exactly when it is accepted.

    ``agent`` is the validator's run, and None, and not written, where it was not asked or gave none.
    """

    draft_id: str
    context_id: str
    accepted: bool
    reason: str | None = None
    detail: str = Field(default="", description="one sentence: which call, argument or turn")
    agent: AgentValidation | None = Field(None, exclude_if=operator.not_)
