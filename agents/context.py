"""Makes the failure context of a signal from what a reflector found: the part that every reflector shares."""

from __future__ import annotations

from agents.evidence import error_class, facts, step_at
from memory.ids import record_id
from memory.records import Cause, Evidence, FailureContext, Measured


def failed_turn(evidence: Evidence) -> int:
    """The turn to blame: the official one, else the first whose check failed; the last reached one at most."""
    outcome, reached = evidence.trajectory.outcome, len(evidence.trajectory.turns)
    last = max(0, reached - 1)
    if outcome is None:
        return last
    if outcome.failed_turn is not None:
        return min(outcome.failed_turn, last)
    for index, turn in enumerate(outcome.turns[:reached]):
        if False in (turn.instances, turn.state, turn.response):
            return index
    return last


def failure_context(
    evidence: Evidence,
    *,
    cause: Cause,
    where: tuple[int, int],
    tool: str,
    how: str,
    why: str,
    explore: tuple[str, ...],
    measured: Measured | None = None,
) -> FailureContext:
    """The context of ``evidence``; its error class and facts are read from the trajectory.

    An explorer starts where the failing turn started: after the task's setup and the reference of earlier turns, which
    become the context's setup and are never shown.
    """
    task, step = evidence.task, step_at(evidence.trajectory, where)
    earlier = tuple(call for turn in task.reference[: where[0]] for call in turn)
    return FailureContext(
        id=record_id("context", evidence.signal.id),
        signal_id=evidence.signal.id,
        task_id=task.id,
        trajectory_id=evidence.trajectory.id,
        iteration=evidence.signal.iteration,
        kind=evidence.signal.kind,
        environment=task.environment,
        cause=cause,
        where=where,
        tool=tool,
        error_class=error_class(step.observation) if step is not None else "",
        how=how,
        why=why,
        facts=facts(evidence, where),
        explore=explore,
        classes=task.classes,
        initial_state=task.initial_state,
        setup=(*task.setup, *earlier),
        tools=task.tools,
        measured=measured or Measured(),
    )
