"""Labelled rows of text for a terminal: what a story is printed as, and its words, dots and bars.

Foreign text is one line (``digest.one_line``) and never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from environments.terminal import printable
from graph.report.digest import one_line
from graph.report.lineage import Group, Rollout

LONG = 240
"""Characters of a foreign text: three lines of a terminal with 80 columns."""
LABEL = 11
"""Columns of a row's label."""
GOOD, BAD, QUIET, NAME = "green", "red", "dim", "bold"
"""Styles; a pipe gets none of them."""


class Row(NamedTuple):
    """A label and what it labels; an empty label continues the row before, a ``listed`` row is one line."""

    label: str
    content: RenderableType
    style: str = ""
    listed: bool = False


class Passage(NamedTuple):
    """A heading and its rows."""

    title: Text
    rows: Sequence[Row] = ()


def print_story(passages: Iterable[Passage], console: Console) -> None:
    """Print passages with an empty line between them."""
    for number, passage in enumerate(passages):
        if number:
            console.print()
        console.print(_printable(passage.title))
        for listed, rows in groupby(passage.rows, key=attrgetter("listed")):
            grid = Table.grid(padding=(0, 2, 0, 0))
            grid.add_column(width=0 if listed else LABEL, no_wrap=True)
            grid.add_column(overflow="fold")
            for row in rows:
                grid.add_row(Text(f"  {row.label}", style=row.style or QUIET), _printable(row.content))
            console.print(grid)


def _printable(content: RenderableType) -> RenderableType:
    """Replace control characters of a text by spaces: ids are foreign, too, in a run of somebody else's."""
    if isinstance(content, Text):
        content.plain = printable(content.plain)
    return content


def dots(groups: Sequence[Group], of: Rollout | None = None) -> Text:
    """Return one dot per rollout: filled for a success, open for a failure, a point for an infrastructure error."""
    line = Text()
    for number, group in enumerate(groups):
        line.append(" " if number else "")
        for one in group.rollouts:
            mark, style = {True: ("●", GOOD), False: ("○", BAD), None: ("·", QUIET)}[one.success]
            line.append(f"[{mark}]" if of is not None and one.id == of.id else mark, style=style)
    return line


def bar(share: float, count: int) -> Text:
    """Return twenty marks of which a share is filled, and the share in words."""
    line = Text("●" * round(20 * share), style=GOOD)
    line.append("·" * (20 - round(20 * share)), style=QUIET)
    return line.append(f"  {share_words(share, count)}", style="default")


def cropped(words: str) -> Row:
    """Return a row of a list: one line of the terminal, however long."""
    return Row("", Text(words, no_wrap=True, overflow="ellipsis"), listed=True)


def title_of(word: str, name: str, more: str = "") -> Text:
    """Return a passage's title: what it is, its name or id, and more words."""
    line = Text(f"{word} ", style=QUIET)
    line.append(one_line(name, LONG), style=NAME)
    return line.append(f"{'  ' if name else ''}{one_line(more)}", style="default") if more else line


def foreign(text: str, style: str = "") -> Text:
    """Return foreign text as one line."""
    return Text(one_line(text, LONG), style=style)


def share_words(share: float, count: int) -> str:
    """Return a share in [0, 1] of a count."""
    return f"{share:.0%} of {count}"
