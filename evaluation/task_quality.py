"""`python -m evaluation.task_quality`: figures of files of tasks side by side, and a sheet of them for readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from environments.base import Environment, EnvironmentFault, InputError
from environments.command import OneSentence, check_output, exit_statuses, print_table
from environments.settings import EnvironmentSettings
from evaluation.rubric import KEY, RUBRIC, write_sheet
from evaluation.task_figures import Examined, examine, quality_table
from memory.jsonl import complaint, read_jsonl, read_recipe
from memory.processes import run_to_end
from memory.records import Task

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    files: Annotated[list[Path], typer.Argument(help="files of tasks, JSON lines, as graph.seed_tasks writes them")],
    recipe: Annotated[Path, typer.Option(help="YAML file of settings, of which the environment counts")],
    against: Annotated[Path | None, typer.Option(help="a file of tasks that the others are new against")] = None,
    sheet: Annotated[Path | None, typer.Option(help="a new folder for a sheet, its answers and its key")] = None,
    items: Annotated[int, typer.Option(min=1, help="tasks of the sheet, equally many of each file")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="of the sheet's draws")] = 0,
) -> None:
    """Compare files of tasks: where values come from, dataflow, wording, variety, lengths; a column for each file.

    Each reference is replayed in the recipe's environment. Where a task begins behind turns that are played, those
    after them count. With --sheet the tasks are also written out for two readers, without their origin: the answers to
    the twelve questions are compared by python -m evaluation.rubric.

    Exit status: 0, 2 for a user's mistake, 1 when the environment failed.
    """
    with exit_statuses():
        if sheet is not None:
            check_output("--sheet", sheet, "folder")
        names = _names(files)
        environment = open_environment(recipe)
        sets = [(name, read_examined(path, environment)) for name, path in zip(names, files, strict=True)]
        others = [] if against is None else read_examined(against, environment)
        print_table("quality of tasks", *quality_table(sets, others), "in brackets: 95 %")
        if sheet is not None:
            written = write_sheet(sheet, environment, sets, items, seed)
            print(f"{written} tasks with {len(RUBRIC)} questions in {sheet}: give readers all but {KEY}")


def _names(files: list[Path]) -> list[str]:
    """Return a column's name for each file: its own, and its path where two are called alike."""
    for path in files:
        if files.count(path) > 1:
            raise InputError(f"{path} is named twice: name it once")
    names = [path.name for path in files]
    return [str(path) if names.count(path.name) > 1 else path.name for path in files]


def open_environment(recipe: Path) -> Environment:
    """Open the environment of a recipe; its other sections are not read. Raises InputError as a run does."""
    try:
        section = json.dumps(read_recipe(recipe).get("environment") or {})
        settings = EnvironmentSettings.model_validate_json(section, strict=True)
    except ValidationError as error:
        raise InputError(f"{recipe}: {complaint(error, 'environment')}") from None
    return settings.open()


def read_examined(path: Path, environment: Environment) -> list[Examined]:
    """Return the tasks of a file with their replays.

    Raises InputError for a file without a task, and for a task that the environment cannot open; EnvironmentFault where
    the environment failed.
    """
    found = []
    for task in read_jsonl(path, Task):
        try:
            found.append(examine(environment, task))
        except InputError as error:
            raise InputError(f"{path}: task {task.id} cannot be replayed: {error}") from None
        except RecursionError:
            raise InputError(f"{path}: task {task.id} cannot be replayed: its state contains itself") from None
        except EnvironmentFault as fault:
            raise type(fault)(f"{path}: task {task.id}: {fault}") from fault
    if not found:
        raise InputError(f"{path} has no task: name a file of tasks")
    return found


if __name__ == "__main__":
    run_to_end(app)
