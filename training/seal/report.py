"""SEAL's figures of one round as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from training.seal.failure_profile import SealFigures
from training.seal.labels import TurnCause, TurnLabel


def round_rows(figures: SealFigures, seconds: float, share: float) -> Iterator[tuple[str, str]]:
    """Yield name and cell of each row on one round.

    ``seconds`` are those that diagnosis and weights took, ``share`` is their share of the round's wall-clock time.
    """
    errors = figures.errors
    yield "SEAL: turns", _counts(figures.labels)
    yield "  causes", _counts(figures.causes)
    shown = (f"{label} in {n} of {figures.steps} steps" for label, n in figures.guidelines.items())
    yield "  guidelines", ", ".join(shown) or "none"
    yield "  mastered", _counts(figures.retired)
    for name, of, recovered, succeeded in (
        ("errors with a hint", errors.hinted, errors.hinted_recovered, errors.hinted_succeeded),
        ("without", errors.unhinted.errors, errors.unhinted.recovered, errors.unhinted.succeeded),
    ):
        text = f"{of}, {recovered / of:.0%} recovered from, {succeeded / of:.0%} in a success" if of else "none"
        yield f"  {name}", text
    yield "  cost", f"{seconds:.2f} s, {share:.2%} of the round"


def _counts(of: Mapping[TurnLabel, int] | Mapping[TurnCause, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in of.items()) or "none"
