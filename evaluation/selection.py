"""Selects what an evaluation attempts: the items, the environment, and the metrics beside success."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from environments.base import InputError
from environments.metrics import Metric
from environments.settings import APPWORLD, BFCL
from evaluation.attempts import GENERAL, OF_APPWORLD, Budget
from evaluation.outcomes import TaskOutcome
from evaluation.panels import Item, held_out, open_category, open_panel, open_tasks

if TYPE_CHECKING:
    from environments.base import Environment
    from evaluation.settings import ScoringSettings

COMPACT_NOTE = "argument references: the embedded policy reads values as $k and names them, calls carry full values"


class Selected(NamedTuple):
    """The items, the environment for so many actions in a turn, and the benchmark's metrics by name."""

    items: tuple[Item, ...]
    environment: Callable[[int], Environment]
    metrics: Mapping[str, Metric]


def budget_of(environment: str) -> Budget:
    """Return the limits of attempts in the environment where the user gives none."""
    return OF_APPWORLD if environment == APPWORLD else GENERAL


def select(settings: ScoringSettings) -> Selected:
    """Return what the settings name. Raises InputError where they do not fit together."""
    if bool(settings.evaluation_set) + (settings.category is not None) + (settings.tasks is not None) != 1:
        raise InputError("give either --evaluation-set NAME or --category NAME or --tasks FILE, one of the three")
    if settings.split != "all" and settings.category is None:
        raise InputError("--split goes with --category: leave it out")
    if settings.environment == APPWORLD and settings.evaluation_set:
        return _of_appworld(settings)
    if settings.access_log is not None and not any(held_out(name) for name in settings.evaluation_set):
        raise InputError("--access-log is for held-out evaluation sets, and none is named: leave it out")
    return Selected(_items(settings), partial(_open, settings), {})


def notes_for(rendering: str, settings: ScoringSettings, outcomes: Sequence[TaskOutcome]) -> tuple[str, ...]:
    """Return what a reader must know beside the figures."""
    notes = [COMPACT_NOTE] if rendering == "compact" else []
    if settings.category is not None:
        notes.append("indices 40-49 and 90-99 are reserved and not scored: 180 of a category's 200 tasks at most")
    if settings.tasks is not None:
        notes.append(f"{settings.tasks} is not a held-out evaluation set: the model may have been trained on its tasks")
    if settings.limit is not None:
        notes.append(f"the first {settings.limit} tasks of each group only")
    if settings.environment == APPWORLD and settings.evaluation_set:
        notes.append("TGC and SGC in percent, of tasks and of scenarios with every attempted variant solved")
        unjudged = sum(one.infrastructure_error is not None for one in outcomes)
        if unjudged:
            notes.append(f"{unjudged} attempts could not be judged: TGC leaves them out, SGC their scenarios")
    return tuple(notes)


def _items(settings: ScoringSettings) -> tuple[Item, ...]:
    if settings.tasks is not None:
        return open_tasks(settings.tasks, settings.limit)
    if settings.environment == APPWORLD:
        raise InputError(f"--category is of {BFCL}: give --evaluation-set NAME or --tasks FILE for {APPWORLD}")
    if settings.environment != BFCL:
        raise InputError(f"--evaluation-set and --category are of {BFCL}: give --tasks FILE for {settings.environment}")
    if settings.evaluation_set:
        names = dict.fromkeys(settings.evaluation_set)
        return tuple(item for name in names for item in open_panel(name, settings.limit, settings.access_log))
    return open_category(settings.category or "", settings.split, settings.limit)


def _of_appworld(settings: ScoringSettings) -> Selected:
    from environments.appworld.panels import METRICS
    from evaluation.appworld_panels import open_appworld_panel

    if len(set(settings.evaluation_set)) > 1:
        raise InputError(
            f"--evaluation-set is given {len(settings.evaluation_set)} times: score one set of {APPWORLD} per call"
        )
    opened = open_appworld_panel(settings.evaluation_set[0], settings.limit, settings.access_log, settings.model)
    environment = partial(opened.environment, trust_agent_code=settings.trust_agent_code)
    return Selected(opened.items, environment, METRICS)


def written(outcomes: Sequence[TaskOutcome], environment: str) -> tuple[TaskOutcome, ...]:
    """Return what may be written of outcomes in ``environment``."""
    if environment != APPWORLD:
        return tuple(outcomes)
    from evaluation.appworld_panels import publishable

    return tuple(map(publishable, outcomes))


def _open(settings: ScoringSettings, actions: int) -> Environment:
    from environments.registry import open_named

    return open_named(settings.environment, max_steps=actions, trust_agent_code=settings.trust_agent_code)
