"""Rollouts made by hand: what a policy did in a step, by names of tools and results."""

from __future__ import annotations

from collections.abc import Sequence

from environments.base import Observation, ObservationStatus, Outcome, ToolCall
from memory.records import Step, Trajectory, TrajectoryTurn

CRASHED = "worker died"


def turn(*names: str) -> TrajectoryTurn:
    """Return a turn of calls of the tools; one whose name begins with ``!`` is refused."""
    steps = []
    for name in names:
        call = ToolCall(name=name.removeprefix("!"))
        status = ObservationStatus.ERROR if name.startswith("!") else ObservationStatus.OK
        steps.append(Step(action=call, observation=Observation(text="", status=status, calls=(call,))))
    return TrajectoryTurn(text="", steps=tuple(steps))


def rollout(
    task_id: str,
    step: int,
    sample: int,
    result: bool | str,
    *names: str,
    turns: tuple[TrajectoryTurn, ...] = (),
) -> Trajectory:
    """Return a rollout; ``result`` is True (success), False (failure) or the text of an infrastructure error."""
    crashed = isinstance(result, str)
    return Trajectory(
        id=f"{task_id}/{step}/{sample}",
        task_id=task_id,
        iteration=0,
        step=step,
        sample=sample,
        turns=turns or (turn(*names),),
        outcome=None if crashed else Outcome(success=bool(result), turns=()),
        reward=None if crashed else float(result),
        infrastructure_error=result if crashed else None,
    )


def group(task_id: str, step: int, results: Sequence[bool | str], *names: str) -> list[Trajectory]:
    """Return the rollouts of one task in one step, one for each result."""
    return [rollout(task_id, step, sample, result, *names) for sample, result in enumerate(results)]
