"""`python -m evaluation.analyses`: the tables and figures of the papers that are computed from tasks and outcomes.

Each prints a table. What the papers show of a run's course (success, signals, cost) is in the report of a study.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from environments.base import InputError
from environments.command import OneSentence, OneSentenceGroup, check_output, exit_statuses, print_table
from environments.registry import DEFAULT

if TYPE_CHECKING:
    from evaluation.sets import Item
    from memory.records import Task

NEAR = 0.9
"""Cosine from which a task and an evaluation task are named (ours)."""

app = typer.Typer(
    cls=OneSentenceGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Make the papers' tables and figures from the tasks of runs and the outcomes of evaluations.",
)

Tasks = Annotated[Path, typer.Argument(help="a run's folder, or a file of tasks with a run's keys")]
EvaluationSet = Annotated[
    str | None, typer.Option("--evaluation-set", help="compare with this development set, or with a file of tasks")
]
EnvironmentName = Annotated[str, typer.Option("--environment", help="the benchmark of the evaluation set")]


@app.command(cls=OneSentence)
def agreement(
    first: Annotated[Path, typer.Argument(help="outcomes: coevolve evaluate --output")],
    second: Annotated[Path, typer.Argument(help="outcomes of the same tasks by another policy")],
) -> None:
    """CoEvolve, table 8: tasks that both, one and none of two policies solved, and their paired difference."""
    with exit_statuses():
        from evaluation.analyses.agreement import agreement_table, agreements
        from evaluation.outcomes import TaskOutcome
        from memory.jsonl import read_jsonl

        found = agreements(read_jsonl(first, TaskOutcome), read_jsonl(second, TaskOutcome))
        note = "95 %: for other start states and functions; McNemar: exact, tasks taken for independent"
        print_table("agreement of two evaluations (CoEvolve, table 8)", *agreement_table(found), note)


@app.command(cls=OneSentence)
def power(
    outcomes: Annotated[list[Path], typer.Argument(help="outcomes of an arm's seeds: coevolve evaluate --output")],
    seeds: Annotated[int, typer.Option(min=2, help="seeds of each arm of the study")],
    clusters: Annotated[int, typer.Option(min=2, help="clusters of the study's evaluation set: indices of BFCL")],
    hypotheses: Annotated[int, typer.Option(min=1, help="hypotheses that Holm's correction is for")] = 1,
    stratum: Annotated[str | None, typer.Option(metavar="NAME=VALUE", help="tasks of it alone: category=base")] = None,
) -> None:
    """The smallest difference of success that a study can show, by simulation from development outcomes (ours)."""
    with exit_statuses():
        from evaluation.outcomes import TaskOutcome
        from evaluation.power import simulated_difference
        from memory.jsonl import read_jsonl

        name, _, value = (stratum or "").partition("=")
        read = [read_jsonl(path, TaskOutcome) for path in outcomes]
        arm = [[one for one in some if stratum is None or one.strata.get(name) == value] for some in read]
        typer.echo(simulated_difference([arm], seeds=seeds, clusters=clusters, tests=hypotheses).sentence)


@app.command(cls=OneSentence)
def similarity(
    tasks: Tasks,
    evaluation_set: Annotated[
        str, typer.Option("--evaluation-set", help="compare with this development set, or with a file of tasks")
    ],
    environment: EnvironmentName = DEFAULT,
    subsets: Annotated[
        Path | None, typer.Option(help="new folder for low, medium, high and mixed.jsonl, for tasks.initial (table 13)")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the subsets' draws")] = 0,
) -> None:
    """CoEvolve, figure 5: the largest cosine of each training task to an evaluation task. It is a leak report too."""
    with exit_statuses():
        from statistics import fmean, median

        from evaluation.analyses.similarity import (
            EMBEDDER,
            near_table,
            nearest_of,
            similarity_subsets,
            similarity_table,
        )
        from memory.run import write_jsonl

        if subsets is not None:
            check_output("--subsets", subsets, "folder")
        made, items = _read_tasks(tasks), _open_targets(evaluation_set, environment)
        nearest = nearest_of(made, [item.task for item in items])
        cosines = [one.cosine for one in nearest]
        figures = f"mean {fmean(cosines):.3f}, median {median(cosines):.3f}, largest {max(cosines):.3f}"
        print_table("largest cosine to an evaluation task (CoEvolve, figure 5)", *similarity_table(nearest))
        print(f"{len(nearest)} tasks against {len(items)}, {EMBEDDER}: {figures}")
        print_table(f"tasks with a cosine of {NEAR:g} or more", *near_table(nearest, NEAR))
        if subsets is not None:
            by_id = {task.id: task for task in made}
            for name, some in similarity_subsets(nearest, seed).items():
                write_jsonl(subsets / f"{name}.jsonl", [by_id[one.task] for one in some])
                print(f"{name}: {len(some)} tasks, mean cosine {fmean(one.cosine for one in some):.4f}")


@app.command(cls=OneSentence)
def diversity(
    run: Annotated[Path, typer.Argument(help="a run's folder")],
    evaluation_set: EvaluationSet = None,
    environment: EnvironmentName = DEFAULT,
    neighbours: Annotated[int, typer.Option(min=1, help="k of SR@k (ours; the paper has no value)")] = 5,
) -> None:
    """CoEvolve, table 15: SR@k of the tasks that each evolution admitted, and ED_rel from the target tasks if named."""
    with exit_statuses():
        from evaluation.analyses.similarity import diversity_note, diversity_table, text_of

        admitted: dict[int, list[str]] = {}
        for task in _read_tasks(run):
            if task.admitted_at is not None:
                admitted.setdefault(task.admitted_at, []).append(text_of(task))
        items = () if evaluation_set is None else _open_targets(evaluation_set, environment)
        table = diversity_table(admitted, [text_of(item.task) for item in items], neighbours)
        title = f"diversity of admitted tasks, SR@{neighbours} and ED_rel in % (CoEvolve, table 15)"
        print_table(title, *table)
        print(diversity_note(len(items), neighbours))


@app.command(cls=OneSentence)
def lengths(
    tasks: Tasks,
    evaluation_set: EvaluationSet = None,
    environment: EnvironmentName = DEFAULT,
) -> None:
    """CoEvolve, figures 6 and 7: user turns and calls of synthetic tasks by origin, and of original ones if named."""
    with exit_statuses():
        from evaluation.analyses.similarity import Lengths, lengths_table

        found: list[Lengths] = []
        if evaluation_set is not None:
            items = _open_targets(evaluation_set, environment)
            found.append(
                ("original", [len(item.task.turns) for item in items], [item.reference_calls for item in items])
            )
        made = _read_tasks(tasks)
        for origin in dict.fromkeys(task.origin for task in made):
            own = [task for task in made if task.origin == origin]
            found.append((origin, [len(task.turns) for task in own], [sum(map(len, task.reference)) for task in own]))
        print_table("lengths of tasks (CoEvolve, figures 6 and 7)", *lengths_table(found))


def _read_tasks(path: Path) -> tuple[Task, ...]:
    """Return the tasks of a run, or of a file in the form of its task set. Raises InputError where there is none."""
    from memory.records import Task
    from memory.run import RunDirectory
    from memory.tasks import load_tasks, read_given

    if path.is_dir():
        tasks = load_tasks(RunDirectory.open(path))
    elif not path.is_file():
        raise InputError(f"{path} is neither a run nor a file of tasks: name one")
    else:
        given = read_given(path)
        wrong = [f"{path}, line {number}: {task}" for number, task in given if not isinstance(task, Task)]
        if wrong:
            raise InputError(wrong[0])
        tasks = tuple(task for _, task in given if isinstance(task, Task))
    if not tasks:
        raise InputError(f"{path} has no task")
    return tasks


def _open_targets(evaluation_set: str, environment: str) -> tuple[Item, ...]:
    """Return the tasks of a development set or a file.

    Raises InputError for what cannot be opened or holds no task, and for a held-out set: tasks that are compared with
    its texts, or chosen by them, have seen it.
    """
    from environments.registry import named_benchmark
    from evaluation.sets import held_out, open_set, open_tasks

    file, benchmark = Path(evaluation_set), named_benchmark(environment)
    if not file.is_file() and held_out(evaluation_set, benchmark):
        raise InputError(f"--evaluation-set {evaluation_set} is held out: name a development set, or a file of tasks")
    items = open_tasks(file) if file.is_file() else open_set(evaluation_set, benchmark=benchmark)
    if not items:
        raise InputError(f"--evaluation-set {evaluation_set} holds no task: name another one")
    return items


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
