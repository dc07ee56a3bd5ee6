"""Prints a report as a table."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.outcomes import Report, Score

CAPTION = (
    "by shape: mean over call shapes, the references' calls in order without values; 95 %: start states and functions "
    "resampled, success no narrower than Wilson's"
)
FUNCTIONS = 40  # printed of a group at most; --json has all


def print_report(report: Report, strata: Sequence[Score]) -> None:
    """The report as a table on stdout, with TGC and SGC where a score has them, and success by function below it."""
    from rich.console import Console
    from rich.table import Table

    rows = (*report.scores, *strata)
    completion = any(row.tgc is not None for row in rows)
    table = Table(title=f"{report.model} on {report.environment} ({report.decoding})", caption=CAPTION)
    columns = ("group", "n", "success", "95 %", "by shape", "95 %")
    for column in (*columns, *(("TGC", "SGC") if completion else ())):
        table.add_column(column, justify="left" if column == "group" else "right", no_wrap=True)
    for row in rows:
        goals = [_percent(row.tgc), _percent(row.sgc)] if completion else []
        success = (f"{row.success:.1%}", _interval(row.shared_interval or row.interval))
        macro = ("" if row.macro is None else f"{row.macro:.1%}", _interval(row.macro_interval))
        table.add_row(row.group, str(row.n), *success, *macro, *goals)
    if len(report.scores) > 1:
        table.add_row("mean of groups", "", f"{report.mean:.1%}", *([""] * (3 + 2 * completion)))
    console = Console()
    console.print(table)
    for score in report.scores:
        shown = ", ".join(f"{name} {one.successes}/{one.n}" for name, one in list(score.functions.items())[:FUNCTIONS])
        more = ", ..." if len(score.functions) > FUNCTIONS else ""
        shared = f"{score.clusters} start states, {score.shapes} call shapes"
        if shown:
            console.print(f"{score.group} ({shared}), solved by function: {shown}{more}", highlight=False)
    for note in report.notes:
        console.print(f"note: {note}", highlight=False)


def _percent(percentage: float | None) -> str:
    return "" if percentage is None else f"{percentage:.1f}"


def _interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{100 * interval[0]:.1f}-{100 * interval[1]:.1f}"
