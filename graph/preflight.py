"""Checks everything that a run will need, before anything is written or paid.

That is the environment, evaluation set, keys of the roles, files and policy of a recipe, without loading weights and
within a second or two. A run that passes can still fail later, on another machine or another day.
"""

from __future__ import annotations

from pathlib import Path

from agents.chat.endpoint import resolve
from environments.base import InputError
from environments.declared import look
from environments.registry import benchmark_of, open_environment
from evaluation.settings import check_evaluation
from graph.settings import RunSettings, check_benchmark, check_starts
from graph.tracking.trackers import check_trackers
from memory.settings import OFFICIAL


def check_run(settings: RunSettings, *, trains: bool = True, opens_own: bool = True) -> None:
    """Raise InputError that names the first key for which a run with ``settings`` would fail.

    ``trains`` is False where no policy is needed, to make D_0 alone. ``opens_own`` is False where no code that the
    settings name may run: an environment of the user's is then looked at, and what needs it open is not checked.
    """
    environment = None
    if opens_own or not settings.environment.is_own:
        environment = open_environment(settings.environment)
        check_benchmark(settings, f"environment {settings.environment.name}", benchmark_of(environment))
    else:
        look(settings.environment.name)
    for name, role in settings.roles.by_chat().items():
        resolve(role, name)
    _check_tasks(settings.tasks.initial)
    check_evaluation(settings.evaluation, environment)
    if trains:
        from graph.fit import check_memory
        from training.preflight import check_policy
        from training.rollout.engines import check_engine

        if environment is not None:
            check_starts(settings.signals, environment)
        check_policy(settings.policy, settings.training, settings.sampling, settings.evaluation.max_tokens)
        check_engine(settings.sampling, settings.policy, settings.training)
        check_memory(settings)
        check_trackers(settings.training.report_to)


def _check_tasks(initial: str | None) -> None:
    if initial in (None, OFFICIAL) or Path(initial).is_file():
        return
    raise InputError(f"tasks.initial: {initial} cannot be read, it does not exist: name a file of tasks")
