"""Compute the outcome of an AppWorld episode by the benchmark's checks, or by comparison with the reference.

Answers to a task are compared by content, which is the benchmark's rule: 5, "5" and "5.0" are one answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from environments.appworld.records import NO_OP_FAIL, NOT_GIVEN, Check, Difference, Evaluation, ModelChanges
from environments.base import FailureNames, Outcome, Record, TurnOutcome, outcome_of_turns

_QUOTES = ("'", '"')


def same_answer(one: JsonValue, other: JsonValue) -> bool:
    """Return whether two answers are equal by content.

    Case, outer white space, a pair of quotes around a text and the order of a list's items do not matter, and neither
    does how a number is written; numbers are compared to two decimals.
    """
    return _said(one) == _said(other)


def _said(answer: JsonValue) -> str:
    if isinstance(answer, list):
        return " | ".join(sorted(_said(item) for item in answer))
    text = "null" if answer is None else str(answer).strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in _QUOTES:
        text = text[1:-1]
    try:
        number = float(text)
    except ValueError:
        return text.strip().casefold()
    return str(round(number, 2)) if math.isfinite(number) else text.casefold()


CHECKS_FAILED = "appworld:checks_failed"
STATE_MISMATCH = "appworld:state_mismatch"
RESPONSE_MISMATCH = "appworld:answer_mismatch"
NOT_REACHED = "appworld:turn_not_reached"
WORLD_LOST = "appworld:world_lost"
"""The agent's code ended or damaged its world (``client.WorldLost``)."""
_FAILURES = FailureNames(STATE_MISMATCH, RESPONSE_MISMATCH, NOT_REACHED)
_ANSWER_CHECK = "assert answers match."  # how the package's evaluations name the check of the answer


class PlayedTurn(Record):
    """A played turn: numbers of calls and malformed actions, and the world's difference after it.

    ``end`` is None when the agent's code lost the world.
    """

    calls: int
    malformed: int
    end: Difference | None


class ReferenceTurn(Record):
    """A turn of the reference: its calls, whether one fails, and the world's difference after it.

    ``untouched`` is the difference before the first turn, made by the setup.
    """

    calls: int
    error: bool
    end: Difference
    untouched: dict[str, ModelChanges] = {}

    @property
    def answers(self) -> bool:
        """Return whether it gave an answer by the end of the turn; completing a task without one does not count."""
        return self.end.answer is not None and self.end.answer != NOT_GIVEN


def against_reference(played: Sequence[PlayedTurn], wanted: Sequence[ReferenceTurn], reached: int) -> Outcome:
    """Return the outcome of a task of ours.

    After every turn that the reference acts in, the databases differ from the start as the reference's do (``state``:
    anything else that changed fails), and the task's status and answer are the reference's (``response``). ``played``
    has an entry for each turn of ``wanted``; ``reached`` is how many the agent was shown.

    ``partial`` counts the checks of state and response that fail when an agent only marks the task complete: a turn's
    state where the reference has changed something by then, its response where it has given an answer.
    """
    turns = tuple(_compared(*pair) for pair in zip(played, wanted, strict=True))
    partial = _share([passed for pair in zip(turns, wanted, strict=True) for passed in _earned(*pair)])
    lost = next((index for index, turn in enumerate(played) if turn.end is None), None)
    if lost is not None:
        return Outcome(success=False, turns=turns, failure=WORLD_LOST, failed_turn=lost, partial=partial)
    return outcome_of_turns(turns, reached, _FAILURES, partial)


def against_checks(calls: int, malformed: int, reference_calls: int, evaluation: Evaluation | None) -> Outcome:
    """Return the outcome of an official task, whose single turn made ``calls``: success when every check passes.

    Without an ``evaluation`` the agent's code lost the world: a failure with ``partial`` 0.

    ``response`` is the check of the answer, which the package's evaluations name alike, None where a task has none;
    ``state`` says whether all other checks pass, None where there are none. Checks of the calls that were made, which
    some tasks have, count as state. ``partial`` is the share of the checks labelled no_op_fail that pass.
    """
    if evaluation is None:
        turn = TurnOutcome(calls=calls, malformed=malformed, reference_calls=reference_calls, state=False)
        return Outcome(success=False, turns=(turn,), failure=WORLD_LOST, failed_turn=0, partial=0.0)
    answer = _all_pass(evaluation, of_answer=True)
    state = _all_pass(evaluation, of_answer=False)
    turn = TurnOutcome(calls=calls, malformed=malformed, reference_calls=reference_calls, state=state, response=answer)
    partial = _share(
        [True for check in evaluation.passes if check.label == NO_OP_FAIL]
        + [False for check in evaluation.failures if check.label == NO_OP_FAIL]
    )
    if evaluation.success:
        return Outcome(success=True, turns=(turn,), partial=partial)
    failure = STATE_MISMATCH if state is False else RESPONSE_MISMATCH if answer is False else CHECKS_FAILED
    return Outcome(success=False, turns=(turn,), failure=failure, failed_turn=0, partial=partial)


def _compared(played: PlayedTurn, wanted: ReferenceTurn) -> TurnOutcome:
    checks = TurnOutcome(
        calls=played.calls, malformed=played.malformed, reference_calls=wanted.calls, reference_error=wanted.error
    )
    if not wanted.calls:
        return checks
    if played.end is None:
        return checks.model_copy(update={"state": False, "response": False})
    said = played.end.status == wanted.end.status and same_answer(played.end.answer, wanted.end.answer)
    return checks.model_copy(update={"state": played.end.changes == wanted.end.changes, "response": said})


def _earned(turn: TurnOutcome, wanted: ReferenceTurn) -> Iterator[bool]:
    """Yield, for each check of the turn that an agent without actions fails, whether it passes."""
    if turn.state is not None and wanted.end.changes != wanted.untouched:
        yield turn.state
    if turn.response is not None and wanted.answers:
        yield turn.response


def _share(passed: Sequence[bool]) -> float:
    """Return the share of checks that passed; 0 without a check."""
    return sum(passed) / len(passed) if passed else 0.0


def _all_pass(evaluation: Evaluation, *, of_answer: bool) -> bool | None:
    failed = [check for check in evaluation.failures if _is_of_answer(check) is of_answer]
    passed = [check for check in evaluation.passes if _is_of_answer(check) is of_answer]
    return not failed if failed or passed else None


def _is_of_answer(check: Check) -> bool:
    return check.requirement.strip().casefold() == _ANSWER_CHECK
