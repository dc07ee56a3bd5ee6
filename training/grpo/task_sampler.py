"""Draws the tasks of each training step: uniformly, from all tasks alike or with a share of evolved ones."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Sequence
from itertools import chain, pairwise
from math import floor

from environments.base import InputError
from memory.jsonl import derive_seed
from memory.records import Task
from training.grpo.record import RoundSettings


class _Pool:
    """Deals tasks in a shuffled order, again and again, so that each is drawn before any is drawn twice."""

    def __init__(self, parts: Sequence[Sequence[Task]], rng: random.Random) -> None:
        """The first time ``parts`` are dealt one after the other, each of them shuffled."""
        self._tasks = sorted(chain.from_iterable(parts), key=lambda task: task.id)
        self._rng = rng
        self._queue = deque(task for part in parts for task in rng.sample(part, len(part)))

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


def draw_steps(
    tasks: Sequence[Task], steps: int, per_step: int, evolved_share: float | None, seed: int
) -> tuple[tuple[Task, ...], ...]:
    """Return the tasks of each of ``steps`` training steps, ``per_step`` in each (ours; the paper states no rule).

    ``evolved_share`` None draws from all tasks alike. A number is the share of the draws that evolved tasks get while
    there are any; a fraction of a draw is carried to the next step. Evolved tasks and others are drawn separately,
    evolved ones of the newest iteration first. Tasks are dealt from a shuffled order, so that none waits by bad luck.
    Tasks of a step are distinct if there are enough: a kind that has too few leaves its places to the other, and only a
    set smaller than ``per_step`` repeats tasks within a step. The order of ``tasks`` does not matter. Raises InputError
    for an empty set.
    """
    if not tasks:
        raise InputError(
            "there are no tasks to train on: make D_0 with python -m graph.seed_tasks or set tasks.initial"
        )
    ordered = sorted(tasks, key=lambda task: task.id)
    evolved = [task for task in ordered if task.origin == "evolved" and evolved_share is not None]
    others = [task for task in ordered if task.origin != "evolved" or evolved_share is None]
    newest = max((task.admitted_at or 0 for task in evolved), default=0)
    fresh = [task for task in evolved if (task.admitted_at or 0) == newest]
    older = [task for task in evolved if (task.admitted_at or 0) != newest]
    evolved_pool = _Pool([fresh, older], random.Random(derive_seed(seed, "evolved")))
    other_pool = _Pool([others], random.Random(derive_seed(seed, "others")))
    share = evolved_share if evolved and evolved_share is not None else 0.0
    # The small number keeps products such as 80 * 0.7 from falling just below their integer.
    theirs = [floor(step * per_step * share + 1e-9) for step in range(steps + 1)]
    return tuple(_draw_step(evolved_pool, other_pool, per_step, done - before) for before, done in pairwise(theirs))


def _draw_step(evolved: _Pool, others: _Pool, per_step: int, wanted: int) -> tuple[Task, ...]:
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


def round_tasks(tasks: Sequence[Task], settings: RoundSettings, iteration: int) -> tuple[tuple[Task, ...], ...]:
    """Return the tasks of each step of the round of ``iteration``, drawn from ``tasks``, which are D_t.

    With ``tasks.repeats`` the steps of the first 1 / repeats of the round, rounded up, come again and again.
    """
    training, seed = settings.training, derive_seed(settings.seed, iteration, "draw")
    different = -(-training.steps // settings.tasks.repeats)
    drawn = draw_steps(tasks, different, training.tasks_per_step, settings.tasks.evolved_share, seed)
    return tuple(drawn[step % different] for step in range(training.steps))
