"""Outcomes: every turn's checks, whatever failed before, and the one that decides."""

import pytest
from support.bfcl_tasks import FUEL, LIGHTS, LOCK, PRESS, START, started, task_of

from environments.base import TaskSpec, ToolCall, TurnOutcome
from environments.bfcl.benchmark import REFERENCES, official_outcome
from environments.bfcl.official import tool_names

SPEED = ToolCall(name="get_current_speed")


def played(task, *turns):
    episode, _ = started(task)
    for index, calls in enumerate(turns):
        for call in calls:
            episode.step(call)
        if index + 1 < len(turns):
            episode.end_turn()
    return episode.outcome()


def test_later_turns_are_checked_after_a_failure():
    task = task_of((LIGHTS,), (FUEL,), (LOCK,))
    outcome = played(task, [FUEL], [LIGHTS], [LOCK])
    assert (outcome.failure, outcome.failed_turn) == ("multi_turn:instance_state_mismatch", 0)
    assert [(turn.state, turn.response) for turn in outcome.turns] == [(False, False), (True, True), (True, True)]


@pytest.mark.parametrize(
    ("calls", "failure", "checks"),
    [
        ([LOCK, PRESS, START], None, (True, True, True)),
        ([PRESS, LOCK, START], None, (True, True, True)),
        ([FUEL, LOCK, PRESS, START, FUEL], None, (True, True, True)),
        ([], "multi_turn:empty_turn_model_response", (False, False, False)),
        ([LOCK, PRESS], "multi_turn:instance_state_mismatch", (True, False, False)),
        ([LOCK, PRESS, START, LIGHTS], "multi_turn:instance_state_mismatch", (True, False, True)),
        ([START, LOCK, PRESS], "multi_turn:instance_state_mismatch", (True, False, False)),
    ],
)
def test_checks_of_one_turn(calls, failure, checks):
    outcome = played(task_of((LOCK, PRESS, START)), calls)
    turn = outcome.turns[0]
    assert outcome.failure == failure
    assert (turn.instances, turn.state, turn.response) == checks
    assert (turn.calls, turn.reference_calls) == (len(calls), 3)


def test_an_answer_of_an_earlier_turn_counts_and_each_answer_once():
    task = task_of((LIGHTS,), (FUEL, FUEL))
    assert played(task, [LIGHTS, FUEL], [FUEL]).success
    assert played(task, [LIGHTS], [FUEL]).failure == "multi_turn:execution_response_mismatch"


def test_a_turn_without_reference_has_no_checks_and_calls_there_show_in_the_state():
    task = task_of((), (FUEL,))
    outcome = played(task, [FUEL], [FUEL])
    assert outcome.success
    assert (outcome.turns[0].instances, outcome.turns[0].state, outcome.turns[0].response) == (None, None, None)
    outcome = played(task, [LIGHTS], [FUEL])
    assert (outcome.failure, outcome.failed_turn) == ("multi_turn:instance_state_mismatch", 1)


def test_turns_not_reached_are_a_forced_termination_that_blames_no_turn():
    outcome = played(task_of((LIGHTS,), (FUEL,)), [LIGHTS])
    assert (outcome.success, outcome.failure, outcome.failed_turn) == (False, "multi_turn:force_terminated", None)
    assert len(outcome.turns) == 2


def test_extra_draws_of_the_random_numbers_show_in_the_response():
    task = task_of((SPEED,))
    assert played(task, [SPEED]).success
    second = task_of((SPEED, SPEED))
    assert played(second, [SPEED]).failure == "multi_turn:execution_response_mismatch"


def test_a_reference_that_fails_is_told():
    outcome = played(task_of((START,), (FUEL,)), [START], [FUEL])
    assert [turn.reference_error for turn in outcome.turns] == [True, False]


def test_two_trees_that_contain_themselves_cannot_be_compared():
    mkdir = ToolCall(name="mkdir", arguments={"dir_name": "a"})
    copy = ToolCall(name="cp", arguments={"source": "a", "destination": "a"})
    task = TaskSpec(
        environment="bfcl",
        split="train",
        classes=("GorillaFileSystem",),
        turns=("copy",),
        initial_state={},
        tools=tool_names(["GorillaFileSystem"]),
        reference=((mkdir, copy),),
    )
    outcome = played(task, [mkdir, copy])
    assert (outcome.success, outcome.failure) == (False, "multi_turn:checker_error")
    assert outcome.turns[0].state is None
    assert outcome.turns[0].response is True
    assert "contains itself" in outcome.turns[0].checker_error
    assert played(task, [mkdir]).failure == "multi_turn:instance_state_mismatch"


def test_the_reference_is_replayed_once_a_task():
    task = task_of((LIGHTS,))
    assert REFERENCES.of(task) is REFERENCES.of(task.model_copy(update={"task_id": "other"}))


def test_tasks_that_differ_in_setup_alone_have_references_of_their_own():
    bare, prepared = task_of((START,)), task_of((START,), setup=(LOCK, PRESS))
    assert REFERENCES.of(bare)[0].error
    assert not REFERENCES.of(prepared)[0].error


def test_no_check_of_turns_beyond_the_first_failure_is_lost():
    turns = (
        TurnOutcome(calls=0, reference_calls=1, instances=False, state=True, response=True),
        TurnOutcome(calls=1, reference_calls=1, instances=True, state=False, response=False),
    )
    outcome = official_outcome(turns, reached=2, terminated=None)
    assert (outcome.failure, outcome.failed_turn) == ("multi_turn:empty_turn_model_response", 0)
    assert outcome.turns == turns
