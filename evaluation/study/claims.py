"""What a study's recipe claims before anything runs: hypotheses, and gates (ours).

A hypothesis is a difference that is expected before a test set is opened. A gate is a range of a figure that the
records have: a comparison of two sources of tasks says something only where tasks can be learnt from and the signals
occur. A study of which a gate fails is void, and its report begins with that. Nothing of them is chosen afterwards.
What came of both is in ``findings``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from evaluation.settings import LOOKUP

Measure = Literal["success", "mixed_groups", "forgetting", "boundary", "rare"]

_WORDS: Mapping[Measure, str] = {
    "success": "success",
    "mixed_groups": "groups that are mixed",
    "forgetting": "marks that are forgetting",
    "boundary": "marks that are boundary",
    "rare": "marks that are rare",
}

MOST = 50
"""The largest number of hypotheses of a study."""


class Strict(BaseModel):
    """A part of the study's recipe: unknown keys are errors that name the key."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Hypothesis(Strict):
    """A difference between two arms that is expected, with its size."""

    arm: str = Field(description="the arm that is expected to differ")
    against: str = Field(description="the arm that it is compared with; lookup: the lookup over the arm's own tasks")
    expected: float = Field(
        ge=-100,
        le=100,
        allow_inf_nan=False,
        description="size of arm minus against that is expected, in percent points of the main score; 0: none, which "
        "a study may refute but cannot show",
    )
    margin: float | None = Field(
        None,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="where no difference is expected: percent points within which two arms count as equal; equality is "
        "shown where the whole interval is within them",
    )
    why: str = Field(min_length=1, max_length=500, description="one sentence of the report: why it is expected")

    @model_validator(mode="after")
    def _claims_equality(self) -> Self:
        if self.margin is not None and self.expected != 0:
            raise ValueError(f"margin is for arms that are expected to be equal, and expected is {self.expected:g}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The arms that have to run: the arm, and the one it is compared with."""
        return (self.arm,) if self.against == LOOKUP else (self.arm, self.against)

    @property
    def row(self) -> str:
        """The row of the report that the arm is compared with."""
        return lookup_row(self.arm) if self.against == LOOKUP else self.against


class Gate(Strict):
    """A range, in percent, that a figure of an arm has to be in, or its difference to that of another arm."""

    measure: Measure = Field(
        description="success: of the main evaluation set's tasks; mixed_groups: share of GRPO's groups in which some "
        "rollouts succeed and some fail; forgetting, boundary, rare: the kind's share of the signals' marks"
    )
    arm: str = Field(description="the arm whose seeds are measured")
    against: str | None = Field(None, description="the arm that is subtracted; null: the figure itself is meant")
    at_least: float = Field(ge=-100, le=100, allow_inf_nan=False, description="the smallest value, in percent")
    at_most: float = Field(100.0, ge=-100, le=100, allow_inf_nan=False, description="the largest value, in percent")
    why: str = Field(min_length=1, max_length=500, description="one sentence of the report: why it has to hold")

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.at_least > self.at_most:
            raise ValueError(f"at_least is {self.at_least:g} and at_most {self.at_most:g}: no value passes")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The arms that have to run."""
        return (self.arm,) if self.against is None else (self.arm, self.against)

    @property
    def sentence(self) -> str:
        """The demand in words."""
        whose = self.arm if self.against is None else f"{self.arm} minus {self.against}"
        unit = "%" if self.against is None else "points"
        least = f"{self.at_least:g} to {self.at_most:g}" if self.at_most < 100 else f"at least {self.at_least:g}"
        return f"{_WORDS[self.measure]} of {whose}: {least} {unit}"


def lookup_row(arm: str) -> str:
    """Return the name of the report's row with the lookup over the tasks of ``arm``."""
    return f"{arm} ({LOOKUP})"


def check_hypotheses(
    hypotheses: Sequence[Hypothesis], seeds: Mapping[str, int], untrained: Collection[str], lookup: bool
) -> None:
    """Raise ValueError for a hypothesis that cannot be tested, and for one that is stated twice.

    ``seeds`` has the number of seeds of every arm, ``untrained`` the names of those that are not trained. ``lookup``:
    the study scores lookups.
    """
    stated: set[frozenset[str]] = set()
    for one in hypotheses:
        names = f"'{one.arm}' against '{one.against}'"
        if unknown := [name for name in one.names if name not in seeds]:
            raise ValueError(f"hypotheses name '{unknown[0]}', which is not an arm: choose from {', '.join(seeds)}")
        if one.arm == one.against:
            raise ValueError(f"hypotheses compare '{one.arm}' with itself: name another arm")
        if one.against == LOOKUP and (not lookup or one.arm in untrained):
            raise ValueError(f"hypotheses state {names}, which is not scored: set lookup, and name a trained arm")
        if frozenset((one.arm, one.row)) in stated:
            raise ValueError(f"hypotheses state {names} twice, in one order or the other: remove one")
        stated.add(frozenset((one.arm, one.row)))
        if all(name in untrained for name in one.names):
            raise ValueError(f"hypotheses state {names}, whose seeds are alike as neither is trained: use compare")
        if few := [name for name in one.names if seeds[name] < 2]:
            raise ValueError(f"hypotheses state {names}, but '{few[0]}' has one seed: a test needs at least 2")


def check_gates(gates: Sequence[Gate], arms: Collection[str], untrained: Collection[str]) -> None:
    """Raise ValueError for a gate of an arm that there is not, or of a figure that an untrained arm does not have."""
    for one in gates:
        if unknown := [name for name in one.names if name not in arms]:
            raise ValueError(f"gates name '{unknown[0]}', which is not an arm: choose from {', '.join(arms)}")
        if one.measure != "success" and (idle := [name for name in one.names if name in untrained]):
            raise ValueError(f"gates ask for {one.measure} of '{idle[0]}', which is not trained: name a trained arm")
