"""Compute the official multi-turn result and the checks of every turn with the package's state and response checkers.

The official checker stops at the first failing turn; here every turn is evaluated, and the result follows from the
first failure. ``setup`` is a hidden first turn on both sides: it changes the state, and its results count in no
response check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from environments.base import ObservationStatus, Outcome, TaskSpec, TurnOutcome
from environments.bfcl.docs import all_tools
from environments.bfcl.package import response_checker, state_checker
from environments.bfcl.simulators import Simulators

FORCE_TERMINATED = "multi_turn:force_terminated"
EMPTY_TURN = "multi_turn:empty_turn_model_response"
STATE_MISMATCH = "multi_turn:instance_state_mismatch"
RESPONSE_MISMATCH = "multi_turn:execution_response_mismatch"
CHECKER_ERROR = "multi_turn:checker_error"
"""Ours: the official checker raises here, because two directory trees contain themselves."""

REFERENCES_KEPT = 512


@dataclass(frozen=True)
class ExpectedTurn:
    """The results and instances of one turn's reference; ``instances`` is None for an empty reference."""

    results: tuple[str, ...]
    error: bool
    instances: dict[str, Any] | None


@dataclass(frozen=True)
class _Reference:
    """A task by what its reference depends on."""

    key: str
    task: TaskSpec = field(compare=False)


def reference_turns(task: TaskSpec) -> tuple[ExpectedTurn, ...]:
    """Replay the reference of ``task`` from a fresh state, turn by turn; the last ``REFERENCES_KEPT`` are cached."""
    key = task.model_dump_json(include={"classes", "initial_state", "setup", "reference", "long_context"})
    return _replayed(_Reference(key, task))


@lru_cache(maxsize=REFERENCES_KEPT)
def _replayed(reference: _Reference) -> tuple[ExpectedTurn, ...]:
    task = reference.task
    tools = all_tools()
    simulators = Simulators(task.classes, task.initial_state, task.long_context)
    for call in task.setup:
        simulators.run(call)
    called = [{tools[call.name].group for call in calls if call.name in tools} for calls in task.reference]
    turns = []
    for turn, calls in enumerate(task.reference):
        answers = [simulators.run(call) for call in calls]
        # An instance that no later turn calls stays as it is and needs no copy.
        instances = simulators.snapshot(set().union(*called[turn + 1 :])) if calls else None
        turns.append(
            ExpectedTurn(
                results=tuple(answer.text for answer in answers),
                error=any(answer.status is ObservationStatus.ERROR for answer in answers),
                instances=instances,
            )
        )
    return tuple(turns)


def check_turn(
    turn: int,
    reference: ExpectedTurn,
    instances: dict[str, Any],
    results: Sequence[str],
    *,
    calls: int,
    malformed: int,
) -> TurnOutcome:
    """Return every check of one turn.

    Args:
        instances: the agent's instances as they are when the turn ends.
        results: every result text of the agent up to the end of the turn, setup excluded.
        calls: number of calls that the agent made in this turn; without one the official checker has no instances.
        malformed: number of its actions that were not calls.
    """
    outcome = TurnOutcome(
        calls=calls, malformed=malformed, reference_calls=len(reference.results), reference_error=reference.error
    )
    if reference.instances is None:
        return outcome
    response = response_checker()(list(results), list(reference.results), turn)["valid"]
    try:
        state = state_checker()(instances, reference.instances)["valid"]
    except RecursionError:
        return outcome.model_copy(
            update={
                "instances": calls > 0,
                "response": response,
                "checker_error": "the state check recursed without end: a directory contains itself",
            }
        )
    return outcome.model_copy(update={"instances": calls > 0, "state": state, "response": response})


def official_outcome(turns: tuple[TurnOutcome, ...], *, reached: int, terminated: int | None) -> Outcome:
    """Return the official result over the checks of every turn.

    Args:
        reached: number of user turns that the agent was shown; fewer than all is a forced termination, which officially
            comes before every other check and has no failed turn.
        terminated: the turn in which the step limit ended the episode, None if the limit was not reached.
    """
    if terminated is not None or reached < len(turns):
        return Outcome(success=False, turns=turns, failure=FORCE_TERMINATED, failed_turn=terminated)
    for index, turn in enumerate(turns):
        failure = _failure(turn)
        if failure is not None:
            return Outcome(success=False, turns=turns, failure=failure, failed_turn=index)
    return Outcome(success=True, turns=turns)


def _failure(turn: TurnOutcome) -> str | None:
    if not turn.reference_calls:
        return None
    if not turn.calls:
        return EMPTY_TURN
    if turn.checker_error is not None:
        return CHECKER_ERROR
    if not turn.state:
        return STATE_MISMATCH
    return None if turn.response else RESPONSE_MISMATCH
