"""Selects and opens what an evaluation attempts: evaluation sets of a benchmark, files of tasks; with their metrics.

Nothing else in the project opens an evaluation set. A held-out one opens as the benchmark says
(``Benchmark.access_to``): for the log of a study, which noted its access before, or with a line in a log that the user
names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from environments.base import Environment, InputError, Record
from environments.benchmark import AnyBenchmark
from environments.checkout import ROOT
from environments.command import check_output
from environments.metrics import OF_ANY_TASKS, Metric
from environments.registry import DEFAULT, belonging, find_benchmark, named_benchmark, named_options
from environments.turns import agent_calls
from evaluation.outcomes import TaskOutcome
from evaluation.settings import CONTROLS, ScoringSettings
from evaluation.test_access import Access, check_opened, current_commit, is_of_study, log_access, now
from memory.jsonl import read_jsonl
from memory.records import Task

COMPACT_NOTE = "argument references: the embedded policy reads values as $k and names them, calls carry full values"


class Item(Record):
    """One task to attempt, and the labels its outcome carries; ``reference_calls`` is None where it is unknown.

    ``cluster`` names the start state that it shares with others.
    """

    task: Task
    group: str
    cluster: str
    reference_calls: int | None
    strata: dict[str, str] = {}


def held_out(name: str, benchmark: AnyBenchmark) -> bool:
    """Return whether an evaluation set is held out. Raises InputError for an unknown name."""
    known = benchmark.evaluation_sets
    if name not in known:
        raise InputError(f"--evaluation-set {name}: no such set in {benchmark.name}: choose one of {', '.join(known)}")
    return known[name]


def set_hash(name: str, benchmark: AnyBenchmark) -> str:
    """Return the hash that names a set's tasks; they stay unseen. Raises InputError like ``open_set``."""
    held_out(name, benchmark)
    return benchmark.evaluation_set(name).sha256


def open_set(
    name: str,
    limit: int | None = None,
    access_log: Path | None = None,
    *,
    model: str = "",
    benchmark: AnyBenchmark | None = None,
) -> tuple[Item, ...]:
    """Return the tasks of an evaluation set of ``benchmark`` (None: the default one), its first ``limit`` if given.

    ``access_log`` is the test access log that a held-out set needs; where the benchmark says so, this access by
    ``model`` is logged first. Raises InputError for an unknown set, one whose files do not match their hash, and one
    that is held out and may not be opened.
    """
    benchmark = benchmark or find_benchmark(DEFAULT)
    if held_out(name, benchmark):
        _check_access(name, limit, access_log, model, benchmark)
    return tuple(
        Item(
            task=Task(id=one.id, origin=one.origin, **dict(one.spec)),
            group=name,
            cluster=one.cluster,
            reference_calls=one.reference_calls,
            strata=one.strata,
        )
        for one in benchmark.open_evaluation_set(name, limit)
    )


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


class Selected(NamedTuple):
    """The items, the environment for so many actions in a turn, the metrics of the items, and their benchmark."""

    items: tuple[Item, ...]
    environment: Callable[[int], Environment]
    metrics: Mapping[str, Metric]
    benchmark: AnyBenchmark


def select(settings: ScoringSettings) -> Selected:
    """Return what the settings name. Raises InputError where they do not fit together."""
    if bool(settings.evaluation_set) == (settings.tasks is not None):
        raise InputError("give either --evaluation-set NAME or --tasks FILE, one of the two")
    benchmark = named_benchmark(settings.environment)
    if settings.evaluation_set and not benchmark.evaluation_sets:
        raise InputError(f"--evaluation-set: {settings.environment} has no evaluation set: give --tasks FILE")
    if len(set(settings.evaluation_set)) > 1 and not benchmark.several_sets:
        raise InputError(
            f"--evaluation-set is given {len(settings.evaluation_set)} times: score one set of {settings.environment} "
            "per command"
        )
    if settings.access_log is not None and not any(held_out(name, benchmark) for name in settings.evaluation_set):
        raise InputError("--access-log is for held-out evaluation sets, and none is named: leave it out")
    items = _selected(settings, benchmark)
    of_set = settings.tasks is None
    metrics = {name: metric for name, metric in benchmark.metrics.items() if of_set or name in OF_ANY_TASKS}
    return Selected(items, partial(_open, settings, benchmark), metrics, benchmark)


def notes_for(
    rendering: str, settings: ScoringSettings, benchmark: AnyBenchmark, outcomes: Sequence[TaskOutcome]
) -> tuple[str, ...]:
    """Return what a reader must know beside the figures."""
    notes = [COMPACT_NOTE] if rendering == "compact" else []
    if settings.tasks is not None:
        notes.append(f"{settings.tasks} is not a held-out evaluation set: the model may have been trained on its tasks")
    if settings.limit is not None:
        notes.append(f"the first {settings.limit} tasks of each group only")
    unevaluated = sum(one.infrastructure_error is not None for one in outcomes)
    if unevaluated:
        notes.append(
            f"{unevaluated} of {len(outcomes)} attempts could not be evaluated and count in no rate: "
            "the lines on stderr have the reasons"
        )
    if settings.evaluation_set:
        notes += benchmark.evaluation_notes(unevaluated)
    return tuple(notes)


def written(outcomes: Sequence[TaskOutcome], benchmark: AnyBenchmark) -> tuple[TaskOutcome, ...]:
    """Return what may be written of outcomes: the benchmark says so of the words of an infrastructure error."""
    return tuple(
        one
        if one.infrastructure_error is None
        else one.model_copy(update={"infrastructure_error": benchmark.published_error(one.infrastructure_error)})
        for one in outcomes
    )


def _selected(settings: ScoringSettings, benchmark: AnyBenchmark) -> tuple[Item, ...]:
    if settings.tasks is not None:
        return open_tasks(settings.tasks, settings.limit)
    models = ", ".join(settings.models)
    if any(held_out(name, benchmark) for name in settings.evaluation_set):  # the access is logged after these checks
        if settings.served is not None:
            settings.endpoint()
        else:
            from training.rollout.policy import check_policy_path

            for model in set(settings.models) - set(CONTROLS):
                check_policy_path(model)
    return tuple(
        item
        for name in dict.fromkeys(settings.evaluation_set)
        for item in open_set(name, settings.limit, settings.access_log, model=models, benchmark=benchmark)
    )


def _open(settings: ScoringSettings, benchmark: AnyBenchmark, actions: int) -> Environment:
    options = named_options(benchmark, settings.options, actions)
    scored = settings.evaluation_set[0] if settings.evaluation_set else None
    return belonging(settings.environment, benchmark, lambda: benchmark.evaluation_environment(options, scored))
