"""The command ``coevolve export``: a run's tasks and trajectories as a folder that others can use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from environments.base import InputError
from environments.command import OneSentence, check_output, exit_statuses

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    run: Annotated[Path, typer.Argument(help="a run's folder")],
    output: Annotated[Path, typer.Option(help="new folder to write")],
) -> None:
    """Write the tasks and trajectories of RUN as a folder with a card. Nothing is overwritten.

    Content whose environment forbids it is never exported; such a run's policy is not to be published either. Nothing
    is uploaded: hf upload does that.

    Exit status: 0, 2 for a user's mistake.
    """
    with exit_statuses():
        from graph.export.cards import dataset_card
        from graph.export.dataset import TASKS, TRAJECTORIES, RunContent, write_tables
        from graph.settings import load_recipe
        from memory.files import whole_folder, write_atomically
        from memory.run import RunDirectory

        check_output("--output", output, "folder")
        directory = RunDirectory.open(run)
        settings = load_recipe(directory.settings_path)
        directory.check_settings()
        content = RunContent(directory, settings)
        if equal := content.contaminated():
            raise InputError(
                f"{directory.tasks_path}: {len(equal)} tasks equal held-out ones, {equal[0]} first: a data set with "
                "them would spoil the evaluation of whoever trains on it, remove them"
            )
        with whole_folder(output) as folder:
            tables = write_tables(content, folder)
            write_atomically(folder / "README.md", [dataset_card(content, tables).encode()])
        print(f"{output}: {tables[TASKS]} tasks and {tables[TRAJECTORIES]} trajectories with a card", flush=True)


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
