"""The tasks that ``contract.py`` plays: found by exploration, so that they exist for any environment."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agents.assembly import UNGUIDED_EXPLORATION, unguided_context
from agents.cuts import call_of, partition, successful_runs
from agents.live import context_task
from agents.scripted.explorer import UnguidedExplorer
from environments.base import Environment, InputError, TaskSpec
from environments.task_text import render_documented
from environments.verification.replay import replay
from environments.verification.verify import reduce, verify

TASKS = 6
EPISODES = 40
LONGEST = 3


def explored_tasks(environment: Environment) -> tuple[TaskSpec, ...]:
    """Verified tasks from unguided exploration; some change the state, and one has several calls at least."""
    found: list[TaskSpec] = []
    starts = environment.starts()
    for position in range(EPISODES):
        context = unguided_context(starts[position * 7 % len(starts)], position)
        interactions = UnguidedExplorer(UNGUIDED_EXPLORATION).explore_now(context, environment, position)
        rng = random.Random(position)
        for run in successful_runs(interactions):
            for cut in partition(run, LONGEST, rng):
                calls = tuple(call_of(interaction) for interaction in cut.reference)
                update = {"setup": cut.setup, "reference": (calls,)}
                task = _verified(environment, context_task(context).model_copy(update=update), rng)
                found += [task] if task is not None and task not in found else []
        chosen = _chosen(environment, found)
        if chosen:
            return chosen
    raise AssertionError(
        f"exploration found {len(found)} tasks in {EPISODES} episodes, and none of several calls or none that changes "
        "the state: see that your tools are documented and their values can be seen, or override make_tasks()"
    )


def in_turns(tasks: Sequence[TaskSpec]) -> tuple[TaskSpec, ...]:
    """The tasks of several calls with a user turn for each call."""
    return tuple(
        task.model_copy(
            update={
                "turns": tuple(f"turn {number}" for number in range(len(task.reference[0]))),
                "reference": tuple((call,) for call in task.reference[0]),
            }
        )
        for task in tasks
        if len(task.reference) == 1 and len(task.reference[0]) > 1
    )


def _verified(environment: Environment, task: TaskSpec, rng: random.Random) -> TaskSpec | None:
    reduced = reduce(environment, task)
    if reduced is None:
        return None
    try:
        written = render_documented(environment, reduced, rng)
    except InputError:
        return None
    return written if verify(written, environment, (), ()).accepted else None


def _chosen(environment: Environment, found: Sequence[TaskSpec]) -> tuple[TaskSpec, ...]:
    """A task of several calls, one that changes the state, then others; nothing while one of these is missing."""
    several = [task for task in found if len(task.reference[0]) > 1]
    # A reference that is cut into turns must still act in every turn.
    several = [task for task in several if replay(environment, in_turns([task])[0]).outcome.success]
    changing = [task for task in found if _changes(environment, task)]
    if len(found) < TASKS or not several or not changing:
        return ()
    return tuple({id(task): task for task in (several[0], changing[0], *found)}.values())[:TASKS]


def _changes(environment: Environment, task: TaskSpec) -> bool:
    played = replay(environment, task)
    return played.initial != played.end_states()[-1]
