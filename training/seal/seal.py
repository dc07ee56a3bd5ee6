"""SEAL in a round of training: settings, weights of advantages, the learning interface, how both move. Free of torch.

The rollouts of a step use the current interface. Their failure profile then moves rho, which weights the advantages of
the same step, and updates the interface for the next step (SEAL's order). The result is a function of the settings, the
state before the step and the step's trajectories.

**Weights.** SEAL (arXiv 2605.24426) multiplies the advantage of a trajectory by ``clip(sum of p(z) * rho(z), 0.5, 2)``,
where p(z) is the share of its turns with label z (equations 10 to 12). By the paper rho is fixed; in the released full
run it moves (``moved_rho``, after the released code's ``update_dynamic_tag_weights``;
``tests/training/seal/released_code.json.gz`` holds what that code computes).

**Interface.** ``environments.learning_interface`` is the wrapper that shows the guidelines; evaluation opens the
environment without it. Their wording is ours; for the labels of state, instances and response so is the advice, which
follows what the label says. It has neither quotes nor digits, so that nothing in it looks like a user's value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from environments.base import Cue, Environment, Record
from environments.learning_interface import LearningInterface
from environments.settings import Section
from memory.records import Trajectory
from training.seal.diagnosis import (
    EXCLUDED,
    Diagnosis,
    FailureProfile,
    SealFigures,
    TurnLabel,
    diagnose,
    failure_profile,
)

BASE_RHO = {
    TurnLabel.SPURIOUS_TOOL_CALL: 2.0,
    TurnLabel.CORRECT_ABSTENTION: 1.8,
    TurnLabel.EMPTY_TURN: 1.5,
    TurnLabel.INSTANCE_MISMATCH: 0.6,
    TurnLabel.STATE_MISMATCH: 1.0,
    TurnLabel.RESPONSE_MISMATCH: 0.9,
    TurnLabel.PASS: 1.0,
}
"""The paper's rho of every label that is not excluded."""


class WeightSettings(Section):
    """Advantage weights by the labels of turns.

    Whether rho moves is where the paper and its released code differ. By the paper rho is fixed for all backbones and
    runs (section 3.4; section 5 names it a limitation), which is the default. In the released full run it moves
    (``dynamic: true``); the row "w/o closed-loop update" of its table 3 turns off that motion and nothing else.
    """

    dynamic: bool = Field(
        False,
        description="rho moves in every step (the released full run); false: it is fixed (the paper's text)",
    )


class InterfaceSettings(Section):
    """Cues around the training environment.

    The three switches are the terms of the paper's observation in training (equation 9). Its main run, and every
    released configuration, has ``schema_cues`` alone (appendix D.4).
    """

    schema_cues: bool = Field(
        True,
        description="mark required arguments and allowed values, with a note in the system message",
    )
    recovery_hints: bool = Field(True, description="add a hint to errors, by their kind")
    constraint_cues: bool = Field(True, description="show guidelines that appear and retire by the failure profile")

    @model_validator(mode="after")
    def _something_is_on(self) -> Self:
        if not (self.schema_cues or self.recovery_hints or self.constraint_cues):
            raise ValueError("every cue is off, which is not an interface: turn one on, or set the interface to null")
        return self


class SealSettings(Section):
    """SEAL (arXiv 2605.24426) in a round of training; evaluation does not use it."""

    weights: WeightSettings | None = Field(WeightSettings(), description="weighted advantages; null: none")
    interface: InterfaceSettings | None = Field(
        InterfaceSettings(),
        description="cues around the training environment; null: none",
    )

    @model_validator(mode="after")
    def _something_is_on(self) -> Self:
        if self.weights is None and self.interface is None:
            raise ValueError(
                "'weights' and 'interface' are both null, so that SEAL would do nothing: leave the section out"
            )
        return self


LEAST, MOST = 0.5, 2.0
"""Limits of a weight, and of rho in motion (equation 12)."""

WINDOW_STEPS = 12
"""Steps of an epoch, counted over the run: a moving rho follows the turns since it began (released code, as below)."""

FULL_COUNT = 32
"""Turns with a label at which its statistics count in full."""

RATE = 0.25
"""Fraction of the way to its target that rho moves in one step."""


class LabelCount(Record):
    """Turns with one label, and how many of them are of a trajectory that succeeded."""

    count: int = Field(0, ge=0)
    successes: int = Field(0, ge=0)

    @property
    def mean_reward(self) -> float:
        """The mean reward of the turns' trajectories, of rewards 0 and 1; 0 without a turn."""
        return self.successes / self.count if self.count else 0.0


class RhoState(Record):
    """Rho of every label that is not excluded, after ``updates`` profiles.

    ``window`` counts the turns since the epoch began, ``total`` those since the run began; empty where rho is fixed.
    """

    updates: int = Field(0, ge=0)
    rho: dict[TurnLabel, float]
    window: dict[TurnLabel, LabelCount] = {}
    total: dict[TurnLabel, LabelCount] = {}


FIRST_RHO = RhoState(rho=BASE_RHO)
"""Rho before any profile."""


