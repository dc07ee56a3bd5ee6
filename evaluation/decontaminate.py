"""`python -m evaluation.decontaminate`: find the tasks of a run or a file that equal or nearly equal held-out ones."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from environments.base import EnvironmentFault, InputError, Record
from environments.command import OneSentence, exit_statuses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from environments.base import Environment
    from environments.verification.decontamination import HeldOut
    from memory.records import Task

FOUND = 1
"""Exit status for a run or file with a task of a held-out set, or one nearly equal to it."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Finding(Record):
    """The comparison of one task with the held-out sets.

    ``why`` is empty for a task that equals no held-out one. ``text`` and ``calls`` are the overlaps with the nearest
    held-out tasks (``environments.verification.decontamination.Nearest``), None where nothing is recorded by content.
    """

    task: str
    why: str
    text: float | None = None
    text_task: str = ""
    calls: float | None = None
    calls_task: str = ""

    def near(self, threshold: float) -> bool:
        """Return whether both overlaps reach ``threshold``."""
        return self.text is not None and self.calls is not None and min(self.text, self.calls) >= threshold


class Audit(Record):
    """The findings of a run or a file: ``equal`` and ``near`` are exclusive."""

    path: str
    tasks: int
    equal: tuple[Finding, ...]
    near: tuple[Finding, ...]
    median_text: float | None
    median_calls: float | None


@app.command(cls=OneSentence)
def main(
    path: Annotated[Path, typer.Argument(help="a run's folder, or a file of tasks with a run's keys")],
    environment: Annotated[
        str | None, typer.Option(help="module:callable, for a file of tasks of an environment of your own")
    ] = None,
    near: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="overlap of text and of calls that is reported as nearly equal")
    ] = 0.95,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object on stdout")] = False,
) -> None:
    """Hold every task of a run or a file against the held-out sets.

    Equal is what verification refuses: start state, calls or text of a held-out task, whatever the record looks like.

    Exit status: 0 clean, 1 found something, 2 for a user's mistake.
    """
    with exit_statuses():
        opened, tasks, sets = _open(path, environment)
        findings = [examine(opened, task, sets) for task in tasks]
        report = audit(path, findings, near)
    if as_json:
        print(json.dumps(report.model_dump(mode="json")))
    else:
        _print(report, near)
    if report.equal or report.near:
        raise typer.Exit(FOUND)


def examine(environment: Environment, task: Task, sets: HeldOut) -> Finding:
    """Compare one task with the held-out sets. Raises InputError naming a task that cannot be compared."""
    from environments.verification.canonical import canonical

    try:
        why = sets.match(task, canonical(environment, task))
        nearest = sets.nearest(environment, task)
    except (InputError, EnvironmentFault, RecursionError) as error:
        reason = "its state contains itself" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"task {task.id} cannot be compared ({reason}): correct or remove it") from error
    return Finding(task=task.id, why=why or "", **(nearest.model_dump() if nearest else {}))


def audit(path: Path, findings: Sequence[Finding], near: float) -> Audit:
    """Return the report on ``findings``; a task is nearly equal if text and calls reach ``near``."""
    texts = [one.text for one in findings if one.text is not None]
    calls = [one.calls for one in findings if one.calls is not None]
    return Audit(
        path=str(path),
        tasks=len(findings),
        equal=tuple(one for one in findings if one.why),
        near=tuple(one for one in findings if not one.why and one.near(near)),
        median_text=median(texts) if texts else None,
        median_calls=median(calls) if calls else None,
    )


def _open(path: Path, environment: str | None) -> tuple[Environment, Sequence[Task], HeldOut]:
    from environments.registry import benchmark_of, open_environment
    from environments.settings import EnvironmentSettings
    from environments.verification.fingerprints import fingerprint
    from environments.verification.held_out_records import record_of
    from memory.records import Task
    from memory.run import RunDirectory, read_jsonl
    from memory.tasks import load_tasks

    if not path.is_dir():
        tasks = _read(path)
        opened = _named(path, tasks, environment)
        return opened, tasks, benchmark_of(opened).held_out()
    if environment is not None:
        raise InputError(f"--environment is for a file of tasks, {path} is a run and names its own: leave it out")
    run = RunDirectory.open(path)
    opened = open_environment(run.section("environment", EnvironmentSettings))
    sets = benchmark_of(opened).held_out()
    own = run.section("evaluation", dict).get("tasks")
    if own is not None:
        held = read_jsonl(Path(own), Task)
        sets = sets.joined(map(fingerprint, held), record_of(opened, [(task.id, task) for task in held]))
    return opened, load_tasks(run), sets


def _read(path: Path) -> list[Task]:
    """Read the tasks of a file. Raises InputError naming the first line that is not one."""
    from memory.tasks import read_given

    if not path.is_file():
        raise InputError(f"{path} is neither a run nor a file of tasks: name one")
    tasks = []
    for number, task in read_given(path):
        if isinstance(task, str):
            raise InputError(f"{path}, line {number}: {task}")
        tasks.append(task)
    return tasks


def _named(path: Path, tasks: Sequence[Task], environment: str | None) -> Environment:
    """Return the environment that the tasks of a file are of."""
    from environments.registry import open_named, packaged

    names = sorted({task.environment for task in tasks})
    if len(names) != 1:
        what = f"has tasks of the environments {', '.join(names)}: give a file for each" if names else "has no task"
        raise InputError(f"{path} {what}")
    if environment is None and packaged(names[0]) is None:
        raise InputError(f"{path} has tasks of the environment {names[0]!r}: add --environment module:callable")
    # Canonical forms of environments whose actions are code are made without playing, so no agent's code runs here.
    opened = open_named(environment or names[0], trust_agent_code=True)
    if opened.name != names[0]:
        raise InputError(f"--environment {environment} is {opened.name!r}, the tasks of {path} are of {names[0]!r}")
    return opened


def _print(report: Audit, near: float) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if report.equal or report.near:
        table = Table(title=f"{report.path}: tasks of held-out sets")
        for column in ("task", "why", "text", "calls", "nearest"):
            table.add_column(column, justify="right" if column in ("text", "calls") else "left", overflow="fold")
        for one in (*report.equal, *report.near):
            why = one.why or "Its text and its calls are nearly those of a held-out task."
            nearest = one.text_task if one.text_task == one.calls_task else f"{one.text_task}, {one.calls_task}"
            table.add_row(one.task, why, _share(one.text), _share(one.calls), nearest)
        console.print(table)
    console.print(
        f"{report.tasks} tasks: {len(report.equal)} equal to held-out ones, {len(report.near)} nearly equal (text and "
        f"calls at least {near:.0%}). Median overlap with the nearest held-out task: text {_share(report.median_text)},"
        f" calls {_share(report.median_calls)}.",
        highlight=False,
    )


def _share(value: float | None) -> str:
    return "not recorded" if value is None else f"{value:.0%}"


if __name__ == "__main__":
    app()
