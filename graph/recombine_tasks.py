"""`python -m graph.recombine_tasks`: tasks from a benchmark's own: people's requests joined, parted and exchanged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from environments.base import Environment, InputError, TaskSpec
from environments.command import OneSentence, check_output, exit_statuses, say
from environments.turns import lengths_words

if TYPE_CHECKING:
    from environments.benchmark import OfficialTask
    from memory.records import Task

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    recipe: Annotated[Path, typer.Option(help="YAML file of settings, of which the environment and the seed count")],
    output: Annotated[Path, typer.Option(help="a new file of tasks, JSON lines")],
    variants: Annotated[
        int, typer.Option(min=1, max=1000, help="draws of each conversation; equal ones count once")
    ] = 1,
    turns: Annotated[
        bool, typer.Option("--turns", help="each changed turn as a task behind the others, not whole conversations")
    ] = False,
) -> None:
    """Recombine the benchmark's own training conversations (agents/recombination.py).

    The tasks are for python -m training.warm_start --tasks. A held-out one is left out, and so is one that cannot be
    played. Equal options make equal files.

    Exit status: 0, 2 for a user's mistake, 1 when the environment failed.
    """
    from environments.registry import benchmark_of, parse_options
    from graph.settings import load_recipe
    from memory.run import write_jsonl

    with exit_statuses():
        settings = load_recipe(recipe)
        check_output("--output", output)
        environment = settings.environment.open()
        benchmark, found = benchmark_of(environment), None
        if benchmark.has_official_tasks:
            found = benchmark.official_tasks(parse_options(benchmark, settings.environment.options))
        if found is None:
            raise InputError(f"{recipe}: {benchmark.name} has no official tasks to recombine: choose another benchmark")
        official = [one for one in found.tasks if not one.flaw]
        tasks = list(_recombined(official, environment, settings.seed, variants, turns))
        if not tasks:
            raise InputError(f"{recipe}: none of {len(official)} official tasks can be recombined: name other classes")
        write_jsonl(output, tasks)
    print(f"{len(tasks)} tasks of {len(official)} conversations ({lengths_words(tasks)}) in {output}")


def _recombined(
    official: list[OfficialTask], environment: Environment, seed: int, variants: int, turns: bool
) -> Iterator[Task]:
    from agents.recombination import recombined
    from environments.registry import benchmark_of
    from environments.turns import behind, turn_id
    from environments.verification.canonical import fingerprint
    from environments.verification.verify import can_train
    from memory.jsonl import derive_seed, record_id
    from memory.records import Task

    held_out, known = benchmark_of(environment).held_out(), set[str]()
    for one in official:
        before = set(_places(one.spec))
        for number in range(variants):
            made = recombined(one.spec, environment, random.Random(derive_seed(seed, "recombine", one.id, number)))
            if made is None:
                continue
            name = record_id("recombined", one.id, seed, number)
            new = [at for at, place in enumerate(_places(made)) if place not in before]
            parts = [(turn_id(name, at), behind(made, at)) for at in new] if turns else [(name, made)]
            for identifier, spec in parts:
                task = Task(id=identifier, origin="given", parents=(one.id,), **dict(spec))
                if (key := fingerprint(task)) in known:
                    continue
                known.add(key)
                if (result := can_train(task, environment, (), held_out)).accepted:
                    yield task
                else:
                    say(f"{identifier} of {one.id}: {result.reason}: {result.detail}")


def _places(task: TaskSpec) -> list[tuple[str, str]]:
    """Return of each turn its words, and those of all turns before it, which a join leaves as they were."""
    return [(words, " ".join(" ".join(task.turns[:at]).split())) for at, words in enumerate(task.turns)]


if __name__ == "__main__":
    app()
