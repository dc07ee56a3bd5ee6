"""`coevolve show`: follows one task, context, signal, rollout or tool of a run in the terminal."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.base import InputError
from environments.command import OneSentence, exit_statuses, printable
from graph.report.digest import number_words, one_line
from graph.report.story import LONG, SHORT, Chapter, Row

if TYPE_CHECKING:
    from graph.report.lineage import History

LABEL = 11
"""Columns of a row's label."""
STYLES = {"plain": "", "good": "green", "bad": "red", "quiet": "dim"}
"""Styles of a row's tones; a pipe gets none of them."""
NEAR = 0.8
"""Share of equal letters of a name that is proposed (ours): ids of one kind begin alike."""

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
        story = story_of(history, _found(history, name)) if name else run_story(history)
        # A terminal without Unicode gets question marks, not a traceback.
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        print_story(story, Console(highlight=False, markup=False, emoji=False), full=full)


def _found(history: History, name: str) -> str:
    """Return the id or the tool that ``name`` means. Raises InputError that names near ones, or several."""
    from graph.report.digest import one_line
    from graph.report.stories import tools_of

    tools = tools_of(history)
    if name in tools:
        return name
    known = history.starting_with(name)
    if name in known:
        return name
    if len(known) == 1:
        return known[0]
    if known:
        some = one_line(", ".join(known[:3]))
        raise InputError(f"{one_line(name)} begins {len(known)} ids, such as {some}: give more of one")
    kind = name.partition("-")[0]
    near = difflib.get_close_matches(name, [*tools, *(history.starting_with(f"{kind}-"))], n=1, cutoff=NEAR)
    mean = f": did you mean {one_line(near[0])}?" if near else ": coevolve show without a name lists some"
    raise InputError(f"{history.run.root} has no record and no tool {one_line(name)}{mean}")


if __name__ == "__main__":
    app()
