"""Opens what an evaluation scores: evaluation sets of a benchmark, and files of tasks.

Nothing else in the project opens an evaluation set. A held-out one opens as the benchmark says
(``Benchmark.access_to``): for the log of a study, which noted its access before, or with a line in a log that the user
names.
"""

from __future__ import annotations

import json
from pathlib import Path

from environments.base import InputError, Record, TaskSpec
from environments.benchmark import AnyBenchmark, EvaluationTask
from environments.checkout import ROOT
from environments.command import check_output
from environments.registry import DEFAULT, find_benchmark
from environments.turns import agent_calls
from evaluation.test_access import Access, check_opened, current_commit, is_of_study, log_access, now
from memory.jsonl import read_jsonl
from memory.records import Task


class Item(Record):
    """One task to attempt, and the labels its outcome carries; ``reference_calls`` is None where it is unknown.

    ``cluster`` names the start state that it shares with others.
    """

    task: Task
    group: str
    cluster: str
    reference_calls: int | None
    strata: dict[str, str] = {}


def held_out(name: str, benchmark: AnyBenchmark | None = None) -> bool:
    """Return whether an evaluation set is held out. Raises InputError for an unknown name.

    ``benchmark`` is the default one where it is None, here and below.
    """
    known = (benchmark or find_benchmark(DEFAULT)).evaluation_sets
    if name not in known:
        of = (benchmark or find_benchmark(DEFAULT)).name
        raise InputError(f"--evaluation-set {name}: no such set in {of}: choose one of {', '.join(known)}")
    return known[name]


def set_hash(name: str, benchmark: AnyBenchmark | None = None) -> str:
    """Return the hash that names a set's tasks; they stay unseen. Raises InputError like ``open_set``."""
    held_out(name, benchmark)
    return (benchmark or find_benchmark(DEFAULT)).evaluation_set(name).sha256


def open_set(
    name: str,
    limit: int | None = None,
    access_log: Path | None = None,
    *,
    model: str = "",
    benchmark: AnyBenchmark | None = None,
) -> tuple[Item, ...]:
    """Return the tasks of an evaluation set, the first ``limit`` only if given.

    ``access_log`` is the test access log that a held-out set needs; where the benchmark says so, this access by
    ``model`` is logged first. Raises InputError for an unknown set, one whose files do not match their hash, and one
    that is held out and may not be opened.
    """
    benchmark = benchmark or find_benchmark(DEFAULT)
    if held_out(name, benchmark):
        _check_access(name, limit, access_log, model, benchmark)
    return _items(name, benchmark.open_evaluation_set(name, limit))


def _check_access(name: str, limit: int | None, access_log: Path | None, model: str, benchmark: AnyBenchmark) -> None:
    if benchmark.access_to(name) == "study" or (access_log is not None and is_of_study(access_log)):
        check_opened(access_log, name, set_hash(name, benchmark))
        return
    if access_log is None:
        raise InputError(
            f"--evaluation-set {name}: it is held out: add --access-log FILE, to which this access is added"
        )
    described = benchmark.evaluation_set(name)
    check_output("--access-log", access_log, "ledger")
    tasks = described.tasks if limit is None else min(limit, described.tasks)
    panels, commit = {name: described.sha256}, current_commit(ROOT)
    log_access(access_log, Access(date=now(), commit=commit, panels=panels, model=model, tasks=tasks))


def _items(group: str, tasks: tuple[EvaluationTask, ...]) -> tuple[Item, ...]:
    return tuple(
        Item(
            task=Task(id=one.id, origin=one.origin, **dict(one.spec)),
            group=group,
            cluster=one.cluster,
            reference_calls=one.reference_calls,
            strata=one.strata,
        )
        for one in tasks
    )


def open_tasks(path: Path, limit: int | None = None) -> tuple[Item, ...]:
    """Return the tasks of a file in the form of a run's tasks.jsonl, in its order; a group named after the file.

    Raises InputError when the file cannot be read or a line of it is not a task.
    """
    tasks = read_jsonl(path, Task)[:limit]
    first: dict[str, str] = {}
    return tuple(
        Item(
            task=task,
            group=path.name,
            cluster=first.setdefault(json.dumps(task.initial_state, sort_keys=True), task.id),
            reference_calls=agent_calls(task),
            strata={"origin": task.origin},
        )
        for task in tasks
    )


def calls_of(task: TaskSpec) -> int:
    """Count the calls of the task's reference, all turns together."""
    return sum(map(len, task.reference))
