"""The command ``coevolve export``: a run's tasks and trajectories, or its policy, as a folder that others can use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from environments.base import InputError
from environments.command import OneSentence, check_output, exit_statuses

if TYPE_CHECKING:
    from graph.export.content import RunContent

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    run: Annotated[Path, typer.Argument(help="a run's folder")],
    output: Annotated[Path, typer.Option(help="new folder to write")],
    policy: Annotated[bool, typer.Option("--policy", help="the policy with a model card, instead of data")] = False,
    successes: Annotated[
        bool, typer.Option("--successes", help="only trajectories that met the official rule")
    ] = False,
) -> None:
    """Write the tasks and trajectories of RUN, or its policy, as a folder with a card. Nothing is overwritten.

    Content whose environment forbids it is never exported; such a run's policy is not to be published either. Nothing
    is uploaded: hf upload does that.

    Exit status: 0, 2 for a user's mistake.
    """
    with exit_statuses():
        from graph.export.content import RunContent
        from graph.export.policy import export_policy
        from graph.recipe import load_recipe
        from memory.jsonl import whole_folder
        from memory.run import RunDirectory

        if policy and successes:
            raise InputError("--successes is for trajectories, --policy would ignore it: leave it out")
        check_output("--output", output, "folder")
        directory = RunDirectory.open(run)
        settings = load_recipe(directory.settings_path)
        directory.check_settings()
        with whole_folder(output) as folder:
            if policy:
                record = export_policy(directory, settings, folder)
                said = f"the policy of round {record.iteration}, {record.last_step} steps, with a model card"
            else:
                said = _data(RunContent(directory, settings), folder, successes)
        print(f"{output}: {said}", flush=True)


def _data(content: RunContent, folder: Path, successes: bool) -> str:
    from graph.export.cards import dataset_card
    from graph.export.dataset import TASKS, TRAJECTORIES, write_tables

    if equal := content.contaminated():
        raise InputError(
            f"{content.run.tasks_path}: {len(equal)} tasks equal held-out ones, {equal[0]} first: a data set with them "
            "would spoil the evaluation of whoever trains on it, remove them"
        )
    tables = write_tables(content, folder, successes)
    (folder / "README.md").write_text(dataset_card(content, tables, successes), encoding="utf-8")
    return f"{tables[TASKS]} tasks and {tables[TRAJECTORIES]} trajectories with a card"


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
