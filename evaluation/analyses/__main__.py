"""`python -m evaluation.analyses`: the tables and figures of the papers that are computed from records.

No command loads a model, unless an encoder of texts is named. Each prints a table, or one JSON object with ``--json``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from environments.base import InputError, Record
from environments.command import OneSentence, OneSentenceGroup, check_output, exit_statuses
from environments.registry import DEFAULT
from evaluation.analyses.recorded import (
    TargetChoice,
    one_line,
    open_targets,
    read_attempts,
    read_iterations,
    read_tasks,
)

if TYPE_CHECKING:
    from rich.table import Table

    from evaluation.analyses.similarity import NearestTarget
    from memory.records import Task

app = typer.Typer(
    cls=OneSentenceGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Make the papers' tables and figures from the records of runs, studies and evaluations.",
)

Runs = Annotated[list[Path], typer.Argument(help="folders of runs, or a study's results raw/ARM-SEED.jsonl.gz")]
Tasks = Annotated[Path, typer.Argument(help="a run's folder, or a file of tasks with a run's keys")]
Origin = Annotated[str | None, typer.Option(help="take the tasks of one origin alone: seed, evolved, given, official")]
Encoder = Annotated[
    Path | None,
    typer.Option("--embedder", help="folder of a sentence-transformers model; hashed n-grams if not given"),
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object on stdout")]


class RunsReport(Record):
    """The results of a command, by the path that it was given."""

    runs: dict[str, Any]


def target_choice(
    environment: Annotated[str, typer.Option(help="the benchmark of the evaluation set or category")] = DEFAULT,
    evaluation_set: Annotated[
        list[str] | None, typer.Option("--evaluation-set", help="compare with this set, may be repeated")
    ] = None,
    category: Annotated[
        str | None, typer.Option(help="compare with the benchmark's official tasks of a category, or all")
    ] = None,
    split: Annotated[str, typer.Option(help="with --category: its tasks of one split only")] = "all",
    targets: Annotated[Path | None, typer.Option("--targets", help="compare with a file of tasks")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="compare with the first N tasks of each set only")] = None,
    access_log: Annotated[
        Path | None, typer.Option(help="test access log, for held-out sets: as for coevolve evaluate --access-log")
    ] = None,
) -> TargetChoice:
    """Return what these options name."""
    return TargetChoice(
        environment=environment,
        evaluation_set=tuple(evaluation_set or ()),
        category=category,
        split=split,
        tasks=targets,
        limit=limit,
        access_log=access_log,
    )


def with_targets(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the options of ``target_choice`` in place of its argument ``choice``."""
    own = dict(inspect.signature(command, eval_str=True).parameters)
    del own["choice"]
    shared = inspect.signature(target_choice, eval_str=True).parameters

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> None:  # noqa: ANN401 - as typer parsed them
        command(**{name: arguments[name] for name in own}, choice=target_choice(**{n: arguments[n] for n in shared}))

    wrapped.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own.values(), *shared.values())]
    )
    return wrapped


