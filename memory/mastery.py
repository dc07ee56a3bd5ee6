"""Compute the policy's success by function: how often rollouts make the calls that tasks ask of it (ours).

A task of three calls fails as a whole where one of them is wrong, so its score does not say which function the policy
lacks. Here each call of a reference counts by itself: it was made when the rollout made an equal call in the same user
turn and that call did not fail. A rollout that succeeds has made all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from environments.base import Environment, ToolCall, ToolSpec
from environments.verification.programs import functions_of, program_parameters
from memory.records import Task, Trajectory
from memory.run import RunDirectory, read_jsonl

UNKNOWN = 0.5
"""Success that is assumed of a function that no rollout was asked for."""

_FADING = 0.5
"""Weight of a round against the round after it: the policy changes."""


def success_by_function(
    rounds: Sequence[Iterable[Trajectory]], tasks: Mapping[str, Task], tools: Iterable[ToolSpec]
) -> dict[str, float]:
    """Return the estimated share of each function's calls that the policy makes in its own turns, in (0, 1).

    It is (made + 1) / (asked + 2), where ``rounds``, the oldest first, count half as much as the round after them; a
    function that was never asked for is not in it. ``tasks`` has the tasks of the trajectories by id.
    Trajectories with an infrastructure error are left out. In programs the functions that are called count.
    """
    programs = program_parameters(tools)
    made: defaultdict[str, float] = defaultdict(float)
    asked: defaultdict[str, float] = defaultdict(float)
    for age, trajectories in enumerate(reversed(rounds)):
        weight = _FADING**age
        for one in trajectories:
            if one.infrastructure_error is not None:
                continue
            task = tasks[one.task_id]
            for turn, calls in enumerate(task.reference[task.played :], start=task.played):
                left = _succeeded(one, turn)
                for call in calls:
                    hit = one.success or call in left
                    if call in left:
                        left.remove(call)
                    for name in functions_of(call, programs.get(call.name)):
                        asked[name] += weight
                        made[name] += weight * hit
    return {name: (made[name] + 1) / (count + 2) for name, count in asked.items()}


def success_in(
    run: RunDirectory, rounds: Iterable[int], tasks: Iterable[Task], environment: Environment
) -> dict[str, float]:
    """Return ``success_by_function`` of these rounds of a run, ascending; ``tasks`` holds those that they played."""
    known = {task.id: task for task in tasks}
    played = [read_jsonl(run.iteration(number).trajectories, Trajectory) for number in rounds]
    return success_by_function(played, known, tools_of(known.values(), environment))


def tools_of(tasks: Iterable[Task], environment: Environment) -> Sequence[ToolSpec]:
    """Return the documentation of every tool that one of ``tasks`` offers."""
    return environment.tools(sorted({name for task in tasks for name in task.tools}))


def _succeeded(trajectory: Trajectory, turn: int) -> list[ToolCall]:
    """Return the calls of a user turn that did not fail; none for a turn that was not reached."""
    steps = trajectory.turns[turn].steps if turn < len(trajectory.turns) else ()
    return [call for step in steps if not step.observation.failed for call in step.observation.calls]
