"""The adaptive learning interface: which guidelines it shows, and U(Omega, C), its update by a failure profile.

``environments.learning_interface`` is the wrapper that shows them; evaluation opens the environment without it. The
wording of the guidelines is ours; for the labels of state, instances and response so is the advice, which follows what
the label says. It has neither quotes nor digits, so that nothing in it looks like a user's value.
"""

from __future__ import annotations

from pydantic import Field

from environments.base import Cue, Environment, Record
from environments.learning_interface import LearningInterface
from training.seal.diagnosis import FailureProfile, TurnLabel
from training.seal.settings import InterfaceSettings

GUIDELINES = {
    TurnLabel.SPURIOUS_TOOL_CALL: "When none of the tools can do what is asked, or something that they need was not "
    "said, call nothing and end the turn.",
    TurnLabel.EMPTY_TURN: "Do not end a turn with words alone when a tool can do what is asked: call it first.",
    TurnLabel.INSTANCE_MISMATCH: "Use the tools of every system that the request is about.",
    TurnLabel.STATE_MISMATCH: "Before ending the turn, check that every change that was asked for was made with the "
    "values that were asked for, and nothing else was changed.",
    TurnLabel.RESPONSE_MISMATCH: "Look up everything that was asked for with the tool that answers it, and do not end "
    "the turn before it has answered.",
}
"""The guideline of each label that blames the policy (``diagnosis.FAILED``)."""

APPEAR_COUNT, APPEAR_PREVALENCE, APPEAR_MEAN_REWARD = 8, 0.10, 0.6
"""Turns with a label and their share of the failed turns from which on its guideline appears, and the mean reward below
which it does (released code)."""

RETIRE_COUNT, RETIRE_PREVALENCE, RETIRE_MEAN_REWARD = 4, 0.05, 0.7
"""The same of retirement (ours): apart from those above, so that a guideline does not come and go with each batch."""

AT_MOST = 3
"""Guidelines that are shown at the same time at most (released code)."""


class InterfaceState(Record):
    """The part of SEAL's Omega that changes.

    ``updates``: number of profiles so far. ``guidelines``: labels whose guideline is shown, highest pressure first.
    ``retired``: labels whose guideline was shown, is mastered, and has not come back.
    """

    updates: int = Field(0, ge=0)
    guidelines: tuple[TurnLabel, ...] = ()
    retired: tuple[TurnLabel, ...] = ()


def learning_interface(
    environment: Environment, settings: InterfaceSettings, state: InterfaceState | None = None
) -> LearningInterface:
    """Wrap ``environment`` with the cues that ``settings`` turn on and the guidelines that ``state`` shows."""
    return LearningInterface(
        environment,
        schema_cues=settings.schema_cues,
        recovery_hints=settings.recovery_hints,
        guidelines=tuple(guideline(label) for label in state.guidelines) if state is not None else (),
    )


def guideline(label: TurnLabel) -> Cue:
    """Return the guideline of ``label``. Raises KeyError for a label that has none."""
    return Cue(kind=label.value, text=GUIDELINES[label])


def update(state: InterfaceState, profile: FailureProfile, settings: InterfaceSettings) -> InterfaceState:
    """Return U(Omega, C), the state after ``profile``: guidelines appear by the released rule, and retire by ours.

    A guideline appears as the released code selects it: its label has APPEAR_COUNT turns, APPEAR_PREVALENCE of the
    failed turns, and a mean reward below APPEAR_MEAN_REWARD. Once shown, it stays until it is mastered (ours): in a
    profile of APPEAR_COUNT turns or more its label has a share of the failed turns below RETIRE_PREVALENCE, fewer turns
    than RETIRE_COUNT, or a mean reward from RETIRE_MEAN_REWARD on. The released code retires none: it reads a mean
    reward that its saved state does not hold, and counts since the run began, which do not fall.

    Where more than AT_MOST qualify, those with the highest pressure (share times one minus mean reward) are shown,
    ties in the order of the labels; the others are not retired.
    """
    if not settings.constraint_cues:
        return state.model_copy(update={"updates": state.updates + 1})
    mastered = {label for label in state.guidelines if _is_mastered(profile, label)}
    open_ = [
        label
        for label in GUIDELINES
        if (label in state.guidelines and label not in mastered) or _is_pressing(profile, label)
    ]
    shown = tuple(sorted(open_, key=lambda label: -profile.pressure(label))[:AT_MOST])
    retired = [label for label in GUIDELINES if label in mastered or (label in state.retired and label not in shown)]
    return InterfaceState(updates=state.updates + 1, guidelines=shown, retired=tuple(retired))


def _is_pressing(profile: FailureProfile, label: TurnLabel) -> bool:
    found = profile.of(label)
    return (
        found.count >= APPEAR_COUNT
        and profile.share_of_failures(label) >= APPEAR_PREVALENCE
        and found.mean_reward < APPEAR_MEAN_REWARD
    )


def _is_mastered(profile: FailureProfile, label: TurnLabel) -> bool:
    if profile.turns < APPEAR_COUNT:
        return False
    found = profile.of(label)
    return (
        found.count < RETIRE_COUNT
        or profile.share_of_failures(label) < RETIRE_PREVALENCE
        or found.mean_reward >= RETIRE_MEAN_REWARD
    )
