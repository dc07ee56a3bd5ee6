"""`python -m evaluation.analyses`: the tables and figures of CoEvolve that are computed from tasks and outcomes.

Each prints a table. What the papers show of a run's course (success, signals, cost) is in the report of a study.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from environments.base import InputError
from environments.command import OneSentence, OneSentenceGroup, check_output, exit_statuses, print_table
from environments.metrics import OF_ANY_TASKS
from environments.registry import DEFAULT, named_benchmark
from evaluation.outcomes import PairedChange, TaskOutcome, paired_change
from evaluation.similarity import (
    EMBEDDER,
    Lengths,
    Table,
    diversity_table,
    embed,
    lengths_table,
    near_table,
    nearest_targets,
    similarity_subsets,
    similarity_table,
    text_of,
)
from memory.jsonl import read_jsonl
from memory.processes import run_to_end
from memory.records import Task
from memory.run import RunDirectory, write_jsonl
from memory.tasks import load_tasks, read_given

if TYPE_CHECKING:
    from evaluation.sets import Item

NEAR = 0.9
"""Cosine from which a task and an evaluation task are named (ours)."""

CELLS = {
    "both right": (True, True),
    "only first": (True, False),
    "only second": (False, True),
    "neither right": (False, False),
}

app = typer.Typer(
    cls=OneSentenceGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Make the papers' tables and figures from the tasks of runs and the outcomes of evaluations.",
)

Tasks = Annotated[Path, typer.Argument(help="a run's folder, or a file of tasks with a run's keys")]
_EVALUATION_SET = typer.Option("--evaluation-set", help="compare with this development set, or with a file of tasks")
EvaluationSet = Annotated[str | None, _EVALUATION_SET]
EnvironmentName = Annotated[str, typer.Option("--environment", help="the benchmark of the evaluation set")]


@app.command(cls=OneSentence)
def agreement(
    first: Annotated[Path, typer.Argument(help="outcomes: coevolve evaluate --output")],
    second: Annotated[Path, typer.Argument(help="outcomes of the same tasks by another policy")],
) -> None:
    """CoEvolve, table 8: tasks that both, one and none of two policies solved, and their paired difference."""
    with exit_statuses():
        found = agreements(read_jsonl(first, TaskOutcome), read_jsonl(second, TaskOutcome))
        note = "95 %: for other start states and functions; McNemar: exact, tasks taken for independent"
        print_table("agreement of two evaluations (CoEvolve, table 8)", *agreement_table(found), note)


class Agreement(NamedTuple):
    """Two evaluations of one group of tasks.

    ``cells`` counts tasks that both were evaluated on by who solved them, ``change`` is the success of both.
    ``unpaired``: tasks of one file alone. ``unjudged``: pairs of which an infrastructure error ended an attempt.
    ``metrics``: those of calls and checks, where both files have them.
    """

    group: str
    cells: Mapping[str, int]
    change: PairedChange
    unpaired: int
    unjudged: int
    metrics: Mapping[str, PairedChange]


def agreements(first: Sequence[TaskOutcome], second: Sequence[TaskOutcome]) -> tuple[Agreement, ...]:
    """Return a table for each group that both files have, in the first's order.

    Raises InputError without such a group, for a task that occurs twice in it, and without a pair that was evaluated.
    """
    groups = [name for name in dict.fromkeys(one.group for one in first) if name in {one.group for one in second}]
    if not groups:
        raise InputError("the two files have no evaluation set in common: name two evaluations of the same tasks")
    sides = ([[one for one in some if one.group == name] for some in (first, second)] for name in groups)
    return tuple(_agreement(name, *some) for name, some in zip(groups, sides, strict=True))


def _agreement(group: str, first: Sequence[TaskOutcome], second: Sequence[TaskOutcome]) -> Agreement:
    for which, some in (("first", first), ("second", second)):
        counted = Counter(one.task_id for one in some)
        if twice := [name for name, count in counted.items() if count > 1]:
            raise InputError(f"the {which} file has task {twice[0]} of {group} twice: name one evaluation")
    others = {one.task_id: one for one in second}
    both = [(one, others[one.task_id]) for one in first if one.task_id in others]
    change = paired_change(first, second)
    if change is None:
        raise InputError(f"{group}: no task was evaluated in both files: name two evaluations of the same tasks")
    solved = [(a.success, b.success) for a, b in both if a.infrastructure_error is b.infrastructure_error is None]
    metrics = {name: paired_change(first, second, metric) for name, metric in OF_ANY_TASKS.items()}
    return Agreement(
        group=group,
        cells={name: solved.count(pair) for name, pair in CELLS.items()},
        change=change,
        unpaired=len(first) + len(second) - 2 * len(both),
        unjudged=len(both) - change.tasks,
        metrics={name: one for name, one in metrics.items() if one is not None},
    )


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided exact p of McNemar's test: of the tasks that one solved alone, half are each one's.

    It takes tasks for independent, so that it errs on the small side where they share a start state.
    """
    n = only_first + only_second
    tail = sum(comb(n, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, float(2 * tail / 2**n))


def agreement_table(found: Sequence[Agreement]) -> Table:
    """Return a table with a column for each group of tasks."""
    rows = [
        (name, *(f"{one.cells[name] / one.change.tasks:.2%} ({one.cells[name]})" for one in found)) for name in CELLS
    ]
    rows.append(("first", *(f"{one.change.before:.2%}" for one in found)))
    rows.append(("second", *(f"{one.change.after:.2%}" for one in found)))
    rows.append(("second - first", *(one.change.words() for one in found)))
    for metric in dict.fromkeys(name for one in found for name in one.metrics):
        pairs = [one.metrics.get(metric) for one in found]
        rows.append((metric, *("" if one is None else f"{one.before:.3f}, {one.after:.3f}" for one in pairs)))
        rows.append((f"{metric}, second - first", *("" if one is None else one.words() for one in pairs)))
    p_values = (mcnemar(one.cells["only first"], one.cells["only second"]) for one in found)
    rows.append(("McNemar", *(f"p = {p:.3g}" for p in p_values)))
    rows.append(("pairs", *(str(one.change.tasks) for one in found)))
    rows.append(("left out", *(f"{one.unpaired} unpaired, {one.unjudged} not evaluated" for one in found)))
    return ("", *(one.group for one in found)), rows


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
        from evaluation.power import simulated_difference

        name, _, value = (stratum or "").partition("=")
        read = [read_jsonl(path, TaskOutcome) for path in outcomes]
        arm = [[one for one in some if stratum is None or one.strata.get(name) == value] for some in read]
        typer.echo(simulated_difference([arm], seeds=seeds, clusters=clusters, tests=hypotheses).sentence)


@app.command(cls=OneSentence)
def similarity(
    tasks: Tasks,
    evaluation_set: Annotated[str, _EVALUATION_SET],
    environment: EnvironmentName = DEFAULT,
    subsets: Annotated[
        Path | None, typer.Option(help="new folder for low, medium, high and mixed.jsonl, for tasks.initial (table 13)")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the subsets' draws")] = 0,
) -> None:
    """CoEvolve, figure 5: the largest cosine of each training task to an evaluation task. It is a leak report too."""
    with exit_statuses():
        if subsets is not None:
            check_output("--subsets", subsets, "folder")
        made, targets = _read_tasks(tasks), [item.task for item in _open_targets(evaluation_set, environment)]
        vectors, aims = (embed([text_of(one) for one in some]) for some in (made, targets))
        nearest = nearest_targets([one.id for one in made], vectors, [one.id for one in targets], aims)
        cosines = [one.cosine for one in nearest]
        figures = f"mean {fmean(cosines):.3f}, median {median(cosines):.3f}, largest {max(cosines):.3f}"
        print_table("largest cosine to an evaluation task (CoEvolve, figure 5)", *similarity_table(nearest))
        print(f"{len(nearest)} tasks against {len(targets)}, {EMBEDDER}: {figures}")
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
        admitted: dict[int, list[str]] = {}
        for task in _read_tasks(run):
            if task.admitted_at is not None:
                admitted.setdefault(task.admitted_at, []).append(text_of(task))
        items = () if evaluation_set is None else _open_targets(evaluation_set, environment)
        table = diversity_table(admitted, [text_of(item.task) for item in items], neighbours)
        print_table(f"diversity of admitted tasks, SR@{neighbours} and ED_rel in % (CoEvolve, table 15)", *table)
        aims = f"{len(items)} target tasks" if items else "no target tasks, so no ED_rel"
        print(f"{EMBEDDER}; {aims}; SR@{neighbours} needs more than {neighbours} tasks")


@app.command(cls=OneSentence)
def lengths(tasks: Tasks, evaluation_set: EvaluationSet = None, environment: EnvironmentName = DEFAULT) -> None:
    """CoEvolve, figures 6 and 7: user turns and calls of synthetic tasks by origin, and of original ones if named."""
    with exit_statuses():
        found: list[Lengths] = []
        if evaluation_set is not None:
            items = _open_targets(evaluation_set, environment)
            turns = [len(item.task.turns) for item in items]
            found.append(("original", turns, [item.reference_calls for item in items]))
        made = _read_tasks(tasks)
        for origin in dict.fromkeys(task.origin for task in made):
            own = [task for task in made if task.origin == origin]
            found.append((origin, [len(task.turns) for task in own], [sum(map(len, task.reference)) for task in own]))
        print_table("lengths of tasks (CoEvolve, figures 6 and 7)", *lengths_table(found))


def _read_tasks(path: Path) -> tuple[Task, ...]:
    """Return the tasks of a run, or of a file in the form of its task set. Raises InputError where there is none."""
    if path.is_dir():
        tasks = load_tasks(RunDirectory.open(path))
    elif not path.is_file():
        raise InputError(f"{path} is neither a run nor a file of tasks: name one")
    else:
        given = read_given(path)
        if wrong := [f"{path}, line {number}: {task}" for number, task in given if not isinstance(task, Task)]:
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
    from evaluation.sets import held_out, open_set, open_tasks

    file, benchmark = Path(evaluation_set), named_benchmark(environment)
    if not file.is_file() and held_out(evaluation_set, benchmark):
        raise InputError(f"--evaluation-set {evaluation_set} is held out: name a development set, or a file of tasks")
    items = open_tasks(file) if file.is_file() else open_set(evaluation_set, benchmark=benchmark)
    if not items:
        raise InputError(f"--evaluation-set {evaluation_set} holds no task: name another one")
    return items


if __name__ == "__main__":
    run_to_end(app)
