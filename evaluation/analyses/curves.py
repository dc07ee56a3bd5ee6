"""Figures 3a, 3b, 3d and 4 of CoEvolve: success, signals and tasks per signal over a run's evolutions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from environments.base import Record
from evaluation.analyses.recorded import RecordedIteration

if TYPE_CHECKING:
    from rich.table import Table


class CurvePoint(Record):
    """One evolution. ``success``: after the round, None where it was not scored. ``signals``: found, by kind.

    ``tasks_per_signal``: admitted tasks over signals, figure 3d read literally ("Tasks / Signals"). ``acceptance``:
    admitted tasks over drafts. Both are None without signals and drafts.
    """

    step: int
    success: float | None
    signals: dict[str, int]
    admitted: int
    tasks_per_signal: float | None
    acceptance: float | None


class RunCurve(Record):
    """``start``: success of the initial policy. ``shares``: of each kind among all signals of the run (figure 4)."""

    start: float | None
    points: tuple[CurvePoint, ...]
    shares: dict[str, float]


def run_curve(iterations: Sequence[RecordedIteration]) -> RunCurve:
    """Return the figures of a run's iterations."""
    totals: Counter[str] = Counter()
    for one in iterations:
        totals.update(one.signals)
    return RunCurve(
        start=iterations[0].before,
        points=tuple(
            CurvePoint(
                step=one.step,
                success=one.after,
                signals=one.signals,
                admitted=one.admitted,
                tasks_per_signal=_ratio(one.admitted, sum(one.signals.values())),
                acceptance=_ratio(one.admitted, one.drafts),
            )
            for one in iterations
        ),
        shares={kind: count / totals.total() for kind, count in totals.items()} if totals.total() else {},
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def curve_table(name: str, curve: RunCurve) -> Table:
    """Return a row for each evolution; the caption has the shares of figure 4."""
    from rich.table import Table

    kinds = list(curve.shares)
    shares = ", ".join(f"{kind} {share:.1%}" for kind, share in curve.shares.items())
    start = "not scored" if curve.start is None else f"{curve.start:.1%}"
    table = Table(
        title=f"{name}: success, signals and tasks (CoEvolve, figures 3 and 4)",
        caption=f"initial policy: {start}; signals: {shares or 'none'}",
    )
    for column in ("step", "success", *kinds, "signals", "admitted", "tasks / signals", "of drafts"):
        table.add_column(column, justify="right", overflow="fold")
    for one in curve.points:
        table.add_row(
            str(one.step),
            _percent(one.success),
            *(str(one.signals.get(kind, 0)) for kind in kinds),
            str(sum(one.signals.values())),
            str(one.admitted),
            "" if one.tasks_per_signal is None else f"{one.tasks_per_signal:.2f}",
            _percent(one.acceptance),
        )
    return table


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
