"""Evaluation sets of single user turns that people wrote: the turns of held-out official tasks (ours).

Each turn is a task of its own, cut after it, in which the reference plays the turns before it
(``environments.history.behind``). ``human-SPLIT`` has the turns with a reference call, of all four categories, and
``human-base-SPLIT`` those of base alone: the other categories repeat its texts, at three times its cost. Their
result is the official one, which checks the played turns, too. Every reference passes but that of the first turn of
long_context-38, in human-test: it has 34 calls, and the official limit is 20. ``abstain-SPLIT`` has the turns of
miss_func and miss_param whose reference is empty: the right answer is to make no call. The official checker does not
check such turns, so that their success means nothing; the metric ``abstention`` does.

The turns of one index share text, states or both in all categories: the index is their cluster.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from environments.benchmark import EvaluationTask
from environments.bfcl.official import CategoryTask, Split, load_category
from environments.bfcl.package import CATEGORIES
from environments.history import agent_calls, behind, turn_id


class _TurnSet(NamedTuple):
    split: Split
    categories: tuple[str, ...]
    calls: bool


_ABSTAINING = ("miss_func", "miss_param")
_SETS: dict[str, _TurnSet] = {
    "human-dev": _TurnSet("dev", CATEGORIES, calls=True),
    "human-test": _TurnSet("test", CATEGORIES, calls=True),
    "human-base-dev": _TurnSet("dev", ("base",), calls=True),
    "human-base-test": _TurnSet("test", ("base",), calls=True),
    "abstain-dev": _TurnSet("dev", _ABSTAINING, calls=False),
    "abstain-test": _TurnSet("test", _ABSTAINING, calls=False),
}
TURN_SETS = {name: one.split == "test" for name, one in _SETS.items()}
"""The names of the sets, and whether each is held out."""


def turn_ids(name: str) -> tuple[str, ...]:
    """Return the ids of a set's tasks in their order."""
    return tuple(turn_id(whole.id, turn) for whole, turn in _places(name))


def turn_tasks(name: str, limit: int | None = None) -> tuple[EvaluationTask, ...]:
    """Return a set's tasks, the first ``limit`` if given, by index: the first ones are of every category."""
    return tuple(
        EvaluationTask(
            id=turn_id(whole.id, turn),
            origin="official",
            spec=(spec := behind(whole.spec, turn)),
            cluster=str(whole.index),
            reference_calls=agent_calls(spec),
            strata={"category": whole.category, "turn": str(turn + 1)},
        )
        for whole, turn in _places(name)[:limit]
    )


@cache
def _places(name: str) -> tuple[tuple[CategoryTask, int], ...]:
    """Return the official task and the turn, from 0, of each task of a set."""
    split, categories, calls = _SETS[name]
    wholes = [one for category in categories for one in load_category(category, (split,))]
    wholes.sort(key=lambda one: (one.index, categories.index(one.category)))
    return tuple(
        (whole, turn) for whole in wholes for turn, wanted in enumerate(whole.spec.reference) if bool(wanted) == calls
    )
