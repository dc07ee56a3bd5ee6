"""Table 7 of CoEvolve: the share of a run's time that feedback takes, beside what it gains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from environments.base import Record
from evaluation.analyses.recorded import RecordedIteration

if TYPE_CHECKING:
    from rich.table import Table

FEEDBACK = "evolve"
"""The stage that turns a round's signals into tasks: the graph."""
TRAINING = "train"


class Gain(Record):
    """A success rate and the one it is compared with, in [0, 1]. ``relative`` is None where that is 0."""

    reference: float
    reached: float
    difference: float
    relative: float | None


class FeedbackCost(Record):
    """One row of the table.

    ``share``: seconds of feedback over those of the whole run, D_0 and evaluations included (the paper does not say
    what its whole run includes). ``share_of_loop``: over those of training and feedback alone. ``evolution_seconds``:
    mean of one evolution. ``stages``: seconds by stage. ``without_seconds``: iterations whose feedback was not timed,
    as that of one killed right after its result; a resumed stage has the seconds of its last attempt.
    """

    evolutions: int
    evolution_seconds: float | None
    whole_seconds: float
    share: float | None
    share_of_loop: float | None
    stages: dict[str, float]
    without_seconds: tuple[int, ...]
    gain: Gain | None


def feedback_cost(iterations: Sequence[RecordedIteration], against: float | None = None) -> FeedbackCost:
    """Return the cost and gain of a run (table 7).

    The gain is that of the last score over ``against``, the last score of another run (the paper's: static GRPO), or
    over the initial policy's where it is None. It is None where the run scores nothing.
    """
    stages: Counter[str] = Counter()
    for one in iterations:
        stages.update(one.seconds)
    timed = [one for one in iterations if FEEDBACK in one.seconds]
    feedback, whole = stages[FEEDBACK], sum(stages.values())
    loop = feedback + stages[TRAINING]
    return FeedbackCost(
        evolutions=len(iterations),
        evolution_seconds=feedback / len(timed) if timed else None,
        whole_seconds=whole,
        share=feedback / whole if whole else None,
        share_of_loop=feedback / loop if loop else None,
        stages={name: seconds for name, seconds in stages.items() if seconds},
        without_seconds=tuple(one.iteration for one in iterations if FEEDBACK not in one.seconds),
        gain=gain_over(iterations[0].before if against is None else against, last_score(iterations)),
    )


def last_score(iterations: Sequence[RecordedIteration]) -> float | None:
    """Return the success after the last round; None where it was not scored."""
    return iterations[-1].after


def gain_over(reference: float | None, reached: float | None) -> Gain | None:
    """Return the gain of ``reached``; None where one of the two is not known."""
    if reference is None or reached is None:
        return None
    difference = reached - reference
    return Gain(
        reference=reference,
        reached=reached,
        difference=difference,
        relative=difference / reference if reference else None,
    )


def cost_table(costs: Sequence[tuple[str, FeedbackCost]]) -> Table:
    """Return a row for each named run, in the paper's columns."""
    from rich.table import Table

    table = Table(title="cost of feedback (CoEvolve, table 7)")
    for column in ("run", "feedback", "of the loop", "one evolution", "whole run", "gain"):
        table.add_column(column, justify="left" if column == "run" else "right", overflow="fold")
    for name, cost in costs:
        table.add_row(
            name,
            _percent(cost.share),
            _percent(cost.share_of_loop),
            "" if cost.evolution_seconds is None else f"{cost.evolution_seconds:.1f} s x {cost.evolutions}",
            f"{cost.whole_seconds:.1f} s",
            _gain(cost.gain),
        )
    return table


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"


def _gain(gain: Gain | None) -> str:
    if gain is None:
        return "not scored"
    words = f"{gain.reference:.2%} to {gain.reached:.2%} ({100 * gain.difference:+.2f})"
    return words if gain.relative is None else f"{words}, {gain.relative:+.2%} relative"
