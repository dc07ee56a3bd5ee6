"""Prints the steps of a story to a terminal: labelled rows, a dot for each rollout.

Foreign text is one line (``digest.one_line``) and never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.terminal import printable
from graph.report.digest import number_words, one_line
from graph.report.story import LONG, SHORT, Chapter, Row

LABEL = 11
"""Columns of a row's label."""
STYLES = {"plain": "", "good": "green", "bad": "red", "quiet": "dim"}
"""Styles of a row's tones; a pipe gets none of them."""


def print_story(steps: Iterable[Chapter], console: Console, *, full: bool = False) -> None:
    """Print steps with an empty line between them; ``full``: folded texts whole."""
    for number, step in enumerate(steps):
        if number:
            console.print()
        title = Text(step.name, "dim")
        title.append(f" {one_line(step.id, LONG)}" if step.id else "", style="bold")
        console.print(title.append(f"  {one_line(step.about)}" if step.about else "", style="default"))
        for listed, rows in groupby(step.rows, key=attrgetter("listed")):
            grid = Table.grid(padding=(0, 2, 0, 0))
            grid.add_column(width=0 if listed else LABEL, no_wrap=True)
            grid.add_column(overflow="fold")
            for row in rows:
                grid.add_row(Text(f"  {row.label}", style=STYLES[row.tone] or "dim"), _content(row, full))
            console.print(grid)


def _content(row: Row, full: bool) -> Text:
    style = STYLES[row.tone]
    if row.listed:  # one line of the terminal, however long
        return Text(one_line(row.text, LONG), style=style, no_wrap=True, overflow="ellipsis")
    if row.folded:
        lines = row.text.splitlines() or [""]
        if full:
            return Text("\n".join(map(printable, lines)), style=style)
        size = f" ({number_words(len(lines), 'line')}, {len(row.text)} characters)"
        short = one_line(lines[0], SHORT)
        return Text(short if short == printable(row.text) else short + size, style=style)
    line = Text("  ".join(group.dots(row.marked) for group in row.groups))
    line.highlight_regex("●", STYLES["good"])
    line.highlight_regex("○", STYLES["bad"])
    return line.append(("  " if row.groups and row.text else "") + one_line(row.text, LONG), style=style or "default")
