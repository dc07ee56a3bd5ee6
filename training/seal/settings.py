"""Settings of SEAL in a round of training: advantage weights, and the learning interface of the environment."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from environments.sections import Section, requires
from training.seal.diagnosis import TurnLabel

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


MOVING = requires({"dynamic": True})
CUES = requires({"constraint_cues": True})


class WeightSettings(Section):
    """Advantage weights by the labels of turns (SEAL's numbers).

    Whether rho moves is where the paper and its released code differ. By the paper rho is fixed for all backbones and
    runs (section 3.4; section 5 names it a limitation), which is the default. In the released full run it moves
    (``dynamic: true``); the row "w/o closed-loop update" of its table 3 turns off that motion and nothing else.
    """

    least: float = Field(0.5, gt=0.0, le=1.0, description="lower limit of weights")
    most: float = Field(2.0, ge=1.0, le=1000.0, description="upper limit of weights")
    dynamic: bool = Field(
        False,
        description="rho moves in every step (the released full run); false: it is fixed (the paper's text)",
    )
    window_steps: int = Field(
        12,
        ge=1,
        le=1_000_000,
        description="steps of an epoch: rho follows the turns since it began",
        json_schema_extra=MOVING,
    )
    alpha: float = Field(
        1.0,
        ge=0.0,
        le=1000.0,
        description="how far rho moves at full prevalence and no reward",
        json_schema_extra=MOVING,
    )
    full_count: int = Field(
        32,
        ge=1,
        le=1_000_000,
        description="turns with a label at which its statistics count in full",
        json_schema_extra=MOVING,
    )
    rate: float = Field(
        0.25,
        gt=0.0,
        le=1.0,
        description="fraction of the way to its target that rho moves in one step",
        json_schema_extra=MOVING,
    )


class InterfaceSettings(Section):
    """Cues around the training environment (SEAL's thresholds; those of retirement are ours).

    The three switches are the terms of the paper's observation in training (equation 9). Its main run, and every
    released configuration, has ``schema_cues`` alone (appendix D.4).

    A label's prevalence is its share of the turns that failed (``FAILED``), as in the released code. Guidelines follow
    the profile of one step (algorithm 1); the released code reads the counts since the run began, and in it no
    guideline is ever retired. The thresholds of appearing and retiring differ, so that a guideline does not come and go
    from batch to batch.
    """

    schema_cues: bool = Field(
        True,
        description="mark required arguments and allowed values, with a note in the system message",
    )
    recovery_hints: bool = Field(True, description="add a hint to errors, by their kind")
    constraint_cues: bool = Field(True, description="show guidelines that appear and retire by the failure profile")
    appear_prevalence: float = Field(
        0.10,
        gt=0.0,
        le=1.0,
        description="share of the failed turns from which a label's guideline appears",
        json_schema_extra=CUES,
    )
    appear_mean_reward: float = Field(
        0.6, gt=0.0, le=1.0, description="mean reward of the label below which it appears", json_schema_extra=CUES
    )
    appear_count: int = Field(
        8,
        ge=1,
        le=1_000_000,
        description="turns with the label from which it appears; retiring needs as many turns in all",
        json_schema_extra=CUES,
    )
    at_most: int = Field(3, ge=1, le=100, description="most guidelines shown at a time", json_schema_extra=CUES)
    retire_prevalence: float = Field(
        0.05,
        gt=0.0,
        le=1.0,
        description="share of the failed turns below which it retires (ours)",
        json_schema_extra=CUES,
    )
    retire_count: int = Field(
        4, ge=1, le=1_000_000, description="turns with the label below which it retires (ours)", json_schema_extra=CUES
    )
    retire_mean_reward: float = Field(
        0.7, gt=0.0, le=1.0, description="mean reward of the label from which it retires (ours)", json_schema_extra=CUES
    )

    @model_validator(mode="after")
    def _something_is_on(self) -> Self:
        if not (self.schema_cues or self.recovery_hints or self.constraint_cues):
            raise ValueError("every cue is off, which is not an interface: turn one on, or set the interface to null")
        return self

    @model_validator(mode="after")
    def _thresholds_fit(self) -> Self:
        if self.retire_prevalence > self.appear_prevalence:
            raise ValueError("'retire_prevalence' is above 'appear_prevalence': a guideline would retire as it appears")
        if self.retire_count > self.appear_count:
            raise ValueError("'retire_count' is above 'appear_count': a guideline would retire as it appears")
        if self.retire_mean_reward < self.appear_mean_reward:
            raise ValueError(
                "'retire_mean_reward' is below 'appear_mean_reward': a guideline would retire as it appears"
            )
        return self


class SealSettings(Section):
    """SEAL (arXiv 2605.24426) in a round of training; evaluation does not use it."""

    weights: WeightSettings | None = Field(WeightSettings(), description="weighted advantages; null: none")
    interface: InterfaceSettings | None = Field(
        InterfaceSettings(),
        description="cues around the training environment; a guideline appears where all of appear_* hold, and "
        "retires where one of retire_* does; null: none",
    )

    @model_validator(mode="after")
    def _something_is_on(self) -> Self:
        if self.weights is None and self.interface is None:
            raise ValueError(
                "'weights' and 'interface' are both null, so that SEAL would do nothing: leave the section out"
            )
        return self
