"""Checks, before a run writes or pays anything, that its evaluation tasks can be scored."""

from __future__ import annotations

from pathlib import Path

from environments.base import Environment, InputError
from environments.benchmark import AnyBenchmark
from environments.registry import benchmark_of
from evaluation.settings import EvaluationSettings


def check_evaluation(settings: EvaluationSettings, environment: Environment | None) -> None:
    """Raise InputError for an evaluation set that ``environment`` does not have, that is not installed or that a run
    may not open, and for a file of tasks that cannot be read, is empty or is of another environment. No set is opened.

    Without an environment a file of tasks is read, and a set is not checked.
    """
    if settings.tasks is not None:
        _check_tasks(settings.tasks, None if environment is None else environment.name)
    elif settings.set is not None and environment is not None:
        _check_set(settings.set, environment.name, benchmark_of(environment))


def _check_tasks(path: str, environment: str | None) -> None:
    from evaluation.sets import open_tasks

    items = open_tasks(Path(path))
    if not items:
        raise InputError(f"evaluation.tasks: {path} holds no task: name another file, or set it to null")
    for item in items:
        if environment is not None and item.task.environment != environment:
            raise InputError(
                f"evaluation.tasks: task {item.task.id} of {path} is of {item.task.environment}, the run acts in "
                f"{environment}: name a file of its tasks"
            )


def _check_set(name: str, environment: str, benchmark: AnyBenchmark) -> None:
    known = benchmark.evaluation_sets
    if name not in known:
        instead = f"choose one of {', '.join(known)}" if known else "set it to null"
        raise InputError(f"evaluation.set: no evaluation set is called {name!r} in {environment}: {instead}")
    if known[name]:
        raise InputError(
            f"evaluation.set: {name} is held out, and a run would score on it again and again: choose a development "
            "set, or null"
        )
    try:
        benchmark.evaluation_set(name)
    except InputError as missing:
        raise InputError(f"evaluation.set: {str(missing).removeprefix(f'--evaluation-set {name}: ')}") from None
