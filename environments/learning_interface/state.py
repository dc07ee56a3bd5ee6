"""Which guidelines the interface shows, and U(Omega, C): how a failure profile changes that."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from environments.base import Record
from environments.learning_interface.cues import GUIDELINES
from environments.learning_interface.profile import FailureProfile, LabelStatistics, TurnLabel
from environments.learning_interface.settings import InterfaceSettings


class InterfaceState(Record):
    """SEAL's Omega, as far as it changes.

    ``updates``: profiles that were taken in. ``guidelines``: labels whose guideline is shown, most pressing first.
    ``retired``: labels whose guideline was shown, is mastered, and has not come back.
    """

    updates: int = Field(0, ge=0)
    guidelines: tuple[TurnLabel, ...] = ()
    retired: tuple[TurnLabel, ...] = ()

    @model_validator(mode="after")
    def _guidelines_exist(self) -> Self:
        unknown = [label for label in (*self.guidelines, *self.retired) if label not in GUIDELINES]
        if unknown:
            raise ValueError(f"the label {unknown[0]} has no guideline: use {', '.join(GUIDELINES)}")
        if len(set(self.guidelines) | set(self.retired)) < len(self.guidelines) + len(self.retired):
            raise ValueError("a label is given twice: show a guideline once, or retire it")
        return self


def update(state: InterfaceState, profile: FailureProfile, settings: InterfaceSettings) -> InterfaceState:
    """U(Omega, C): the interface after ``profile`` (SEAL; that guidelines stay until mastered is ours).

    A guideline appears while its label has a prevalence of ``appear_prevalence`` or more, a mean reward below
    ``appear_mean_reward`` and ``appear_count`` turns. Once shown it stays until it is mastered: prevalence below
    ``retire_prevalence`` or mean reward from ``retire_mean_reward`` on, in a profile of ``appear_count`` turns or more.
    Of more than ``at_most`` the most pressing are shown, by ``prevalence * (1 - mean reward)``, then in the order of
    the labels. What gives way to others is not retired.
    """
    if not settings.constraint_cues:
        return state.model_copy(update={"updates": state.updates + 1})
    mastered = {label for label in state.guidelines if _is_mastered(profile, label, settings)}
    open_ = [
        label
        for label in GUIDELINES
        if (label in state.guidelines and label not in mastered) or _is_pressing(profile.of(label), settings)
    ]
    shown = sorted(open_, key=lambda label: -profile.of(label).pressure)[: settings.at_most]
    retired = [label for label in GUIDELINES if label in mastered or (label in state.retired and label not in shown)]
    return InterfaceState(updates=state.updates + 1, guidelines=tuple(shown), retired=tuple(retired))


def _is_pressing(label: LabelStatistics, settings: InterfaceSettings) -> bool:
    return (
        label.prevalence >= settings.appear_prevalence
        and label.mean_reward < settings.appear_mean_reward
        and label.count >= settings.appear_count
    )


def _is_mastered(profile: FailureProfile, label: TurnLabel, settings: InterfaceSettings) -> bool:
    if profile.turns < settings.appear_count:
        return False
    found = profile.of(label)
    return found.prevalence < settings.retire_prevalence or found.mean_reward >= settings.retire_mean_reward
