"""What SEAL did in the round of an iteration, as a part of its summary and as rows of its table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from environments.base import Record
from environments.learning_interface.profile import SealFigures, TurnCause, TurnLabel
from training.round_record import RoundRecord, RoundSeconds


class SealSummary(Record):
    """What SEAL saw and showed in the round, and the round's seconds by stage, its own among them."""

    figures: SealFigures
    measured: RoundSeconds


def seal_summary(done: RoundRecord) -> SealSummary | None:
    """SEAL's part of a round; None where it is off."""
    return None if done.seal is None else SealSummary(figures=done.seal, measured=done.measured)


def seal_rows(summary: SealSummary) -> Iterator[tuple[str, str]]:
    """Rows of the iteration's table: what turns became, what the interface was of use for, what all of it cost."""
    figures, errors = summary.figures, summary.figures.errors
    yield "SEAL: turns", _counts(figures.labels)
    yield "  causes", _counts(figures.causes)
    shown = (f"{label} in {n} of {figures.steps} steps" for label, n in figures.guidelines.items())
    yield "  guidelines", ", ".join(shown) or "none"
    yield "  mastered", _counts(figures.retired)
    for name, of, recovered, succeeded in (
        ("errors with a hint", errors.hinted, errors.hinted_recovered, errors.hinted_succeeded),
        ("without", errors.unhinted.errors, errors.unhinted.recovered, errors.unhinted.succeeded),
    ):
        told = f"{of}, {recovered / of:.0%} recovered from, {succeeded / of:.0%} in a success" if of else "none"
        yield f"  {name}", told
    measured = summary.measured
    yield "  cost", f"{measured.seal:.2f} s, {measured.seal_share:.2%} of the round"


def _counts(of: Mapping[TurnLabel, int] | Mapping[TurnCause, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in of.items()) or "none"
