"""The verdict on an AppWorld episode: against the benchmark's checks, or against what the reference does."""

from __future__ import annotations

from collections.abc import Sequence

from environments.appworld.answers import same_answer
from environments.appworld.records import Check, Difference, Evaluation
from environments.base import Outcome, Record, TurnOutcome

CHECKS_FAILED = "appworld:checks_failed"
STATE_MISMATCH = "appworld:state_mismatch"
RESPONSE_MISMATCH = "appworld:answer_mismatch"
NOT_REACHED = "appworld:turn_not_reached"
_ANSWER_CHECK = "assert answers match."  # how the package's evaluations name the check of the answer


class PlayedTurn(Record):
    """A turn as it stands: actions that were calls, actions that were none, and the world's difference after it."""

    calls: int
    malformed: int
    end: Difference


class ReferenceTurn(Record):
    """What the reference does in a turn: its calls, whether one fails, and the world's difference after it."""

    calls: int
    error: bool
    end: Difference


def against_reference(played: Sequence[PlayedTurn], wanted: Sequence[ReferenceTurn], reached: int) -> Outcome:
    """The verdict on a task of ours.

    After every turn that the reference acts in, the databases differ from the start as the reference's do (``state``:
    anything else that changed fails), and the task's status and answer are the reference's (``response``). ``played``
    has an entry for each turn of ``wanted``; ``reached`` is how many the agent was shown.
    """
    turns = tuple(_compared(*pair) for pair in zip(played, wanted, strict=True))
    for index, turn in enumerate(turns):
        if turn.state is False or turn.response is False:
            failure = STATE_MISMATCH if turn.state is False else RESPONSE_MISMATCH
            return Outcome(success=False, turns=turns, failure=failure, failed_turn=index)
    if reached < len(turns):
        return Outcome(success=False, turns=turns, failure=NOT_REACHED, failed_turn=reached)
    return Outcome(success=True, turns=turns)


def against_checks(calls: int, malformed: int, reference_calls: int, evaluation: Evaluation) -> Outcome:
    """The verdict on an official task, whose single turn made ``calls``: success when every check passes.

    ``response`` is the check of the answer, which the package's evaluations name alike, None where a task has none;
    ``state`` says whether all other checks pass, None where there are none. Checks of the calls that were made, which
    some tasks have, count as state.
    """
    answer = _all_pass(evaluation, of_answer=True)
    state = _all_pass(evaluation, of_answer=False)
    turn = TurnOutcome(calls=calls, malformed=malformed, reference_calls=reference_calls, state=state, response=answer)
    if evaluation.success:
        return Outcome(success=True, turns=(turn,))
    failure = STATE_MISMATCH if state is False else RESPONSE_MISMATCH if answer is False else CHECKS_FAILED
    return Outcome(success=False, turns=(turn,), failure=failure, failed_turn=0)


def _compared(played: PlayedTurn, wanted: ReferenceTurn) -> TurnOutcome:
    checks = TurnOutcome(
        calls=played.calls, malformed=played.malformed, reference_calls=wanted.calls, reference_error=wanted.error
    )
    if not wanted.calls:
        return checks
    said = played.end.status == wanted.end.status and same_answer(played.end.answer, wanted.end.answer)
    return checks.model_copy(update={"state": played.end.changes == wanted.end.changes, "response": said})


def _all_pass(evaluation: Evaluation, *, of_answer: bool) -> bool | None:
    failed = [check for check in evaluation.failures if _is_of_answer(check) is of_answer]
    passed = [check for check in evaluation.passes if _is_of_answer(check) is of_answer]
    return not failed if failed or passed else None


def _is_of_answer(check: Check) -> bool:
    return check.requirement.strip().casefold() == _ANSWER_CHECK
