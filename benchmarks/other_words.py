"""`python -m benchmarks.other_words`: write development tasks in other words than the training's.

They show what a policy reads. Two files of tasks, for ``coevolve evaluate --tasks``:

documentation.jsonl   the tasks of a development set, their user turns written from the documentation of the tools
people.jsonl          the official tasks as people wrote them, of training and development indices, that use the classes
                      of the development set alone
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from environments.base import InputError
from environments.command import OneSentence, exit_statuses

if TYPE_CHECKING:
    from memory.records import Task

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    folder: Annotated[Path, typer.Argument(help="where the two files are written")],
    evaluation_set: Annotated[str, typer.Option(help="a development set")] = "templated-dev",
    official_set: Annotated[str, typer.Option(help="a development set of official tasks")] = "base@dev",
) -> None:
    """Write a development set in the words of the documentation, and official tasks as people wrote them.

    Exit status: 0, or 2 for a user's mistake: a test set is not opened.
    """
    with exit_statuses():
        from memory.run import write_jsonl

        documented, official = written(evaluation_set, official_set)
        folder.mkdir(parents=True, exist_ok=True)
        for name, tasks in (("documentation.jsonl", documented), ("people.jsonl", official)):
            write_jsonl(folder / name, tasks)
            print(f"{folder / name}: {len(tasks)} tasks")


def written(evaluation_set: str, official_set: str) -> tuple[Sequence[Task], Sequence[Task]]:
    """Return the tasks in the documentation's words, and people's: those of ``official_set`` and training's.

    Raises InputError for a test set.
    """
    from environments.registry import named_benchmark
    from environments.task_text import render_documented
    from evaluation.selection import select
    from evaluation.sets import held_out, open_set
    from evaluation.settings import ScoringSettings
    from memory.records import Task

    settings = ScoringSettings(evaluation_set=(evaluation_set,))
    benchmark = named_benchmark(settings.environment)
    for name in (evaluation_set, official_set):
        if held_out(name, benchmark):
            raise InputError(f"{name} is a test set: name a development set")
    selected = select(settings)
    environment = selected.environment(benchmark.limits.actions)
    tasks = [item.task for item in selected.items]
    documented = [render_documented(environment, task, random.Random(task.id)) for task in tasks]
    known = {name for task in tasks for name in task.classes}
    training = benchmark.official_tasks(benchmark.adapt(benchmark.parse({}), tasks=tasks))
    held_back = [item.task for item in open_set(official_set, benchmark=benchmark)]
    categories = {task.id.rpartition("-")[0] for task in held_back}
    official = [
        Task(id=one.id, origin="official", **dict(one.spec))
        for one in (() if training is None else training.tasks)
        if one.id.rpartition("-")[0] in categories
    ]
    return documented, [task for task in (*official, *held_back) if known.issuperset(task.classes)]


if __name__ == "__main__":
    app()
