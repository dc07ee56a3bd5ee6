"""`python -m evaluation.analyses`: the tables and figures of the papers that are computed from tasks and outcomes.

Each prints a table. What the papers show of a run's course (success, signals, cost) is in the report of a study.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from environments.base import InputError
from environments.command import OneSentence, OneSentenceGroup, check_output, exit_statuses
from environments.registry import DEFAULT

if TYPE_CHECKING:
    from evaluation.analyses import Table
    from evaluation.analyses.similarity import NearestTarget
    from evaluation.sets import Item
    from memory.records import Task

NO_MODEL = "none: texts and lengths of the tasks alone"
"""The model that the test access log names where an analysis opens a held-out set."""
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
    str | None, typer.Option("--evaluation-set", help="compare with this evaluation set, or with a file of tasks")
]
EnvironmentName = Annotated[str, typer.Option("--environment", help="the benchmark of the evaluation set")]
AccessLog = Annotated[
    Path | None, typer.Option(help="test access log, for a held-out set: as for coevolve evaluate --access-log")
]


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
        _show("agreement of two evaluations (CoEvolve, table 8)", agreement_table(found), note)


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
    evaluation_set: EvaluationSet = None,
    environment: EnvironmentName = DEFAULT,
    access_log: AccessLog = None,
) -> None:
    """CoEvolve, figure 5: the largest cosine of each training task to an evaluation task. It is a leak report too."""
    with exit_statuses():
        from statistics import fmean, median

        from evaluation.analyses.similarity import EMBEDDER, near_table, similarity_table

        nearest, count = _nearest(_read_tasks(tasks), evaluation_set, environment, access_log)
        cosines = [one.cosine for one in nearest]
        figures = f"mean {fmean(cosines):.3f}, median {median(cosines):.3f}, largest {max(cosines):.3f}"
        note = f"{len(nearest)} tasks against {count}, {EMBEDDER}: {figures}"
        _show("largest cosine to an evaluation task (CoEvolve, figure 5)", similarity_table(nearest), note)
        _show(f"tasks with a cosine of {NEAR:g} or more", near_table(nearest, NEAR))


@app.command(cls=OneSentence)
def subsets(
    tasks: Tasks,
    output: Annotated[Path, typer.Argument(help="new folder for low, medium, high and mixed.jsonl")],
    evaluation_set: EvaluationSet = None,
    environment: EnvironmentName = DEFAULT,
    access_log: AccessLog = None,
    seed: Annotated[int, typer.Option(min=0, help="of the draws")] = 0,
) -> None:
    """CoEvolve, table 13: training sets of low, medium, high and mixed similarity, of equal size, for tasks.initial.

    Choose by similarity to a development set: training tasks that were chosen by a test set have seen it.
    """
    with exit_statuses():
        from evaluation.analyses.similarity import similarity_subsets, subsets_table
        from memory.run import write_jsonl

        check_output("OUTPUT", output, "folder")
        found = _read_tasks(tasks)
        nearest, _ = _nearest(found, evaluation_set, environment, access_log)
        chosen = similarity_subsets(nearest, seed)
        by_id = {task.id: task for task in found}
        for name, some in chosen.items():
            write_jsonl(output / f"{name}.jsonl", [by_id[one.task] for one in some])
        _show("subsets by similarity (CoEvolve, table 13)", subsets_table(chosen))


@app.command(cls=OneSentence)
def diversity(
    run: Annotated[Path, typer.Argument(help="a run's folder")],
    evaluation_set: EvaluationSet = None,
    environment: EnvironmentName = DEFAULT,
    access_log: AccessLog = None,
    neighbours: Annotated[int, typer.Option(min=1, help="k of SR@k (ours; the paper has no value)")] = 5,
) -> None:
    """CoEvolve, table 15: SR@k of the tasks that each evolution admitted, and ED_rel from the target tasks if named."""
    with exit_statuses():
        from evaluation.analyses.diversity import diversity_note, diversity_table
        from evaluation.analyses.similarity import text_of

        admitted: dict[int, list[str]] = {}
        for task in _read_tasks(run):
            if task.admitted_at is not None:
                admitted.setdefault(task.admitted_at, []).append(text_of(task))
        items = () if evaluation_set is None else _open_targets(evaluation_set, environment, access_log)
        table = diversity_table(admitted, [text_of(item.task) for item in items], neighbours)
        title = f"diversity of admitted tasks, SR@{neighbours} and ED_rel in % (CoEvolve, table 15)"
        _show(title, table, diversity_note(len(items), neighbours))


@app.command(cls=OneSentence)
def lengths(
    tasks: Tasks,
    evaluation_set: EvaluationSet = None,
    environment: EnvironmentName = DEFAULT,
    access_log: AccessLog = None,
) -> None:
    """CoEvolve, figures 6 and 7: user turns and calls of synthetic tasks by origin, and of original ones if named."""
    with exit_statuses():
        from evaluation.analyses.diversity import Lengths, lengths_table
        from evaluation.sets import calls_of

        found: list[Lengths] = []
        if evaluation_set is not None:
            items = _open_targets(evaluation_set, environment, access_log)
            found.append(
                ("original", [len(item.task.turns) for item in items], [item.reference_calls for item in items])
            )
        made = _read_tasks(tasks)
        for origin in dict.fromkeys(task.origin for task in made):
            own = [task for task in made if task.origin == origin]
            found.append((origin, [len(task.turns) for task in own], [calls_of(task) for task in own]))
        _show("lengths of tasks (CoEvolve, figures 6 and 7)", lengths_table(found))


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


def _open_targets(evaluation_set: str, environment: str, access_log: Path | None) -> tuple[Item, ...]:
    """Return the tasks of an evaluation set or a file. Raises InputError for what cannot be opened or holds no task.

    A held-out set opens as for a score (``evaluation.sets.open_set``): texts that are compared have been read.
    """
    from environments.registry import named_benchmark
    from evaluation.sets import held_out, open_set, open_tasks

    file, benchmark = Path(evaluation_set), named_benchmark(environment)
    if access_log is not None and (file.is_file() or not held_out(evaluation_set, benchmark)):
        raise InputError(f"--access-log is for held-out evaluation sets, {evaluation_set} is not one: leave it out")
    if file.is_file():
        items = open_tasks(file)
    else:
        items = open_set(evaluation_set, access_log=access_log, model=NO_MODEL, benchmark=benchmark)
    if not items:
        raise InputError(f"--evaluation-set {evaluation_set} holds no task: name another one")
    return items


def _nearest(
    made: Sequence[Task], evaluation_set: str | None, environment: str, access_log: Path | None
) -> tuple[list[NearestTarget], int]:
    """Return the nearest target of each task, and the number of targets."""
    from evaluation.analyses.similarity import embed, nearest_targets, text_of

    if evaluation_set is None:
        raise InputError("--evaluation-set is missing: name the evaluation set or the file of tasks to compare with")
    items = _open_targets(evaluation_set, environment, access_log)
    found = nearest_targets(
        [task.id for task in made],
        embed([text_of(task) for task in made]),
        [item.task.id for item in items],
        embed([text_of(item.task) for item in items]),
    )
    return found, len(items)


def _show(title: str, table: Table, note: str | None = None) -> None:
    """Print a table that has a row, with a note below."""
    from rich.console import Console
    from rich.table import Table as Printed

    head, rows = table
    shown, console = Printed(title=title), Console()
    for place, column in enumerate(head):
        shown.add_column(column, justify="left" if place == 0 or not column else "right", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    if rows:
        console.print(shown)
    if note is not None:
        console.print(note, highlight=False)


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
