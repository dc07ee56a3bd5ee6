"""SEAL's figures as rows of tables: for one round, and for a condition of a study over its seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from environments.base import Record
from training.seal.diagnosis import SealFigures, TurnLabel


def round_rows(figures: SealFigures, seconds: float, share: float) -> Iterator[tuple[str, str]]:
    """Yield name and cell of each row on one round.

    ``seconds`` are those that diagnosis and weights took, ``share`` is their share of the round's wall-clock time.
    """
    yield "SEAL: turns", _counts(figures.labels)
    shown = (f"{label} in {n} of {figures.steps} steps" for label, n in figures.guidelines.items())
    yield "  guidelines", ", ".join(shown) or "none"
    yield "  mastered", _counts(figures.retired)
    yield "  cost", f"{seconds:.2f} s, {share:.2%} of the round"


def _counts(of: Mapping[TurnLabel, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in of.items()) or "none"


class SealFacts(Record):
    """All rounds and seeds of one condition of a study (see ``SealFigures``).

    ``cost_share``: SEAL's share of the rounds' wall-clock time; None where no time was measured.
    """

    steps: int
    labels: dict[TurnLabel, int]
    guidelines: dict[TurnLabel, int]
    retired: dict[TurnLabel, int]
    cost_share: float | None


def seal_facts(rounds: Sequence[SealFigures], cost_share: float | None) -> SealFacts | None:
    """Sum the rounds of every seed; None where there is no round with figures."""
    if not rounds:
        return None
    return SealFacts(
        steps=sum(one.steps for one in rounds),
        labels=_sum([one.labels for one in rounds]),
        guidelines=_sum([one.guidelines for one in rounds]),
        retired=_sum([one.retired for one in rounds]),
        cost_share=cost_share,
    )


HEAD = (
    "arm",
    "turns by label",
    "guidelines, steps shown (times mastered)",
    "diagnosis and weights, % of the rounds",
)
"""The head of ``study_rows``."""


def study_rows(facts: Mapping[str, SealFacts | None]) -> Iterator[tuple[str, ...]]:
    """Yield one row for each condition with SEAL. Shares are in percent; empty where the total is 0."""
    for name, one in facts.items():
        if one is None:
            continue
        turns = sum(one.labels.values())
        shown = (f"{label} {n} of {one.steps} ({one.retired.get(label, 0)})" for label, n in one.guidelines.items())
        yield (
            name,
            ", ".join(f"{label} {_percent(n, turns)} %" for label, n in one.labels.items()),
            ", ".join(shown) or "none",
            "" if one.cost_share is None else f"{one.cost_share * 100:.2f}",
        )


def _sum(parts: Sequence[Mapping[TurnLabel, int]]) -> dict[TurnLabel, int]:
    counted: Counter[TurnLabel] = Counter()
    for part in parts:
        counted.update(part)
    return {label: counted[label] for label in TurnLabel if counted[label]}


def _percent(part: int, of: int) -> str:
    return f"{part / of * 100:.1f}" if of else ""
