"""`coevolve show`: follows one task, context, signal, rollout or tool of a run in the terminal."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from environments.base import InputError
from environments.command import OneSentence, exit_statuses

if TYPE_CHECKING:
    from graph.report.lineage import History

NEAR = 0.8
"""Share of equal letters of a name that is proposed (ours): ids of one kind begin alike."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


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
        from rich.console import Console

        from graph.checkpoints import studio_run
        from graph.report.lineage import History
        from graph.report.stories import run_story, story_of
        from graph.report.terminal import print_story
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
