"""Print lines for people: whatever a text holds, it does not control the terminal that it is printed on.

Every line on stderr goes through ``say``: errors, warnings and progress quote what endpoints, hosts, recipes and models
wrote.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence

_KEPT = "\n\t"
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def printable(text: str, kept: str = "") -> str:
    """Return ``text`` with a space for each character that is not printable, except those in ``kept``.

    Those are control characters, escape sequences' first ones among them, marks of the writing direction, half
    surrogates and odd spaces.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in kept else " " for letter in text)


def say(text: str) -> None:
    """Print ``text`` on stderr at once, its lines as they are."""
    print(printable(text, _KEPT), file=sys.stderr, flush=True)


def table_cell(value: object) -> str:
    """Return a value as one cell of a Markdown table: a line without markup of tables or HTML."""
    return _TAG.sub("&lt;", " ".join(str(value).split()).replace("|", "\\|"))


def markdown_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(map(table_cell, row))} |" for row in (head, *rows)]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def print_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> None:
    """Print a table that has a row on stdout, its cells as they are: the first and unnamed columns to the left."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), caption=Text(caption) if caption else None)
    for place, column in enumerate(head):
        table.add_column(Text(column), justify="right" if place and column else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    if table.row_count:
        Console().print(table)
