"""Selects what an evaluation attempts: the items, the environment, and the metrics beside success."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import JsonValue

from environments.base import InputError, Record
from environments.benchmark import AnyBenchmark
from environments.metrics import Metric
from environments.registry import belonging, named_benchmark, named_options
from evaluation.baselines import BASELINES
from evaluation.outcomes import TaskOutcome
from evaluation.panels import ALL, Item, held_out, open_category, open_panel, open_tasks

if TYPE_CHECKING:
    from environments.base import Environment

COMPACT_NOTE = "argument references: the embedded policy reads values as $k and names them, calls carry full values"


class Selection(Record):
    """What to score: exactly one of some panels, a category and a file of tasks; ``openings`` for held-out panels.

    ``options`` are the environment's, as ``environment.options`` of a recipe.
    """

    environment: str
    model: str
    panels: tuple[str, ...]
    category: str | None
    tasks: Path | None
    split: str
    limit: int | None
    openings: Path | None = None
    trust_agent_code: bool = False
    options: dict[str, JsonValue] = {}


class Selected(NamedTuple):
    """The items, the environment for so many actions in a turn, the metrics of the items, and their benchmark."""

    items: tuple[Item, ...]
    environment: Callable[[int], Environment]
    metrics: Mapping[str, Metric]
    benchmark: AnyBenchmark


def select(chosen: Selection) -> Selected:
    """What the command's options name. Raises InputError where they do not fit together."""
    if bool(chosen.panels) + (chosen.category is not None) + (chosen.tasks is not None) != 1:
        raise InputError("give either --panel NAME or --category NAME or --tasks FILE, one of the three")
    if chosen.split != ALL and chosen.category is None:
        raise InputError("--split goes with --category: leave it out")
    benchmark = named_benchmark(chosen.environment)
    _check_offered(chosen, benchmark)
    if chosen.openings is not None and not any(held_out(name, benchmark) for name in chosen.panels):
        raise InputError("--openings is for held-out panels, and none is named: leave it out")
    items = _items(chosen, benchmark)
    metrics = {} if chosen.tasks is not None else benchmark.metrics
    return Selected(items, partial(_open, chosen, benchmark), metrics, benchmark)


def notes_for(
    rendering: str, chosen: Selection, benchmark: AnyBenchmark, outcomes: Sequence[TaskOutcome]
) -> tuple[str, ...]:
    """What a reader must know beside the figures."""
    notes = [COMPACT_NOTE] if rendering == "compact" else []
    if chosen.category is not None:
        notes += benchmark.category_notes()
    if chosen.tasks is not None:
        notes.append(f"{chosen.tasks} is no held-out panel: the model may have been trained on its tasks")
    if chosen.limit is not None:
        notes.append(f"the first {chosen.limit} tasks of each group only")
    if chosen.panels:
        notes += benchmark.evaluation_notes(sum(one.infrastructure_error is not None for one in outcomes))
    return tuple(notes)


def written(outcomes: Sequence[TaskOutcome], benchmark: AnyBenchmark) -> tuple[TaskOutcome, ...]:
    """What may be written of outcomes: the benchmark says so of the words of an infrastructure error."""
    return tuple(
        one
        if one.infrastructure_error is None
        else one.model_copy(update={"infrastructure_error": benchmark.published_error(one.infrastructure_error)})
        for one in outcomes
    )


def _check_offered(chosen: Selection, benchmark: AnyBenchmark) -> None:
    name, offers = chosen.environment, ["--tasks FILE"]
    offers += ["--category NAME"] if benchmark.categories else []
    offers += ["--panel NAME"] if benchmark.evaluation_sets else []
    give = " or ".join(reversed(offers))
    if chosen.panels and not benchmark.evaluation_sets:
        raise InputError(f"--panel: {name} has no panel: give {give}")
    if chosen.category is not None and not benchmark.categories:
        raise InputError(f"--category: {name} has no category: give {give}")
    if len(set(chosen.panels)) > 1 and not benchmark.several_sets:
        raise InputError(f"--panel is given {len(chosen.panels)} times: score one panel of {name} in one command")


def _items(chosen: Selection, benchmark: AnyBenchmark) -> tuple[Item, ...]:
    if chosen.tasks is not None:
        return open_tasks(chosen.tasks, chosen.limit)
    if chosen.category is not None:
        return open_category(chosen.category, chosen.split, chosen.limit, benchmark=benchmark)
    if any(held_out(name, benchmark) for name in chosen.panels) and chosen.model not in BASELINES:
        from training.rollout.policy_path import check_policy_path

        check_policy_path(chosen.model)  # before an opening is noted
    return tuple(
        item
        for name in dict.fromkeys(chosen.panels)
        for item in open_panel(name, chosen.limit, chosen.openings, model=chosen.model, benchmark=benchmark)
    )


def _open(chosen: Selection, benchmark: AnyBenchmark, actions: int) -> Environment:
    options = named_options(benchmark, chosen.options, actions, chosen.trust_agent_code)
    panel = chosen.panels[0] if chosen.panels else None
    return belonging(chosen.environment, benchmark, lambda: benchmark.evaluation_environment(options, panel))
