"""Contexts without a weakness: uniformly drawn calls (a baseline).

``random_contexts``: a task of the round is drawn, then one of the calls that its rollouts made, successful or not. The
context has the fields of a reflector's, so that the same explorer and abstractor work on it; fields that depend on a
failure are replaced by their unconditional counterpart (our choice):

where, tool         the drawn call
cause, error_class  none: they are read from failures
facts               as around a failure, without error messages and malformed calls
explore             the drawn tool, the tools of the task's reference (a reflector lists those that did not succeed),
                    and neighbours by documentation, as many as a reflector names; no tool that an error asks for
setup               as for a failure: the state in which the turn of the call began
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from agents.evidence import executed, facts_around
from agents.scripted.reflector import with_neighbours
from environments.base import Environment, ToolCall
from memory.jsonl import record_id
from memory.records import FailureContext, Task, Trajectory, Unsignalled

_WHY = "The call was drawn uniformly from those of the round: no weakness is behind it."


class _Drawn(NamedTuple):
    """A call and the (turn, step) at which a rollout made it."""

    trajectory: Trajectory
    where: tuple[int, int]
    call: ToolCall


def random_contexts(
    trajectories: Iterable[Trajectory],
    tasks: Mapping[str, Task],
    environment: Environment,
    count: int,
    seed: int,
    iteration: int,
) -> tuple[FailureContext, ...]:
    """Draw ``count`` contexts, sorted by id; fewer if the round's tasks have fewer different calls.

    Every task is drawn once before any is drawn twice, and none twice with the same call. Trajectories with an
    infrastructure error are left out. ``tasks`` holds the tasks of the trajectories by id. The order of
    ``trajectories`` does not matter.
    """
    open_calls = _calls(trajectories, tasks)
    rng = random.Random(seed)
    contexts: list[FailureContext] = []
    while open_calls and len(contexts) < count:
        for task_id in rng.sample(sorted(open_calls), min(len(open_calls), count - len(contexts))):
            drawn = rng.choice(open_calls[task_id])
            contexts.append(_context(drawn, tasks[task_id], environment, rng, iteration))
            open_calls[task_id] = [other for other in open_calls[task_id] if other.call != drawn.call]
            if not open_calls[task_id]:
                del open_calls[task_id]
    return tuple(sorted(contexts, key=lambda context: context.id))


def _calls(trajectories: Iterable[Trajectory], tasks: Mapping[str, Task]) -> dict[str, Sequence[_Drawn]]:
    """Collect every call that ran, by task; tasks whose rollouts called nothing are left out."""
    made: defaultdict[str, list[_Drawn]] = defaultdict(list)
    for one in sorted(trajectories, key=lambda trajectory: (trajectory.step, trajectory.sample, trajectory.id)):
        if one.infrastructure_error is not None:
            continue
        for t, turn in enumerate(one.turns):
            for s, step in enumerate(turn.steps):
                made[one.task_id] += [
                    _Drawn(one, (t, s), call)
                    for call in step.observation.calls
                    if call.name in tasks[one.task_id].tools
                ]
    return {task_id: calls for task_id, calls in made.items() if calls}


def _context(drawn: _Drawn, task: Task, environment: Environment, rng: random.Random, iteration: int) -> FailureContext:
    trajectory, (turn, place), call = drawn
    tools = {tool.name: tool for tool in environment.tools(task.tools)}
    wanted = [each.name for calls in task.reference for each in calls]
    named = [name for name in dict.fromkeys((call.name, *wanted)) if name in tools]
    earlier = tuple(each for calls in task.reference[:turn] for each in calls)
    return FailureContext(
        id=record_id("context", Unsignalled.RANDOM, iteration, trajectory.id, turn, place),
        task_id=task.id,
        trajectory_id=trajectory.id,
        iteration=iteration,
        kind=Unsignalled.RANDOM,
        environment=task.environment,
        where=drawn.where,
        tool=call.name,
        how=f"Turn {turn + 1}, action {place + 1}: {executed(call)[:200]} was called.",
        why=_WHY,
        facts=facts_around(task, trajectory, drawn.where, errors=False),
        explore=with_neighbours(named, tools[call.name], tuple(tools.values()), rng),
        classes=task.classes,
        initial_state=task.initial_state,
        setup=(*task.setup, *earlier),
        tools=task.tools,
    )