@app.command(cls=OneSentence)
def cost(
    runs: Runs,
    against: Annotated[
        Path | None, typer.Option(help="measure the gain against this run's last score, not the initial policy's")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """CoEvolve, table 7: share of feedback, seconds of an evolution and of the run, gain."""
    with exit_statuses():
        from evaluation.analyses.cost import cost_table, feedback_cost, last_score

        reference = None
        if against is not None:
            reference = last_score(read_iterations(against))
            if reference is None:
                raise InputError(f"--against {against} scored nothing: leave it out, or name a run that did")
        found = [(str(path), feedback_cost(read_iterations(path), reference)) for path in runs]
        if not as_json and any(one.without_seconds for _, one in found):
            typer.echo(
                "warning: some iterations have no time of their feedback, see without_seconds of --json", err=True
            )
        _show(RunsReport(runs=dict(found)), as_json, cost_table([(_short(name, runs), one) for name, one in found]))


@app.command(cls=OneSentence)
def agreement(
    first: Annotated[Path, typer.Argument(help="outcomes: coevolve evaluate --output, or raw/ARM-SEED.jsonl.gz")],
    second: Annotated[Path, typer.Argument(help="outcomes of the same tasks by another policy")],
    as_json: AsJson = False,
) -> None:
    """CoEvolve, table 8: tasks that both, one and none of two policies solved, and their paired difference."""
    with exit_statuses():
        from evaluation.analyses.agreement import agreement_table, agreements

        found = agreements(read_attempts(first), read_attempts(second))
        _show(RunsReport(runs={one.group: one for one in found}), as_json, agreement_table(found))


@app.command(cls=OneSentence)
@with_targets
def similarity(
    tasks: Tasks,
    choice: TargetChoice,
    origin: Origin = None,
    embedder: Encoder = None,
    above: Annotated[
        float, typer.Option(min=-1.0, max=1.0, help="name the pairs with a cosine of at least this (ours)")
    ] = 0.9,
    width: Annotated[float, typer.Option(min=0.001, max=2.0, help="width of a bin (ours)")] = 0.05,
    rows: Annotated[int, typer.Option(min=0, help="print so many of the pairs; --json has all")] = 20,
    as_json: AsJson = False,
) -> None:
    """CoEvolve, figure 5: the largest cosine of each training task to an evaluation task. It is a leak report too."""
    with exit_statuses():
        from evaluation.analyses.similarity import pairs_table, similarity_report, similarity_table

        label, nearest, count = _nearest(read_tasks(tasks, origin), choice, embedder)
        report = similarity_report(nearest, count, label, width=width, threshold=above)
        shown = [similarity_table(report), *([pairs_table(report, rows)] if report.above and rows else [])]
        _show(report, as_json, *shown)


@app.command(cls=OneSentence)
@with_targets
def subsets(
    tasks: Tasks,
    output: Annotated[Path, typer.Argument(help="new folder for low, medium, high and mixed.jsonl")],
    choice: TargetChoice,
    size: Annotated[
        int | None, typer.Option(min=1, help="tasks of each subset; a third of all if not given (ours)")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the draws")] = 0,
    origin: Origin = None,
    embedder: Encoder = None,
    as_json: AsJson = False,
) -> None:
    """CoEvolve, table 13: training sets of low, medium, high and mixed similarity, of equal size, for tasks.initial.

    Choose by similarity to a development set: training tasks that were chosen by a test set have seen it.
    """
    with exit_statuses():
        from evaluation.analyses.similarity import similarity_subsets
        from memory.run import write_jsonl

        check_output("OUTPUT", output, "folder")
        found = read_tasks(tasks, origin)
        _, nearest, _ = _nearest(found, choice, embedder)
        chosen = similarity_subsets(nearest, size, seed)
        by_id = {task.id: task for task in found}
        for one in chosen:
            write_jsonl(output / f"{one.level}.jsonl", [by_id[name] for name in one.tasks])
        from rich.table import Table

        table = Table(title="subsets by similarity (CoEvolve, table 13)")
        for column in ("subset", "tasks", "mean cosine", "file"):
            table.add_column(column, overflow="fold")
        for one in chosen:
            table.add_row(one.level, str(len(one.tasks)), f"{one.mean:.4f}", str(output / f"{one.level}.jsonl"))
        _show(RunsReport(runs={one.level: one for one in chosen}), as_json, table)


@app.command(cls=OneSentence)
@with_targets
def diversity(
    run: Annotated[Path, typer.Argument(help="a run's folder")],
    choice: TargetChoice,
    neighbours: Annotated[int, typer.Option(min=1, help="k of SR@k (ours; the paper has no value)")] = 5,
    embedder: Encoder = None,
    as_json: AsJson = False,
) -> None:
    """CoEvolve, table 15: SR@k of the tasks that each evolution admitted, and ED_rel from the target tasks if named."""
    with exit_statuses():
        from evaluation.analyses.diversity import diversity_report, diversity_table
        from evaluation.analyses.texts import open_text_embedder, text_of

        if not run.is_dir():
            raise InputError(f"{run} is not a folder: name a run, whose task set says what each evolution admitted")
        made = read_tasks(run)
        evolutions = [
            (one.iteration, one.step, [text_of(task) for task in made if task.admitted_at == one.iteration])
            for one in read_iterations(run)
        ]
        aims = [text_of(item.task) for item in open_targets(choice)] if choice.given else []
        encoder = open_text_embedder(embedder)
        report = diversity_report(evolutions, aims, encoder.label, encoder.embed, neighbours)
        _show(report, as_json, diversity_table(report))


@app.command(cls=OneSentence)
@with_targets
def lengths(tasks: Tasks, choice: TargetChoice, as_json: AsJson = False) -> None:
    """CoEvolve, figures 6 and 7: user turns and calls of synthetic tasks by origin, and of original ones if named."""
    with exit_statuses():
        from evaluation.analyses.lengths import lengths_table, task_lengths
        from evaluation.sets import calls_of

        made = read_tasks(tasks)
        found = [
            task_lengths(
                origin,
                [len(task.turns) for task in made if task.origin == origin],
                [calls_of(task) for task in made if task.origin == origin],
            )
            for origin in dict.fromkeys(task.origin for task in made)
        ]
        if choice.given:
            items = open_targets(choice)
            counts = [item.reference_calls for item in items]
            found.insert(0, task_lengths("original", [len(item.task.turns) for item in items], counts))
        _show(RunsReport(runs={one.name: one for one in found}), as_json, lengths_table(found))


@app.command(cls=OneSentence)
def curves(runs: Runs, as_json: AsJson = False) -> None:
    """CoEvolve, figures 3a, 3b, 3d and 4: success, signals by kind and tasks per signal at each evolution."""
    with exit_statuses():
        from evaluation.analyses.curves import curve_table, run_curve

        found = {str(path): run_curve(read_iterations(path)) for path in runs}
        _show(
            RunsReport(runs=found), as_json, *(curve_table(_short(name, runs), curve) for name, curve in found.items())
        )


def _short(name: str, among: Sequence[Path]) -> str:
    """Return the last part of a path where it is different from the others'."""
    last = Path(name).name
    return last if [path.name for path in among].count(last) == 1 else name


def _nearest(
    made: Sequence[Task], choice: TargetChoice, embedder: Path | None
) -> tuple[str, tuple[NearestTarget, ...], int]:
    """Return the embedder's label, the nearest target of each task, and the number of targets."""
    from evaluation.analyses.similarity import nearest_targets
    from evaluation.analyses.texts import open_text_embedder, text_of

    encoder = open_text_embedder(embedder)  # before an access is logged
    items = open_targets(choice)
    found = nearest_targets(
        [task.id for task in made],
        encoder.embed([text_of(task) for task in made]),
        [item.task.id for item in items],
        encoder.embed([text_of(item.task) for item in items]),
    )
    return encoder.label, found, len(items)


def _show(report: Record, as_json: bool, *tables: Table) -> None:
    if as_json:
        print(one_line(report))
        return
    from rich.console import Console

    console = Console()
    for table in tables:
        console.print(table)


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
