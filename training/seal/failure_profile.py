"""SEAL's failure profile: how often a batch of diagnosed trajectories failed at what, and what became of its errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from environments.base import MalformedCall
from environments.learning_interface.cues import split_hint
from environments.learning_interface.profile import (
    EXCLUDED,
    ErrorStatistics,
    FailureProfile,
    LabelStatistics,
    TurnLabel,
)
from memory.records import Step, Trajectory, TrajectoryTurn
from training.seal.diagnosis import Diagnosis

__all__ = ["error_statistics", "failure_profile"]


def failure_profile(diagnoses: Sequence[Diagnosis | None], trajectories: Sequence[Trajectory]) -> FailureProfile:
    """The profile of a batch. ``diagnoses`` are those of ``trajectories``, in their order; None is left out.

    Raises ValueError when they are not equally many.
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
    """What became of the errors in trajectories, with and without a hint: whether the interface was of use at all."""
    found: Counter[str] = Counter()
    for trajectory in trajectories:
        for turn in trajectory.turns:
            for place, step in enumerate(turn.steps):
                if not step.observation.failed:
                    continue
                recovered, succeeded = _is_recovered(turn, place), trajectory.success
                found.update(errors=1, recovered=recovered, succeeded=succeeded)
                if split_hint(step.observation.text)[1] is not None:
                    found.update(hinted=1, hinted_recovered=recovered, hinted_succeeded=succeeded)
    return ErrorStatistics.model_validate(found)


def _is_recovered(turn: TrajectoryTurn, place: int) -> bool:
    action = turn.steps[place].action
    later = [step for step in turn.steps[place + 1 :] if not step.observation.failed]
    return any(isinstance(action, MalformedCall) or _same_tool(step, action.name) for step in later)


def _same_tool(step: Step, name: str) -> bool:
    return not isinstance(step.action, MalformedCall) and step.action.name == name
