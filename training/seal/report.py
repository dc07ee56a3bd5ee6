"""SEAL's figures of one round as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
