"""Settings of SEAL in a round of training: advantage weights, and the learning interface of the environment."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from environments.settings import Section
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
