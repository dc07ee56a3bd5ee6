"""`python -m graph.studio`: checks a run and opens its graph in LangGraph Studio."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from environments.base import InputError
from environments.checkout import ROOT
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
        if find_spec("langgraph_api") is None:
            raise InputError("langgraph_api is not installed: install the extra studio (pip install -e '.[studio]')")
        serve(context.args)


def serve(options: Sequence[str]) -> None:
    """Run ``langgraph dev`` until it is ended. The working directory can be a stranger's: nothing in it is loaded.

    The program would unpickle what lies in ``.langgraph_api`` there, where it keeps its lists, and append the folder to
    the import path, so that packages that it asks for in vain came from there.
    """
    from langgraph.checkpoint.memory import PersistentDict
    from langgraph_api import cli
    from langgraph_cli.cli import cli as command

    path, run_server = [*sys.path], cli.run_server

    def run(*arguments: Any, **given: Any) -> None:  # noqa: ANN401 - the program's own
        sys.path[:] = path
        run_server(*arguments, **given)

    # The signatures are the program's; the lists are made anew at each start (graph.studio.server).
    vars(cli)["run_server"] = run
    for name in ("load", "sync"):
        setattr(PersistentDict, name, lambda _: None)
    # Nodes take the lock of a copy, a file, on the event loop, which the server would refuse.
    # One process: a signal that ends the command ends the server.
    command(["dev", "--config", str(CONFIG), "--allow-blocking", "--no-reload", *options])


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
