"""Selects what an evaluation attempts: the items, the environment, and the metrics beside success."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from environments.base import InputError
from environments.benchmark import AnyBenchmark
from environments.metrics import OF_ANY_TASKS, Metric
from environments.registry import belonging, named_benchmark, named_options
from evaluation.outcomes import TaskOutcome
from evaluation.sets import Item, held_out, open_set, open_tasks
from evaluation.settings import CONTROLS

if TYPE_CHECKING:
    from environments.base import Environment
    from evaluation.settings import ScoringSettings

COMPACT_NOTE = "argument references: the embedded policy reads values as $k and names them, calls carry full values"


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
    items = _items(settings, benchmark)
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


def _items(settings: ScoringSettings, benchmark: AnyBenchmark) -> tuple[Item, ...]:
    if settings.tasks is not None:
        return open_tasks(settings.tasks, settings.limit)
    if any(held_out(name, benchmark) for name in settings.evaluation_set):
        _check_models(settings)  # before the access is logged
    models = ", ".join(settings.models)
    return tuple(
        item
        for name in dict.fromkeys(settings.evaluation_set)
        for item in open_set(name, settings.limit, settings.access_log, model=models, benchmark=benchmark)
    )


def _check_models(settings: ScoringSettings) -> None:
    if settings.served is not None:
        settings.endpoint()
        return
    from training.rollout.policy_path import check_policy_path

    for model in settings.models:
        if model not in CONTROLS:
            check_policy_path(model)


def _open(settings: ScoringSettings, benchmark: AnyBenchmark, actions: int) -> Environment:
    options = named_options(benchmark, settings.options, actions)
    scored = settings.evaluation_set[0] if settings.evaluation_set else None
    return belonging(settings.environment, benchmark, lambda: benchmark.evaluation_environment(options, scored))
