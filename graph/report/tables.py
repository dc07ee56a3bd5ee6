"""Shows records as tables in notebooks: as HTML, and as aligned columns; every cell is shown as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from graph.report.digest import one_line
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
