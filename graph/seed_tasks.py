"""`python -m graph.seed_tasks`: makes D_0 by unguided exploration, through the branch of evolved tasks."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from environments.base import InputError
from environments.command import OneSentence, Overrides, check_output, exit_on_signals, exit_statuses, run_interruptible
from environments.turns import lengths_words

if TYPE_CHECKING:
    from graph.settings import RunSettings
    from memory.records import Task

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    recipe: Annotated[Path | None, typer.Option(help="YAML file of settings; recipes/quickstart.yaml if none")] = None,
    run: Annotated[Path | None, typer.Option(help="a new run directory that begins with these tasks")] = None,
    output: Annotated[Path | None, typer.Option(help="a file of tasks, JSON lines; instead of --run")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="tasks to make (tasks.initial_count)")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="every random draw derives from it")] = None,
    overrides: Overrides = None,
) -> None:
    """Make tasks that aim at no weakness: D_0, and the file for the warm start of an initial policy.

    A run made with --run goes on with python -m graph.run_iteration --resume. With --set tasks.initial=FILE the tasks
    of that file are verified instead, and refused ones are named by line; with tasks.initial=official they are the
    benchmark's own. Equal options make equal files. The chat
    roles' costs are kept in the run, or in FILE.spending.jsonl, and count against the budgets of the next attempt.

    Exit status: 0, 2 for a user's mistake, 129 on SIGHUP, 130 on SIGINT, 143 on SIGTERM, 1 when a role or the
    environment only failed.
    """
    exit_on_signals()
    given = list(overrides or [])
    given += [f"seed={seed}"] if seed is not None else []
    given += [f"tasks.initial_count={count}"] if count is not None else []
    from agents.spending import RepeatedFailure
    from memory.run import RunDirectory

    with exit_statuses(RepeatedFailure), redirect_stdout(sys.stderr):  # keeps the simulators' prints out of stdout
        tasks = seed_file(recipe, given, run, output)
    print(f"{len(tasks)} tasks ({lengths_words(tasks)}) in {output or (run and RunDirectory(run).tasks_path)}")


def seed_file(recipe: Path | None, given: list[str], run: Path | None, output: Path | None) -> tuple[Task, ...]:
    """Make the tasks of a recipe with the settings ``given`` on top, in a new run or a new file. Raises InputError."""
    from tempfile import TemporaryDirectory

    from environments.checkout import QUICKSTART
    from graph.check_recipe import check_run
    from graph.settings import load_recipe
    from memory.run import RunDirectory, write_jsonl

    if (run is None) == (output is None):
        raise InputError("give either --run DIR or --output FILE, one of the two")
    settings = load_recipe(recipe or QUICKSTART, given)
    check_run(settings, trains=False)
    if run is not None:
        return _make(run, settings)
    assert output is not None
    check_output("--output", output)
    with TemporaryDirectory() as folder:
        # The costs of chat roles stay beside the file: they count against the budgets of the next attempt at it.
        kept = output.absolute().with_name(f"{output.name}.{RunDirectory.spending_path.name}")
        tasks = _make(Path(folder), settings, kept)
        write_jsonl(output, tasks)
    return tasks


def _make(root: Path, settings: RunSettings, ledger: Path | None = None) -> tuple[Task, ...]:
    from agents.spending import BudgetReached
    from graph.run.stages import Run, make_tasks, unmade_on_mistake
    from graph.settings import with_known_dtype
    from memory.run import RunDirectory
    from memory.tasks import load_tasks

    run = Run(RunDirectory.create(root, with_known_dtype(settings), ledger), settings, resumed=False)
    with run.directory.lock():
        try:
            with unmade_on_mistake(run):
                run_interruptible(make_tasks(run))
        except BudgetReached as reached:
            budget = str(reached).partition(":")[0]
            raise InputError(f"{budget} before there were {settings.tasks.initial_count} tasks: raise it") from None
    return load_tasks(run.directory)


if __name__ == "__main__":
    app()