def moved_rho(state: RhoState, profile: FailureProfile, settings: WeightSettings) -> RhoState:
    """Return rho after the profile of one more step, as the released full run moves it; unchanged if it is fixed.

    A label's rho moves by the fraction RATE towards ``base * (1 + q * (1 - m) * min(1, n / FULL_COUNT))``, clipped to
    LEAST and MOST. n turns have the label since the epoch of WINDOW_STEPS began, this step included, m is the mean
    reward of their trajectories, and q their share of the turns whose label is not excluded. A label that did not occur
    moves towards its base. ``pass`` keeps its base. Where an epoch has no turn yet, the turns since the run began
    count.

    Nothing moves while there is no turn to count. The released code then weighs by the base; the trajectories of such
    a step have excluded labels alone, so that their weight is 1 either way.
    """
    if not settings.dynamic:
        return state
    epoch_begins = state.updates % WINDOW_STEPS == 0
    window = _with_profile({} if epoch_begins else state.window, profile)
    total = _with_profile(state.total, profile)
    counts = window or total
    turns = sum(found.count for label, found in counts.items() if label not in EXCLUDED)
    rho = dict(state.rho)
    for label, base in BASE_RHO.items() if turns else ():
        found = counts.get(label, LabelCount())
        trust = min(1.0, found.count / FULL_COUNT)
        pressure = (found.count / turns) * (1.0 - found.mean_reward) * trust
        target = _clipped(base if label is TurnLabel.PASS else base * (1.0 + pressure))
        rho[label] = (1.0 - RATE) * state.rho[label] + RATE * target
    return RhoState(updates=state.updates + 1, rho=rho, window=window, total=total)


def _with_profile(counts: Mapping[TurnLabel, LabelCount], profile: FailureProfile) -> dict[TurnLabel, LabelCount]:
    added = {}
    for label in TurnLabel:
        before, found = counts.get(label, LabelCount()), profile.of(label)
        if before.count + found.count:
            added[label] = LabelCount(
                count=before.count + found.count,
                successes=before.successes + round(found.mean_reward * found.count),  # rewards are 0 or 1: exact
            )
    return added


def trajectory_weight(diagnosis: Diagnosis | None, state: RhoState) -> float:
    """Return the factor of the trajectory's advantage, w; 1 without a diagnosis or a label that counts."""
    labels = () if diagnosis is None else diagnosis.labels()
    return _clipped(sum(state.rho[label] for label in labels) / len(labels)) if labels else 1.0


def _clipped(weight: float) -> float:
    return min(MOST, max(LEAST, weight))


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
    environment: Environment, settings: InterfaceSettings, state: InterfaceState
) -> LearningInterface:
    """Wrap ``environment`` with the cues that ``settings`` turn on and the guidelines that ``state`` shows."""
    return LearningInterface(
        environment,
        schema_cues=settings.schema_cues,
        recovery_hints=settings.recovery_hints,
        guidelines=tuple(map(guideline, state.guidelines)),
    )


def guideline(label: TurnLabel) -> Cue:
    """Return the guideline of ``label``. Raises KeyError for a label that has none."""
    return Cue(kind=label.value, text=GUIDELINES[label])


def next_interface(state: InterfaceState, profile: FailureProfile, settings: InterfaceSettings) -> InterfaceState:
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


class SealState(Record):
    """SEAL's state between steps; a part is None where the settings turn it off."""

    rho: RhoState | None = None
    interface: InterfaceState | None = None


class SealStep(Record):
    """One global step: the failure profile of its rollouts, and the state after it."""

    step: int
    profile: FailureProfile
    state: SealState


def first_state(settings: SealSettings) -> SealState:
    """Return the state of a run before its first step."""
    return SealState(
        rho=None if settings.weights is None else FIRST_RHO,
        interface=None if settings.interface is None else InterfaceState(),
    )


def next_state(state: SealState, profile: FailureProfile, settings: SealSettings) -> SealState:
    """Return the state after one more profile."""
    return SealState(
        rho=moved_rho(state.rho, profile, settings.weights) if state.rho and settings.weights else None,
        interface=next_interface(state.interface, profile, settings.interface)
        if state.interface and settings.interface
        else None,
    )


def figures(before: SealState, steps: Sequence[SealStep]) -> SealFigures:
    """Compute a round's figures from the state ``before`` its first step and all of its steps, in order."""
    states = [before, *(step.state for step in steps)]
    shown = [() if state.interface is None else state.interface.guidelines for state in states]
    gone = [() if state.interface is None else state.interface.retired for state in states]
    labels: Counter[TurnLabel] = Counter()
    for step in steps:
        labels.update({label: found.count for label, found in step.profile.labels.items()})
    guidelines = Counter(label for read in shown[:-1] for label in read)
    retired = Counter(
        label for read, mastered in zip(shown[:-1], gone[1:], strict=True) for label in read if label in mastered
    )
    return SealFigures(
        steps=len(steps),
        labels={label: labels[label] for label in TurnLabel if labels[label]},
        guidelines={label: guidelines[label] for label in TurnLabel if guidelines[label]},
        retired={label: retired[label] for label in TurnLabel if retired[label]},
    )


@dataclass(eq=False)
class Seal:
    """SEAL in one round on the environment ``bare``, step by step. ``keep`` is called with each finished step."""

    settings: SealSettings
    bare: Environment
    state: SealState
    keep: Callable[[SealStep], object]

    @property
    def environment(self) -> Environment:
        """The environment of the next step's rollouts, with the interface around it if there is one."""
        if self.settings.interface is None:
            return self.bare
        return learning_interface(self.bare, self.settings.interface, self.state.interface or InterfaceState())

    def take_in(self, step: int, trajectories: Sequence[Trajectory]) -> list[float] | None:
        """Diagnose the rollouts of global ``step``, all of them, and update the state.

        Returns the factors of their advantages, one per trajectory; None where the settings turn them off.
        """
        diagnoses = [diagnose(one) for one in trajectories]
        profile = failure_profile(diagnoses)
        self.state = next_state(self.state, profile, self.settings)
        self.keep(SealStep(step=step, profile=profile, state=self.state))
        rho = self.state.rho
        return None if rho is None else [trajectory_weight(one, rho) for one in diagnoses]
