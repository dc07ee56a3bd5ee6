"""Settings of the learning interface: which cues there are, and when a guideline appears and retires."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class InterfaceSettings(BaseModel):
    """Cues around the training environment (SEAL's thresholds; those of retirement are ours).

    A guideline that is shown stays between the two pairs of thresholds, so that one batch more or less does not make
    it come and go.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_cues: bool = Field(True, description="mark required arguments and allowed values in their descriptions")
    recovery_hints: bool = Field(True, description="follow an error by one line of hint by its kind")
    constraint_cues: bool = Field(True, description="guidelines that appear and retire by the failure profile")
    appear_prevalence: float = Field(0.10, gt=0.0, le=1.0, description="a label's share of turns at least")
    appear_mean_reward: float = Field(0.6, gt=0.0, le=1.0, description="a label's mean reward, below this")
    appear_count: int = Field(
        8, ge=1, le=1_000_000, description="turns with the label at least; retiring takes as many turns in all"
    )
    at_most: int = Field(3, ge=1, le=100, description="guidelines at once")
    retire_prevalence: float = Field(0.05, gt=0.0, le=1.0, description="mastered below this share of turns (ours)")
    retire_mean_reward: float = Field(0.7, gt=0.0, le=1.0, description="mastered from this mean reward on (ours)")

    @model_validator(mode="after")
    def _something_is_on(self) -> Self:
        if not (self.schema_cues or self.recovery_hints or self.constraint_cues):
            raise ValueError("every cue is off, which is no interface: turn one on, or set the interface to null")
        return self

    @model_validator(mode="after")
    def _thresholds_fit(self) -> Self:
        if self.retire_prevalence > self.appear_prevalence:
            raise ValueError("'retire_prevalence' is above 'appear_prevalence': a guideline would retire as it appears")
        if self.retire_mean_reward < self.appear_mean_reward:
            raise ValueError(
                "'retire_mean_reward' is below 'appear_mean_reward': a guideline would retire as it appears"
            )
        keys = ("appear_prevalence", "appear_mean_reward", "appear_count", "at_most")
        given = [
            key
            for key in (*keys, "retire_prevalence", "retire_mean_reward")
            if getattr(self, key) != type(self).model_fields[key].default
        ]
        if given and not self.constraint_cues:
            raise ValueError(f"'{given[0]}' is for constraint cues, which are off: remove it")
        return self
