"""Prints a report as a table."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.outcomes import Report, Score


def print_report(report: Report, strata: Sequence[Score]) -> None:
    """The report as a table on stdout, with TGC and SGC where a score has them."""
    from rich.console import Console
    from rich.table import Table

    rows = (*report.scores, *strata)
    completion = any(row.tgc is not None for row in rows)
    table = Table(title=f"{report.model} on {report.environment} ({report.decoding})")
    for column in ("group", "n", "clusters", "success", "95 % interval", *(("TGC", "SGC") if completion else ())):
        table.add_column(column, justify="left" if column == "group" else "right")
    for row in rows:
        interval = f"{row.interval[0]:.1%} - {row.interval[1]:.1%}"
        goals = [_percent(row.tgc), _percent(row.sgc)] if completion else []
        table.add_row(row.group, str(row.n), str(row.clusters), f"{row.success:.1%}", interval, *goals)
    if len(report.scores) > 1:
        table.add_row("mean of groups", "", "", f"{report.mean:.1%}", "", *([""] * 2 * completion))
    console = Console()
    console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", highlight=False)


def _percent(percentage: float | None) -> str:
    return "" if percentage is None else f"{percentage:.1f}"
