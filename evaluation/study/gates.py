"""Gates of a study: what has to hold of its records, or its comparisons mean nothing (ours).

A comparison of two sources of tasks says something only where tasks can be learnt from and the signals occur. A recipe
states such demands before anything runs, as ranges of figures that the records have; nothing of them is chosen
afterwards. A study of which one fails is void, and its report begins with that. Gates are measured in the mode that is
reported, on its first evaluation set: in development they tell whether a test set is worth opening.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from memory.records import SignalKind

if TYPE_CHECKING:
    from evaluation.study.records import ArmFacts
    from evaluation.study.summary import Cell

Measure = Literal["success", "mixed_groups", "forgetting", "boundary", "rare"]
State = Literal["passed", "failed", "not run yet"]

_WORDS: Mapping[Measure, str] = {
    "success": "success",
    "mixed_groups": "groups that are mixed",
    "forgetting": "marks that are forgetting",
    "boundary": "marks that are boundary",
    "rare": "marks that are rare",
}


class Gate(BaseModel):
    """A range, in percent, that a figure of an arm has to be in, or its difference to that of another arm."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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


class GateFinding(NamedTuple):
    """A gate and what came of it: ``value`` is the mean over ``seeds`` of the ``planned`` seeds, in percent.

    There is no state before all seeds are there. Marks are counted together over seeds and rounds.
    """

    gate: Gate
    value: float | None
    seeds: int
    planned: int

    @property
    def state(self) -> State:
        """Whether the gate is passed."""
        if self.value is None or self.seeds < self.planned:
            return "not run yet"
        return "passed" if self.gate.at_least <= self.value <= self.gate.at_most else "failed"


def check_gates(gates: Sequence[Gate], arms: Collection[str], untrained: Collection[str]) -> None:
    """Raise ValueError for a gate of an arm that there is not, or of a figure that an untrained arm does not have."""
    for one in gates:
        if unknown := [name for name in one.names if name not in arms]:
            raise ValueError(f"gates name '{unknown[0]}', which is not an arm: choose from {', '.join(arms)}")
        if one.measure != "success" and (idle := [name for name in one.names if name in untrained]):
            raise ValueError(f"gates ask for {one.measure} of '{idle[0]}', which is not trained: name a trained arm")


def gate_findings(
    gates: Sequence[Gate], cells: Mapping[str, Cell], facts: Mapping[str, ArmFacts], planned: Mapping[str, int]
) -> tuple[GateFinding, ...]:
    """Return what came of each gate.

    ``cells`` are the arms' on the main evaluation set, ``facts`` their figures, ``planned`` their numbers of seeds in
    the mode.
    """
    found = []
    for one in gates:
        there = [_seeds(one.measure, name, cells, facts) for name in one.names]
        seeds = set.intersection(*there)
        value = None
        if seeds:
            own, *others = (_figure(one.measure, name, seeds, cells, facts) for name in one.names)
            value = round(100 * (own - sum(others)), 6)
        found.append(GateFinding(one, value, len(seeds), min(planned[name] for name in one.names)))
    return tuple(found)


def _seeds(measure: Measure, name: str, cells: Mapping[str, Cell], facts: Mapping[str, ArmFacts]) -> set[int]:
    """Return the seeds of which the arm has the figure."""
    if measure == "success":
        return set(cells[name].success.by_seed) if name in cells else set()
    return {one.seed for one in facts[name].trained} if name in facts else set()


def _figure(
    measure: Measure, name: str, seeds: Collection[int], cells: Mapping[str, Cell], facts: Mapping[str, ArmFacts]
) -> float:
    """Return an arm's figure in [0, 1]."""
    if measure == "success":
        return fmean(cells[name].success.by_seed[seed] for seed in seeds)
    if measure == "mixed_groups":
        return fmean(one.mixed_groups for each in facts[name].rounds for one in each)
    marks = facts[name].marks
    total = sum(marks[kind] for kind in SignalKind)
    # Without a mark there is no share, and the signals do not occur: that fails, too.
    return marks[measure] / total if total else 0.0


def void(findings: Sequence[GateFinding]) -> list[str]:
    """Return the sentences that a report begins with: of failed gates, and of those that are not measured yet."""
    failed = [f"{one.gate.sentence}, found {_percent(one.value)}" for one in findings if one.state == "failed"]
    waiting = sum(one.state == "not run yet" for one in findings)
    sentences = []
    if failed:
        sentences.append(f"**The trial is void**: {len(failed)} of {len(findings)} gates failed ({'; '.join(failed)}).")
    if waiting:
        sentences.append(f"**{waiting} of {len(findings)} gates are not measured yet**: nothing below is a result.")
    return sentences


def gate_table(findings: Sequence[GateFinding]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of a report's table of gates."""
    rows: list[tuple[str, ...]] = [
        (
            one.gate.sentence,
            _percent(one.value),
            str(one.seeds) if one.seeds >= one.planned else f"{one.seeds} of {one.planned}",
            one.state,
            one.gate.why,
        )
        for one in findings
    ]
    return ("gate", "found", "n seeds", "state", "why"), rows


def _percent(value: float | None) -> str:
    return "" if value is None else f"{round(value, 1) + 0.0:.1f}"
