"""`python -m graph.studio`: checks a run and opens its graph in LangGraph Studio."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from environments.base import InputError
from environments.checkout import ROOT, child_variables
from environments.command import exit_statuses

CONFIG = ROOT / "langgraph.json"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def main(
    context: typer.Context,
    run: Annotated[Path | None, typer.Option(help="run directory; COEVOLVE_RUN, or the newest below runs/")] = None,
) -> None:
    """Start LangGraph's server on a run and open Studio. Other options go to `langgraph dev`, such as --no-browser.

    Studio works in copies of the run, RUN@THREAD beside it. What can be seen and done is in
    docs/studio.md.

    Exit status: the server's; 2 where there is no run, or another process works on it.
    """
    with exit_statuses():
        os.environ["COEVOLVE_RUN"] = str(_checked(run))
        os.environ.setdefault("LANGGRAPH_CLI_NO_ANALYTICS", "1")  # the program would report its options to its makers
        server = Path(sys.executable).with_name("langgraph")
        if not server.exists():
            raise InputError(f"{server} is not there: install the extra studio (pip install -e '.[studio]')")
    # Nodes take the lock of a copy, a file, on the event loop, which the server would refuse.
    # It appends the working directory to its path: packages there must not replace ours.
    argv = [str(server), "dev", "--config", str(CONFIG), "--allow-blocking", *context.args]
    os.execve(argv[0], argv, {**os.environ, **child_variables()})


def _checked(named: Path | None) -> Path:
    """Return the run's path after a look at its settings and lock: errors in the server are a page of traceback."""
    from graph.checkpoints import studio_run
    from graph.settings import load_recipe
    from memory.run import RunDirectory

    run = RunDirectory.open((named or studio_run()).resolve())
    load_recipe(run.settings_path)
    run.check_settings()
    with run.lock():
        return run.root


if __name__ == "__main__":
    app()
