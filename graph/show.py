"""`coevolve show`: follows one task, context, signal, rollout or tool of a run in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.command import OneSentence, exit_statuses
from environments.terminal import printable
from graph.report.digest import number_words, one_line
from graph.report.story import LONG, SHORT, Chapter, Row

LABEL = 11
"""Columns of a row's label."""
STYLES = {"plain": "", "good": "green", "bad": "red", "quiet": "dim"}
"""Styles of a row's tones; a pipe gets none of them."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


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


@app.command(cls=OneSentence)
def main(
    name: Annotated[
        str, typer.Argument(help="id of a task, context, signal, draft or rollout, or its beginning; or a tool")
    ] = "",
    run: Annotated[Path | None, typer.Option(help="run directory; COEVOLVE_RUN, or the newest below runs/")] = None,
    full: Annotated[bool, typer.Option("--full", help="of a rollout: observations whole")] = False,
) -> None:
    """Tell how a task came about and what became of it: the failed rollout, its signal, the exploration, the drafts.

    Without a name: the newest tasks of each iteration. The run may go on meanwhile. Filled dots are successes of a
    group's rollouts, open ones failures. Exit status: 0, or 2 with one sentence where there is no such run or record.
    """
    with exit_statuses():
        from graph.checkpoints import studio_run
        from graph.report.lineage import History
        from graph.report.stories import run_story, story_of
        from memory.run import RunDirectory

        history = History.read(RunDirectory.open(run or studio_run()))
        story = story_of(history, name) if name else run_story(history)
        # A terminal without Unicode gets question marks, not a traceback.
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        print_story(story, Console(highlight=False, markup=False, emoji=False), full=full)


if __name__ == "__main__":
    app()
