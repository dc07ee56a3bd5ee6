"""Finds the tasks of a run or a file that equal held-out ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from environments.base import Environment, EnvironmentFault, InputError
from environments.registry import benchmark_of, open_environment, open_named, packaged
from environments.settings import EnvironmentSettings
from environments.verification.canonical import canonical
from environments.verification.decontamination import HeldOut
from environments.verification.fingerprints import fingerprint, record_of
from evaluation.analyses import Table
from memory.jsonl import read_jsonl
from memory.records import Task
from memory.run import RunDirectory


class Finding(NamedTuple):
    """The comparison of one task with the held-out sets; ``why`` is empty for one that equals no held-out one."""

    task: str
    why: str


def examine(environment: Environment, task: Task, sets: HeldOut) -> Finding:
    """Compare one task with the held-out sets. Raises InputError naming a task that cannot be compared."""
    try:
        why = sets.match(task, canonical(environment, task))
    except (InputError, EnvironmentFault, RecursionError) as error:
        reason = "its state contains itself" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"task {task.id} cannot be compared ({reason}): correct or remove it") from error
    return Finding(task=task.id, why=why or "")


def compared_with(path: Path, tasks: Sequence[Task], environment: str | None) -> tuple[Environment, HeldOut]:
    """Return the environment that the tasks of a run or a file are of, and the sets that they must not hold.

    Raises InputError where ``environment`` is missing or does not fit.
    """
    if not path.is_dir():
        opened = _named(path, tasks, environment)
        return opened, benchmark_of(opened).held_out()
    if environment is not None:
        raise InputError(f"--environment is for a file of tasks, {path} is a run and names its own: leave it out")
    run = RunDirectory.open(path)
    opened = open_environment(run.section("environment", EnvironmentSettings))
    sets = benchmark_of(opened).held_out()
    own = run.section("evaluation", dict).get("tasks")
    if own is not None:
        held = read_jsonl(Path(own), Task)
        sets = sets.joined(map(fingerprint, held), record_of(opened, [(task.id, task) for task in held]))
    return opened, sets


def _named(path: Path, tasks: Sequence[Task], environment: str | None) -> Environment:
    """Return the environment that the tasks of a file are of."""
    names = sorted({task.environment for task in tasks})
    if len(names) != 1:
        raise InputError(f"{path} has tasks of the environments {', '.join(names)}: give a file for each")
    if environment is None and packaged(names[0]) is None:
        raise InputError(f"{path} has tasks of the environment {names[0]!r}: add --environment module:callable")
    # Canonical forms of environments whose actions are code are made without playing, so no agent's code runs here.
    opened = open_named(environment or names[0], trust_agent_code=True)
    if opened.name != names[0]:
        raise InputError(f"--environment {environment} is {opened.name!r}, the tasks of {path} are of {names[0]!r}")
    return opened


def audit_table(findings: Sequence[Finding]) -> Table:
    """Return a row for each task that equals a held-out one."""
    return ("task", "why"), [(one.task, one.why) for one in findings if one.why]


def audit_note(findings: Sequence[Finding]) -> str:
    """Return the counts."""
    return f"{len(findings)} tasks: {sum(bool(one.why) for one in findings)} equal to held-out ones."
