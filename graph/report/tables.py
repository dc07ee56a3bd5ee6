"""Shows records as tables in notebooks: as HTML, and as aligned columns; every cell is shown as text.

A group of rollouts is drawn as in the terminal, a dot for each, filled for a success. The page of a run has its curves
(``coevolve report``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from environments.base import InputError
from graph.report.digest import one_line, task_words
from graph.report.lineage import Chain, History
from graph.report.story import Chapter, Row

_CELL = 160
_STYLE = "text-align:left;vertical-align:top"


@dataclass(frozen=True)
class Table:
    """Columns, rows of as many cells, and a caption above them. Make one with ``table``."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": repr(self)}

    def html(self) -> str:
        """Return the table as HTML without scripts or links; foreign text in it is escaped."""
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        head = "".join(f'<th style="{_STYLE}">{escape(name)}</th>' for name in self.columns)
        body = "\n".join(
            "<tr>" + "".join(f'<td style="{_STYLE}">{escape(cell)}</td>' for cell in row) + "</tr>" for row in self.rows
        )
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"

    def __repr__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(row[place]) for row in lines) for place in range(len(self.columns))]
        words = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines
        ]
        return "\n".join([self.caption, *words] if self.caption else words)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "", width: int = _CELL) -> Table:
    """Return a table of ``rows``, each cell as one line of at most ``width`` characters."""
    cells = tuple(tuple(one_line("" if cell is None else str(cell), width) for cell in row) for row in rows)
    return Table(tuple(columns), cells, caption)


def story_table(steps: Iterable[Chapter], most: int = 40) -> Table:
    """Return steps of a story as a table, at most ``most`` rows of each, with what is behind a row below it."""
    rows: list[tuple[str, ...]] = []
    for step in steps:
        found = [*_rows(step.rows)]
        shown = found if len(found) <= most else [*found[: most - 1], ("", f"and {len(found) - most + 1} rows more")]
        rows += [("" if number else step.name, *row) for number, row in enumerate(shown)]
    return table(("step", "", "record"), rows, width=400)


def _rows(rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    for row in rows:
        yield row.label, "  ".join(filter(None, (*(group.dots(row.marked) for group in row.groups), row.text)))
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


def ancestry(history: History, task_id: str) -> tuple[Chain, ...]:
    """Return the chains that lead to a task, the oldest first: a weakness at an added task has a chain of its own.

    Those of D_0 are left out: no weakness led to it.
    """
    found: list[Chain] = []
    while (chain := history.chain_of(task_id)) is not None and chain.iteration is not None and chain not in found:
        found.append(chain)
        task_id = chain.context.task_id
    return tuple(reversed(found))


def generations_table(history: History, task_id: str) -> Table:
    """Show the groups of a task and of the tasks that it descends from, by round; in brackets: rollouts that led on."""
    marked = {chain.context.task_id: chain.context.trajectory_id for chain in ancestry(history, task_id)}
    rows = []
    for number, name in enumerate([*marked, task_id]):
        groups = history.groups.get(name, ())
        of_round = (
            [one.dots(marked.get(name, "")) for one in groups if one.iteration == n] for n in history.iterations
        )
        rows.append((f"generation {number}", *map("  ".join, of_round)))
    return table(("task", *(f"round {number}" for number in history.iterations)), rows)
