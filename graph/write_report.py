"""`coevolve report`: one HTML file with a run's story."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from environments.command import OneSentence, check_output, exit_statuses

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    run: Annotated[
        Path | None, typer.Argument(help="run directory; without it COEVOLVE_RUN, or the newest below runs/")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="new file to write; without it RUN/report.html, which is replaced")
    ] = None,
) -> None:
    """Write one HTML file with a run's curves, a map of its tools by iteration, and every task's story.

    The file holds the records, opens from disk in any browser and asks no network. The run may go on meanwhile: the
    page shows what is there. Rollouts that do not fit are left out by a rule that the page states.

    Exit status: 0, or 2 with one sentence for a run that cannot be read and for a file that exists.
    """
    with exit_statuses():
        from graph.checkpoints import studio_run
        from graph.report.page import make_page
        from memory.files import write_atomically
        from memory.run import RunDirectory

        begun = time.perf_counter()
        directory = RunDirectory.open(run or studio_run())
        if output is not None:
            check_output("--output", output)
        page = make_page(directory)
        path = output or directory.report_path
        write_atomically(path, [page.html])
        kept = f"all {page.rollouts}" if page.kept == page.rollouts else f"{page.kept} of {page.rollouts}"
        seconds = time.perf_counter() - begun
        print(f"{path}: {len(page.html) / 1e6:.1f} MB in {seconds:.1f} s, with the turns of {kept} rollouts")
        if page.unpublishable:
            print(f"do not publish it: {page.unpublishable}")


if __name__ == "__main__":
    app()
