"""Shows records as tables, in notebooks as HTML and elsewhere as aligned columns; every cell is shown as text.

A group of rollouts is drawn as in the terminal, a dot for each, filled for a success. The page of a run has its curves
(``coevolve report``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from environments.base import InputError
from graph.report.digest import one_line, task_words
from graph.report.lineage import History
from graph.report.story import Chapter, Row
from graph.report.summary import Summary

_CELL = 160
_STYLE = "text-align:left;vertical-align:top"


@dataclass(frozen=True)
class Table:
    """Columns, and rows of as many cells. Make one with ``table``."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": repr(self)}

    def html(self) -> str:
        """Return the table as HTML without scripts or links; foreign text in it is escaped."""
        head = "".join(f'<th style="{_STYLE}">{escape(name)}</th>' for name in self.columns)
        body = "\n".join(
            "<tr>" + "".join(f'<td style="{_STYLE}">{escape(cell)}</td>' for cell in row) + "</tr>" for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"

    def __repr__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in lines)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int = _CELL) -> Table:
    """Return a table of ``rows``, each cell as one line of at most ``width`` characters."""
    cells = tuple(tuple(one_line("" if cell is None else str(cell), width) for cell in row) for row in rows)
    return Table(tuple(columns), cells)


def iterations_table(summaries: Sequence[Summary]) -> Table:
    """Return a table with one row per iteration, at most 80 columns wide.

    Success on held-out tasks is in percent, before and after the round, with the interval of the latter.
    """
    kinds = dict.fromkeys(kind for one in summaries for kind in one.signals)
    rows = []
    for one in summaries:
        success = "not scored"
        if one.evaluation is not None:
            before, after = one.evaluation.before, one.evaluation.after
            low, high = after.widest
            success = f"{100 * before.success:.1f} -> {100 * after.success:.1f} ({100 * low:.0f}-{100 * high:.0f})"
        signals = "/".join(str(one.signals.get(kind, 0)) for kind in kinds)
        admitted, seconds = f"{one.admitted} of {one.drafts}", f"{sum(one.seconds.values()):.0f}"
        rows.append((one.iteration, one.tasks, admitted, success, signals, seconds))
    signals = f"signals {'/'.join(kind[0] for kind in kinds)}"
    return table(("iteration", "tasks", "admitted", "success % (95 %)", signals, "seconds"), rows)


def story_table(steps: Iterable[Chapter], most: int = 40) -> Table:
    """Return steps of a story as a table, at most ``most`` rows of each, with what is behind a row below it."""
    rows: list[tuple[str, ...]] = []
    for step in steps:
        found = [*_rows(step.rows)]
        if len(found) > most:
            found = [*found[: most - 1], ("", f"and {len(found) - most + 1} rows more")]
        rows += [("" if number else step.name, *row) for number, row in enumerate(found)]
    return table(("step", "", "record"), rows, width=400)


def _rows(rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    for row in rows:
        yield row.label, row.line
        yield from _rows(row.more)


def groups_table(history: History, iteration: int, tasks: int = 12) -> Table:
    """Show the groups of a round by step, of the first ``tasks`` tasks in the order in which they were drawn.

    Raises InputError for an iteration without rollouts.
    """
    groups = sorted((one for one in history.groups_in(iteration) if one.results), key=lambda group: group.step)
    if not groups:
        raise InputError(f"iteration {iteration} of {history.run.root} has no rollout: name another iteration")
    steps = sorted({group.step for group in groups})
    dots = {(group.task_id, group.step): group.dots() for group in groups}
    names = list(dict.fromkeys(group.task_id for group in groups))[:tasks]
    rows = [(task_words(history.tasks[name], 60), *(dots.get((name, step), "") for step in steps)) for name in names]
    return table(("task", *(f"step {step}" for step in steps)), rows)
