"""Selects what an evaluation attempts: the items, the environment, and the metrics beside success."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from environments.base import InputError, Record
from environments.metrics import Metric
from environments.settings import APPWORLD, BFCL
from evaluation.attempts import GENERAL, OF_APPWORLD, Budget
from evaluation.outcomes import TaskOutcome
from evaluation.panels import Item, SplitChoice, held_out, open_category, open_panel, open_tasks

if TYPE_CHECKING:
    from environments.base import Environment

COMPACT_NOTE = "argument references: the embedded policy reads values as $k and names them, calls carry full values"


class Selection(Record):
    """What to score: exactly one of some panels, a category and a file of tasks; ``openings`` for held-out panels."""

    environment: str
    model: str
    panels: tuple[str, ...]
    category: str | None
    tasks: Path | None
    split: SplitChoice
    limit: int | None
    openings: Path | None = None
    trust_agent_code: bool = False


class Selected(NamedTuple):
    """The items, the environment for so many actions in a turn, and the benchmark's metrics by name."""

    items: tuple[Item, ...]
    environment: Callable[[int], Environment]
    metrics: Mapping[str, Metric]


def budget_of(environment: str) -> Budget:
    """Limits of attempts in the environment where the user gives none."""
    return OF_APPWORLD if environment == APPWORLD else GENERAL


def select(chosen: Selection) -> Selected:
    """What the command's options name. Raises InputError where they do not fit together."""
    if bool(chosen.panels) + (chosen.category is not None) + (chosen.tasks is not None) != 1:
        raise InputError("give either --panel NAME or --category NAME or --tasks FILE, one of the three")
    if chosen.split != "all" and chosen.category is None:
        raise InputError("--split goes with --category: leave it out")
    if chosen.environment == APPWORLD and chosen.panels:
        return _of_appworld(chosen)
    if chosen.openings is not None and not any(held_out(name) for name in chosen.panels):
        raise InputError("--openings is for held-out panels, and none is named: leave it out")
    return Selected(_items(chosen), partial(_open, chosen), {})


def notes_for(rendering: str, chosen: Selection, outcomes: Sequence[TaskOutcome]) -> tuple[str, ...]:
    """What a reader must know beside the figures."""
    notes = [COMPACT_NOTE] if rendering == "compact" else []
    if chosen.category is not None:
        notes.append("indices 40-49 and 90-99 are reserved and not scored: 180 of a category's 200 tasks at most")
    if chosen.tasks is not None:
        notes.append(f"{chosen.tasks} is no held-out panel: the model may have been trained on its tasks")
    if chosen.limit is not None:
        notes.append(f"the first {chosen.limit} tasks of each group only")
    if chosen.environment == APPWORLD and chosen.panels:
        notes.append("TGC and SGC in percent, of tasks and of scenarios with every attempted variant solved")
        unjudged = sum(one.infrastructure_error is not None for one in outcomes)
        if unjudged:
            notes.append(f"{unjudged} attempts could not be judged: TGC leaves them out, SGC their scenarios")
    return tuple(notes)


def _items(chosen: Selection) -> tuple[Item, ...]:
    if chosen.tasks is not None:
        return open_tasks(chosen.tasks, chosen.limit)
    if chosen.environment == APPWORLD:
        raise InputError(f"--category is of {BFCL}: give --panel NAME or --tasks FILE for {APPWORLD}")
    if chosen.environment != BFCL:
        raise InputError(f"--panel and --category are of {BFCL}: give --tasks FILE for {chosen.environment}")
    if chosen.panels:
        names = dict.fromkeys(chosen.panels)
        return tuple(item for name in names for item in open_panel(name, chosen.limit, chosen.openings))
    return open_category(chosen.category or "", chosen.split, chosen.limit)


def _of_appworld(chosen: Selection) -> Selected:
    from environments.appworld.panels import METRICS
    from evaluation.appworld_panels import open_appworld_panel

    if len(set(chosen.panels)) > 1:
        raise InputError(f"--panel is given {len(chosen.panels)} times: score one panel of {APPWORLD} a call")
    opened = open_appworld_panel(chosen.panels[0], chosen.limit, chosen.openings, chosen.model)
    environment = partial(opened.environment, trust_agent_code=chosen.trust_agent_code)
    return Selected(opened.items, environment, METRICS)


def written(outcomes: Sequence[TaskOutcome], environment: str) -> tuple[TaskOutcome, ...]:
    """What may be written of outcomes in ``environment``."""
    if environment != APPWORLD:
        return tuple(outcomes)
    from evaluation.appworld_panels import publishable

    return tuple(map(publishable, outcomes))


def _open(chosen: Selection, actions: int) -> Environment:
    from environments.registry import open_named

    return open_named(chosen.environment, max_steps=actions, trust_agent_code=chosen.trust_agent_code)
