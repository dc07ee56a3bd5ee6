"""Draws the tasks of each training step: uniformly or by weight, from all or evolved ones at a share, retests once.

The settings of the task set choose the rule; weights and retirement follow from the scores of earlier rounds.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from math import floor
from typing import Protocol

from environments.base import InputError
from memory.jsonl import derive_seed
from memory.records import Task
from memory.run import RunDirectory, read_jsonl
from memory.settings import TaskSettings
from training.grpo.task_weights import Attempt, learnability, retire
from training.signals import GroupScore

__all__ = ["RoundDraw", "draw_steps", "earlier_attempts", "round_draw"]


class _Dealing(Protocol):
    """A source of tasks of one kind."""

    def take(self, count: int, taken: Collection[str]) -> list[Task]:
        """Return the next ``count`` tasks whose ids are not in ``taken``, or as many as there are."""
        ...


class _Pool:
    """Deals tasks in a shuffled order, again and again, so that each is drawn before any is drawn twice."""

    def __init__(self, first: Sequence[Task], tasks: Sequence[Task], rng: random.Random) -> None:
        self._tasks = tuple(tasks)
        self._rng = rng
        self._queue = deque(first)

    def take(self, count: int, taken: Collection[str]) -> list[Task]:
        """Return the next ``count`` tasks not in ``taken``, or as many as there are. Skipped ones keep their place."""
        drawn: list[Task] = []
        blocked = set(taken)
        count = min(count, sum(task.id not in blocked for task in self._tasks))
        while len(drawn) < count:
            place = next((place for place, task in enumerate(self._queue) if task.id not in blocked), None)
            if place is None:
                self._queue.extend(self._rng.sample(self._tasks, len(self._tasks)))
            else:
                drawn.append(self._queue[place])
                blocked.add(self._queue[place].id)
                del self._queue[place]
        return drawn


class _WeightedPool:
    """Deals tasks in proportion to their weights.

    Each task has a clock that advances by 1 / weight when it is drawn, and the one that is due first is drawn next.
    Clocks start at a random share of their first advance, by task and seed.
    """

    def __init__(self, tasks: Sequence[Task], weights: Mapping[str, float], seed: int) -> None:
        self._tasks = {task.id: task for task in tasks}
        self._advance = {task_id: 1.0 / weights[task_id] for task_id in self._tasks}
        start = {task_id: random.Random(derive_seed(seed, task_id)).random() for task_id in self._tasks}
        self._due = {task_id: share * self._advance[task_id] for task_id, share in start.items()}

    def take(self, count: int, taken: Collection[str]) -> list[Task]:
        """Return the next ``count`` tasks not in ``taken``, or as many as there are. Skipped ones keep their place."""
        free = (task_id for task_id in self._due if task_id not in taken)
        drawn = nsmallest(count, free, key=lambda task_id: (self._due[task_id], task_id))
        for task_id in drawn:
            self._due[task_id] += self._advance[task_id]
        return [self._tasks[task_id] for task_id in drawn]


def _evolved_pool(evolved: Sequence[Task], rng: random.Random) -> _Pool:
    newest = max((task.admitted_at or 0 for task in evolved), default=0)
    fresh = [task for task in evolved if (task.admitted_at or 0) == newest]
    older = [task for task in evolved if (task.admitted_at or 0) != newest]
    return _Pool([*rng.sample(fresh, len(fresh)), *rng.sample(older, len(older))], evolved, rng)


def draw_steps(
    tasks: Sequence[Task],
    steps: int,
    per_step: int,
    evolved_share: float | None,
    seed: int,
    *,
    weights: Mapping[str, float] | None = None,
    retests: Sequence[Task] = (),
) -> tuple[tuple[Task, ...], ...]:
    """Return the tasks of each of ``steps`` training steps, ``per_step`` in each (ours; the paper states no rule).

    ``evolved_share`` None draws from all tasks alike. Else, while there are evolved tasks, that share of the draws are
    theirs, fractions carried from step to step, and both kinds are drawn apart, evolved tasks of the newest iteration
    first. Tasks are dealt from a shuffled order, so that none waits by bad luck. With ``weights`` (positive, by task
    id) they are dealt in proportion to them instead. Tasks of a step are distinct if there are enough: a kind that has
    too few leaves its places to the other, and only a set smaller than ``per_step`` repeats tasks within a step.
    ``retests``, none of ``tasks``, are drawn once each, spread over the steps, before all others; those beyond all
    places are not drawn. The order of ``tasks`` and ``retests`` does not matter. Raises InputError for an empty set.
    """
    if not tasks:
        raise InputError(
            "there are no tasks to train on: make D_0 with python -m graph.seed_tasks or set tasks.initial"
        )
    ordered = sorted(tasks, key=lambda task: task.id)
    evolved = [task for task in ordered if task.origin == "evolved" and evolved_share is not None]
    others = [task for task in ordered if task.origin != "evolved" or evolved_share is None]
    evolved_pool: _Dealing
    other_pool: _Dealing
    if weights is None:
        evolved_pool = _evolved_pool(evolved, random.Random(derive_seed(seed, "evolved")))
        other_rng = random.Random(derive_seed(seed, "others"))
        other_pool = _Pool(other_rng.sample(others, len(others)), others, other_rng)
    else:
        evolved_pool = _WeightedPool(evolved, weights, derive_seed(seed, "evolved"))
        other_pool = _WeightedPool(others, weights, derive_seed(seed, "others"))
    once = sorted(retests, key=lambda task: task.id)
    random.Random(derive_seed(seed, "retests")).shuffle(once)
    drawn, places = [], 0
    for step in range(steps):
        first = once[step::steps][:per_step]
        places += per_step - len(first)
        share = evolved_share if evolved and evolved_share is not None else 0.0
        wanted = _share(places, share) - _share(places - (per_step - len(first)), share)
        drawn.append((*first, *_draw_step(evolved_pool, other_pool, per_step - len(first), wanted)))
    return tuple(drawn)


def _share(places: int, share: float) -> int:
    # The small number keeps products such as 80 * 0.7 from falling just below their integer.
    return floor(places * share + 1e-9)


def _draw_step(evolved: _Dealing, others: _Dealing, per_step: int, wanted: int) -> tuple[Task, ...]:
    drawn: list[Task] = []
    while len(drawn) < per_step:
        # One pass is enough unless the whole set is smaller than the step, which then repeats tasks.
        room = per_step - len(drawn)
        chosen = evolved.take(min(wanted, room), taken=())
        chosen += others.take(room - len(chosen), taken=())
        taken = {task.id for task in chosen}
        chosen += evolved.take(room - len(chosen), taken)
        drawn += chosen
    return tuple(drawn)


@dataclass(frozen=True)
class RoundDraw:
    """The tasks that a round may draw, and by which rule."""

    tasks: tuple[Task, ...]
    retests: tuple[Task, ...]
    weights: Mapping[str, float] | None
    evolved_share: float | None
    seed: int

    def steps(self, steps: int, per_step: int) -> tuple[tuple[Task, ...], ...]:
        """Return the tasks of each of ``steps`` training steps: see ``draw_steps``."""
        return draw_steps(
            self.tasks, steps, per_step, self.evolved_share, self.seed, weights=self.weights, retests=self.retests
        )


def round_draw(
    run: RunDirectory,
    iteration: int,
    tasks: Sequence[Task],
    settings: TaskSettings,
    *,
    per_step: int,
    seed: int,
    scored: int | None = None,
) -> RoundDraw:
    """Return how the tasks of the round of ``iteration`` are drawn from ``tasks``, which are D_t.

    ``seed`` is the run's. Earlier rounds are read only if sampling or retirement uses them: the first ``scored``, all
    where None. Raises InputError when there are no tasks, or when the scores of an earlier round are missing.
    """
    draw_seed = derive_seed(seed, iteration, "draw")
    share = settings.evolved_share
    rule = settings.experimental
    if rule.sampling == "uniform" and rule.retire_above is None:
        return RoundDraw(tuple(tasks), (), None, share, draw_seed)
    attempts = earlier_attempts(run, iteration if scored is None else scored)
    by_id = {task.id: task for task in tasks}
    active, retested = frozenset(by_id), frozenset[str]()
    if rule.retire_above is not None:
        retirement = retire(
            by_id,
            attempts,
            newest=rule.newest_groups,
            above=rule.retire_above,
            retest_every=rule.retest_every,
            iteration=iteration,
            at_least=per_step,
        )
        active, retested = retirement.active, retirement.retested
    weights = None
    if rule.sampling == "learnability":
        weights = learnability(active, attempts, rule.newest_groups, rule.sampling_floor)
    return RoundDraw(
        tuple(by_id[task_id] for task_id in sorted(active)),
        tuple(by_id[task_id] for task_id in sorted(retested)),
        weights,
        share,
        draw_seed,
    )


def earlier_attempts(run: RunDirectory, iteration: int) -> list[Attempt]:
    """Return every attempt of the rounds before ``iteration``. Raises InputError for a round without its scores."""
    attempts = []
    for number in range(iteration):
        path = run.iteration(number).scores
        if not path.exists():
            raise InputError(
                f"{path} is missing, and tasks.experimental.sampling or retire_above needs it: finish iteration "
                f"{number} with python -m graph.run_iteration --resume"
            )
        attempts += [
            Attempt(task_id=score.task_id, iteration=number, step=score.step, success=score.mean, n=score.n)
            for score in read_jsonl(path, GroupScore)
        ]
    return attempts
