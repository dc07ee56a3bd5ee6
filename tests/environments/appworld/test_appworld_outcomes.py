"""Results as a pure function of what was done: tables of turns, differences, answers and checks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue
from support import ROOT

from environments.appworld.benchmark import BENCHMARK, VERSION
from environments.appworld.episode import (
    CHECKS_FAILED,
    NOT_REACHED,
    RESPONSE_MISMATCH,
    STATE_MISMATCH,
    PlayedTurn,
    ReferenceTurn,
    against_checks,
    against_reference,
    same_answer,
)
from environments.appworld.records import NOT_GIVEN, Check, Difference, Evaluation, ModelChanges

ANSWER_CHECK = "assert answers match."
answers = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text(), max_size=3)


def difference(*titles: str, answer: JsonValue = None, status: str | None = "success") -> Difference:
    added = tuple({"title": title} for title in titles)
    changes = {"simple_note.Note": ModelChanges(added=added, updated=(), removed=())} if added else {}
    return Difference(changes=changes, status=status, answer=answer)


def played(end: Difference) -> PlayedTurn:
    return PlayedTurn(calls=2, malformed=1, end=end)


def wanted(end: Difference, calls: int = 1) -> ReferenceTurn:
    return ReferenceTurn(calls=calls, error=False, end=end)


@pytest.mark.parametrize(
    ("end", "failure"),
    [
        (difference("a", answer=5), None),
        (difference("a", answer=" 5.0"), None),
        (difference(answer=5), STATE_MISMATCH),
        (difference("a", "b", answer=5), STATE_MISMATCH),
        (difference("a", answer=6), RESPONSE_MISMATCH),
        (difference("a", answer=5, status="fail"), RESPONSE_MISMATCH),
        (difference("b", answer=6), STATE_MISMATCH),
    ],
)
def test_changes_status_and_answer_are_the_references(end: Difference, failure: str | None) -> None:
    outcome = against_reference([played(end)], [wanted(difference("a", answer=5))], 1)
    assert (outcome.success, outcome.failure) == (failure is None, failure)
    assert outcome.failed_turn == (None if failure is None else 0)
    (turn,) = outcome.turns
    assert (turn.calls, turn.malformed, turn.reference_calls) == (2, 1, 1)


def test_all_checks_of_all_turns_are_told() -> None:
    right, wrong = difference("a"), difference("b", answer="x")
    outcome = against_reference([played(wrong), played(right), played(wrong)], [wanted(right)] * 3, 3)
    assert [(turn.state, turn.response) for turn in outcome.turns] == [(False, False), (True, True), (False, False)]
    assert outcome.failed_turn == 0


def test_turns_without_a_reference_are_not_checked_but_must_be_reached() -> None:
    turns = [wanted(difference("a")), wanted(difference("a"), calls=0)]
    ends = [played(difference("a")), played(difference("b"))]
    assert against_reference(ends, turns, 2).success
    unreached = against_reference(ends, turns, 1)
    assert (unreached.failure, unreached.failed_turn) == (NOT_REACHED, 1)
    assert unreached.turns[1].state is None


@pytest.mark.parametrize(
    ("passes", "failures", "checks", "failure"),
    [
        ((ANSWER_CHECK, "notes"), (), (True, True), None),
        (("notes",), (), (True, None), None),
        ((ANSWER_CHECK,), (), (None, True), None),
        ((ANSWER_CHECK,), ("notes",), (False, True), STATE_MISMATCH),
        (("notes",), (ANSWER_CHECK,), (True, False), RESPONSE_MISMATCH),
        ((), (ANSWER_CHECK, "notes"), (False, False), STATE_MISMATCH),
        ((), (), (None, None), CHECKS_FAILED),
    ],
)
def test_official_checks_are_told_as_state_and_response(passes, failures, checks, failure) -> None:  # type: ignore[no-untyped-def]
    evaluation = Evaluation(
        success=failure is None,
        passes=tuple(Check(requirement=one, label="no_op_fail") for one in passes),
        failures=tuple(Check(requirement=one, label="no_op_fail") for one in failures),
    )
    outcome = against_checks(3, 1, 1, evaluation)
    (turn,) = outcome.turns
    assert (turn.state, turn.response) == checks
    assert (outcome.success, outcome.failure) == (failure is None, failure)


@pytest.mark.parametrize(
    ("end", "reference", "partial"),
    [
        (difference("a", answer=5), difference("a", answer=5), 1.0),
        (difference("a"), difference("a", answer=5), 0.5),
        (difference("a", "b", answer=5), difference("a", answer=5), 0.5),
        (difference(answer=6), difference("a", answer=5), 0.0),
        (difference(status=None, answer=NOT_GIVEN), difference("a", answer=5), 0.0),
        (difference(), difference("a"), 0.0),
        (difference("a", status=None, answer=NOT_GIVEN), difference("a"), 1.0),
        (difference("a", answer=5), difference(answer=5), 1.0),
        (difference("a"), difference(), 0.0),
    ],
)
def test_how_far_it_got_counts_what_marking_as_complete_does_not_earn(
    end: Difference, reference: Difference, partial: float
) -> None:
    assert against_reference([played(end)], [wanted(reference)], 1).partial == partial


def test_what_the_setup_did_earns_nothing() -> None:
    prepared = difference("a", status=None)
    kept = wanted(difference("a")).model_copy(update={"untouched": prepared.changes})
    made = wanted(difference("a", "b")).model_copy(update={"untouched": prepared.changes})
    assert against_reference([played(prepared)] * 2, [kept, made], 2).partial == 0.0
    right = [played(difference("a")), played(difference("a", "b"))]
    assert against_reference(right, [kept, made], 2).partial == 1.0


def test_every_turn_counts() -> None:
    turns = [wanted(difference("a")), wanted(difference("a"), calls=0), wanted(difference("a", "b", answer=1))]
    right = [played(difference("a")), played(difference("a")), played(difference("a", "b", answer=1))]
    assert against_reference(right, turns, 3).partial == 1.0
    assert against_reference([*right[:2], played(difference("a", "b", answer=2))], turns, 3).partial == 2 / 3
    assert against_reference(right[:1] + [played(difference("c"))] * 2, turns, 1).partial == 1 / 3


checks = st.lists(
    st.builds(Check, requirement=st.text(max_size=5), label=st.sampled_from(["no_op_fail", "no_op_pass", None]))
)


@given(checks, checks)
def test_an_official_task_pays_for_checks_that_doing_nothing_fails(passes: list[Check], failures: list[Check]) -> None:
    evaluation = Evaluation(success=not failures, passes=tuple(passes), failures=tuple(failures))
    partial = against_checks(1, 0, 1, evaluation).partial
    assert partial is not None
    passed, failed = ([check for check in some if check.label == "no_op_fail"] for some in (passes, failures))
    assert partial * (len(passed) + len(failed)) == pytest.approx(len(passed))
    idle = evaluation.model_copy(update={"passes": tuple(c for c in passes if c.label != "no_op_fail")})
    assert against_checks(0, 0, 1, idle).partial == 0.0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (5, "5", True),
        (5, "5.0", True),
        (2.004, "2", True),
        (2.006, 2, False),
        ("Yes", " 'yes' ", True),
        (["b", "a"], ["A", "b"], True),
        (["a"], ["a", "a"], False),
        (None, "null", True),
        (None, "", False),
        (None, "<<NOT_GIVEN>>", False),
        ("it's", "its", False),
        ("1e400", "inf", False),
    ],
)
def test_answers_are_compared_by_what_they_say(one: JsonValue, other: JsonValue, same: bool) -> None:
    assert same_answer(one, other) is same
    assert same_answer(other, one) is same


@given(answers)
def test_every_answer_is_itself(answer: JsonValue) -> None:
    assert same_answer(answer, answer)


def test_the_version_of_a_card_is_the_one_that_is_installed() -> None:
    pinned = (ROOT / "environments" / "appworld" / "requirements.txt").read_text()
    assert f"appworld=={VERSION}\n" in pinned
    assert VERSION in BENCHMARK.data
