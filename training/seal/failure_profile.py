"""SEAL's failure profile: counts of a batch's turn labels and causes, and how many errors it recovered from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pydantic import Field

from environments.base import MalformedCall, Record
from memory.records import Step, Trajectory, TrajectoryTurn
from training.seal.diagnosis import Diagnosis
from training.seal.labels import EXCLUDED, FAILED, TurnCause, TurnLabel


class LabelStatistics(Record):
    """One label in a batch.

    ``count``: turns that have it. ``prevalence``: their share of the turns whose label is not excluded.
    ``mean_reward``: share of these turns whose trajectory succeeded. SEAL's verifier is the official success rule; the
    length cost of our rewards does not count as failure.
    """

    count: int = Field(0, ge=0)
    prevalence: float = Field(0.0, ge=0.0, le=1.0)
    mean_reward: float = Field(0.0, ge=0.0, le=1.0)


class ErrorStatistics(Record):
    """Counts of errors, i.e. actions that were refused or malformed, and of recoveries.

    ``recovered``: errors before a later call of the same turn that succeeded, of the same tool if the action named one.
    ``succeeded``: errors in a trajectory that succeeded. ``hinted``: errors whose observation has a hint;
    ``hinted_recovered`` and ``hinted_succeeded`` are the same counts among these.
    """

    errors: int = Field(0, ge=0)
    recovered: int = Field(0, ge=0)
    succeeded: int = Field(0, ge=0)
    hinted: int = Field(0, ge=0)
    hinted_recovered: int = Field(0, ge=0)
    hinted_succeeded: int = Field(0, ge=0)

    @property
    def unhinted(self) -> ErrorStatistics:
        """Return the same counts for the errors without a hint."""
        return ErrorStatistics(
            errors=self.errors - self.hinted,
            recovered=self.recovered - self.hinted_recovered,
            succeeded=self.succeeded - self.hinted_succeeded,
        )

    @classmethod
    def total(cls, parts: Iterable[ErrorStatistics]) -> ErrorStatistics:
        """Return the sum of several counts."""
        counted: Counter[str] = Counter()
        for part in parts:
            counted.update(part.model_dump())
        return cls.model_validate(counted)


class FailureProfile(Record):
    """SEAL's failure profile C of one batch.

    ``turns`` counts those whose label is not excluded. ``labels`` and ``causes`` hold those that occurred, excluded
    labels with their count alone. ``left_out`` counts trajectories without a diagnosis.
    """

    trajectories: int = Field(0, ge=0)
    left_out: int = Field(0, ge=0)
    turns: int = Field(0, ge=0)
    labels: dict[TurnLabel, LabelStatistics] = {}
    causes: dict[TurnCause, int] = {}
    errors: ErrorStatistics = ErrorStatistics()

    def of(self, label: TurnLabel) -> LabelStatistics:
        """Return the label's statistics; zeros where it did not occur."""
        return self.labels.get(label, LabelStatistics())

    def share_of_failures(self, label: TurnLabel) -> float:
        """Return the share of ``label`` in the turns that failed; guidelines follow it, in the released code too."""
        failures = sum(self.of(one).count for one in FAILED)
        return self.of(label).count / failures if failures and label in FAILED else 0.0

    def pressure(self, label: TurnLabel) -> float:
        """Return the room for improvement: the label's share of the failed turns, times one minus its mean reward."""
        return self.share_of_failures(label) * (1.0 - self.of(label).mean_reward)


class SealFigures(Record):
    """SEAL's figures of one round.

    ``labels`` and ``causes``: turns of the round's rollouts that have them. ``guidelines``: by label, in how many of
    the round's ``steps`` its guideline was shown. ``retired``: by label, how often its guideline was mastered.
    """

    steps: int = Field(ge=0)
    labels: dict[TurnLabel, int] = {}
    causes: dict[TurnCause, int] = {}
    errors: ErrorStatistics = ErrorStatistics()
    guidelines: dict[TurnLabel, int] = {}
    retired: dict[TurnLabel, int] = {}


def failure_profile(diagnoses: Sequence[Diagnosis | None], trajectories: Sequence[Trajectory]) -> FailureProfile:
    """Profile a batch. ``diagnoses`` are those of ``trajectories``, in their order; None is left out.

    Raises ValueError when their numbers differ.
    """
    counts: Counter[TurnLabel] = Counter()
    successes: Counter[TurnLabel] = Counter()
    causes: Counter[str] = Counter()
    diagnosed = []
    for diagnosis, trajectory in zip(diagnoses, trajectories, strict=True):
        if diagnosis is None:
            continue
        diagnosed.append(trajectory)
        for turn in diagnosis.turns:
            counts[turn.label] += 1
            successes[turn.label] += diagnosis.success
            if turn.cause is not None:
                causes[turn.cause] += 1
    turns = sum(count for label, count in counts.items() if label not in EXCLUDED)
    return FailureProfile(
        trajectories=len(diagnosed),
        left_out=len(diagnoses) - len(diagnosed),
        turns=turns,
        labels={
            label: LabelStatistics(count=counts[label])
            if label in EXCLUDED
            else LabelStatistics(
                count=counts[label],
                prevalence=counts[label] / turns,
                mean_reward=successes[label] / counts[label],
            )
            for label in TurnLabel
            if counts[label]
        },
        causes=dict(sorted(causes.items())),
        errors=error_statistics(diagnosed),
    )


def error_statistics(trajectories: Sequence[Trajectory]) -> ErrorStatistics:
    """Count errors and recoveries in trajectories, with and without a hint."""
    found: Counter[str] = Counter()
    for trajectory in trajectories:
        for turn in trajectory.turns:
            for place, step in enumerate(turn.steps):
                if not step.observation.failed:
                    continue
                recovered, succeeded = _is_recovered(turn, place), trajectory.success
                found.update(errors=1, recovered=recovered, succeeded=succeeded)
                if step.observation.hint is not None:
                    found.update(hinted=1, hinted_recovered=recovered, hinted_succeeded=succeeded)
    return ErrorStatistics.model_validate(found)


def _is_recovered(turn: TrajectoryTurn, place: int) -> bool:
    action = turn.steps[place].action
    later = [step for step in turn.steps[place + 1 :] if not step.observation.failed]
    return any(isinstance(action, MalformedCall) or _same_tool(step, action.name) for step in later)


def _same_tool(step: Step, name: str) -> bool:
    return not isinstance(step.action, MalformedCall) and step.action.name == name
