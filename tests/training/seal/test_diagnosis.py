"""Labels and causes: a trajectory acted out in BFCL for each of them, and the profile of a batch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.diagnosed_episodes import (
    BABBLE,
    BFCL,
    DARK,
    FUEL,
    LIGHTS,
    LOCK,
    MKDIR,
    PRESS,
    START,
    TOOLS,
    acted,
    call,
    task_of,
)

from environments.base import TurnOutcome
from training.seal.diagnosis import diagnose, turn_label
from training.seal.failure_profile import ErrorStatistics, FailureProfile, error_statistics, failure_profile
from training.seal.interface import learning_interface
from training.seal.labels import FAILED, TurnCause, TurnLabel
from training.seal.settings import InterfaceSettings

L, C = TurnLabel, TurnCause
PREPARED = [LOCK, PRESS, START]
COPY = call("cp", source="a", destination="a")


def found(task, trajectory):
    diagnosis = diagnose(trajectory, task, TOOLS)
    assert diagnosis is not None
    assert diagnosis.success == trajectory.success
    return [(turn.turn, turn.label, turn.cause) for turn in diagnosis.turns]


LABELLED = [
    pytest.param([[START]], [[START]], [L.PASS], id="the reference is answered with an error, like the policy"),
    pytest.param([[START]], [[FUEL]], [L.RESPONSE_MISMATCH], id="the reference is answered with an error"),
    pytest.param([[]], [[FUEL]], [L.SPURIOUS_TOOL_CALL], id="a call where none was wanted"),
    pytest.param([[]], [[BABBLE]], [L.CORRECT_ABSTENTION], id="no call, where nothing was wanted"),
    pytest.param([[]], [[]], [L.CORRECT_ABSTENTION], id="nothing, as wanted"),
    pytest.param([[FUEL]], [[]], [L.EMPTY_TURN], id="nothing where a call was wanted"),
    pytest.param([[FUEL]], [[BABBLE]], [L.EMPTY_TURN], id="nothing that is a call"),
    pytest.param([[MKDIR, COPY]], [[MKDIR, COPY]], [L.CHECKER_ERROR], id="two trees that contain themselves"),
    pytest.param([[LIGHTS]], [[LIGHTS, LOCK]], [L.STATE_MISMATCH], id="more changed than wanted"),
    pytest.param([[LIGHTS, FUEL]], [[FUEL]], [L.STATE_MISMATCH], id="the state is looked at before the answers"),
    pytest.param([[FUEL]], [[call("check_tire_pressure")]], [L.RESPONSE_MISMATCH], id="another answer than wanted"),
    pytest.param([[FUEL]], [[FUEL, FUEL]], [L.PASS], id="as wanted and reading twice"),
    pytest.param(
        [[START], [], [LIGHTS], [FUEL]],
        [[], [], [], [FUEL]],
        [L.EMPTY_TURN, L.CORRECT_ABSTENTION, L.EMPTY_TURN, L.STATE_MISMATCH],
        id="every turn has a label, whatever failed before",
    ),
]


@pytest.mark.parametrize(("reference", "turns", "labels"), LABELLED)
def test_labels(reference, turns, labels):
    task = task_of(*reference)
    assert [label for _, label, _ in found(task, acted(task, *turns))] == labels


def test_bfcl_gives_every_label_but_two():
    """One is hidden by another; a reference that raises is a fault of the environment, which has no labels."""
    given_by_bfcl = {label for case in LABELLED for label in case.values[2]}
    assert given_by_bfcl == set(TurnLabel) - {L.INSTANCE_MISMATCH, L.GT_ERROR}
    other = TurnOutcome(calls=1, reference_calls=1, instances=False, state=False, response=False)
    assert turn_label(other) is L.INSTANCE_MISMATCH


@pytest.mark.parametrize(
    ("turns", "cut_off", "diagnosed"),
    [
        ([[]], True, []),
        ([[FUEL]], True, [(0, L.PASS, None)]),
        ([[FUEL]], False, [(0, L.PASS, None)]),
        ([[FUEL], []], True, [(0, L.PASS, None)]),
        ([[FUEL], []], False, [(0, L.PASS, None), (1, L.CORRECT_ABSTENTION, None)]),
    ],
)
def test_a_turn_that_holds_nothing_of_the_policy_is_no_abstention(turns, cut_off, diagnosed):
    task = task_of([FUEL], [])
    assert found(task, acted(task, *turns, cut_off=cut_off)) == diagnosed


@pytest.mark.parametrize(
    ("turns", "cut_off", "labels"),
    [
        ([[]], True, [L.EMPTY_TURN, L.CORRECT_ABSTENTION, L.EMPTY_TURN, L.EMPTY_TURN]),
        ([[FUEL]], True, [L.PASS, L.CORRECT_ABSTENTION, L.EMPTY_TURN, L.EMPTY_TURN]),
        ([[FUEL], [LIGHTS], []], True, [L.PASS, L.SPURIOUS_TOOL_CALL, L.EMPTY_TURN, L.EMPTY_TURN]),
        ([[FUEL], [], [FUEL], []], False, [L.PASS, L.CORRECT_ABSTENTION, L.PASS, L.EMPTY_TURN]),
    ],
)
def test_turns_that_were_not_reached_are_padded_as_turns_without_a_call(turns, cut_off, labels):
    task = task_of([FUEL], [], [FUEL], [START])
    trajectory = acted(task, *turns, cut_off=cut_off)
    padded = diagnose(trajectory, task, TOOLS, unreached="padded")
    assert [(turn.turn, turn.label) for turn in padded.turns] == list(enumerate(labels))
    assert {turn.cause for turn in padded.turns if turn.label is L.EMPTY_TURN} <= {C.MISSING_CALL}
    played = diagnose(trajectory, task, TOOLS, unreached="left_out")
    assert played.turns == padded.turns[: len(played.turns)]


CAUSED = [
    pytest.param([PREPARED], [[BABBLE]], C.INVALID_CALL, id="no call"),
    pytest.param([PREPARED], [[call("start")]], C.INVALID_CALL, id="no tool of this name"),
    pytest.param([PREPARED], [[call("startEngine")]], C.INVALID_CALL, id="an argument is missing"),
    pytest.param([PREPARED], [[LOCK, call("startEngine"), PRESS]], C.INVALID_CALL, id="the tool was not called again"),
    pytest.param([[LIGHTS]], [[DARK]], C.WRONG_ARGUMENT, id="another value"),
    pytest.param([[PRESS]], [[call("pressBrakePedal", pedalPosition=3)]], C.WRONG_ARGUMENT, id="a value refused"),
    pytest.param([[LIGHTS]], [[call("setHeadlights"), DARK]], C.WRONG_ARGUMENT, id="corrected to another value"),
    pytest.param([PREPARED], [[START]], C.NO_RECOVERY, id="the right call too early, and no more"),
    pytest.param([[FUEL]], [[START]], C.NO_RECOVERY, id="a refused call that nobody asked for, and no more"),
    pytest.param([[]], [[START]], C.SURPLUS_CALL, id="a refused call that ran where none was wanted"),
    pytest.param([[]], [[call("start")]], C.INVALID_CALL, id="a call that did not run where none was wanted"),
    pytest.param([PREPARED], [[LOCK, PRESS]], C.MISSING_CALL, id="ended early"),
    pytest.param([PREPARED], [[]], C.MISSING_CALL, id="nothing called"),
    pytest.param([[LIGHTS, FUEL]], [[BABBLE, LIGHTS]], C.MISSING_CALL, id="an error that was recovered from"),
    pytest.param([[LIGHTS]], [[LIGHTS, LOCK]], C.SURPLUS_CALL, id="one call too many"),
    pytest.param([[]], [[LIGHTS]], C.SURPLUS_CALL, id="a call where none was wanted"),
    pytest.param([[LIGHTS, DARK]], [[DARK, LIGHTS]], C.WRONG_ORDER, id="the last change was to be the first"),
    pytest.param([[LIGHTS], [FUEL]], [[LOCK], [FUEL]], C.EARLIER_TURN, id="the state was wrong before"),
    pytest.param(
        [[MKDIR], [call("cd", folder="a")], [call("touch", file_name="f")]],
        [[MKDIR], [call("ls")], [call("touch", file_name="f")]],
        C.EARLIER_TURN,
        id="the working directory, which no check compares, was wrong before",
    ),
]


@pytest.mark.parametrize(("reference", "turns", "cause"), CAUSED)
def test_causes(reference, turns, cause):
    task = task_of(*reference)
    _, label, given_cause = found(task, acted(task, *turns))[-1]
    assert label in FAILED
    assert given_cause is cause


def test_every_cause_has_its_case():
    assert {case.values[2] for case in CAUSED} == set(TurnCause)


def test_documented_defaults_and_the_order_of_choices_make_no_other_call():
    doors = [*LOCK.arguments["door"]]
    task = task_of([LOCK], [LIGHTS])
    again = acted(task, [call("lockDoors", unlock=False, door=doors[::-1])], [DARK])
    assert found(task, again) == [(0, L.PASS, None), (1, L.STATE_MISMATCH, C.WRONG_ARGUMENT)]


def test_infrastructure_errors_have_no_diagnosis():
    task = task_of([FUEL])
    played = acted(task, [FUEL])
    crashed = played.model_copy(update={"outcome": None, "reward": None, "infrastructure_error": "worker died"})
    assert diagnose(crashed, task, TOOLS) is None


outcomes = st.builds(
    TurnOutcome,
    calls=st.integers(0, 2),
    malformed=st.integers(0, 1),
    reference_calls=st.integers(0, 2),
    reference_error=st.booleans(),
    instances=st.sampled_from([None, True, False]),
    state=st.sampled_from([None, True, False]),
    response=st.sampled_from([None, True, False]),
    checker_error=st.sampled_from([None, "recursed"]),
)


@settings(deadline=None)
@given(outcomes)
def test_the_order_of_the_decision_is_that_of_the_labels(checks):
    """Each label's own condition; the first that holds is the label."""
    quiet = not checks.calls
    holds = {
        L.SPURIOUS_TOOL_CALL: not checks.reference_calls and not quiet,
        L.CORRECT_ABSTENTION: not checks.reference_calls and quiet,
        L.EMPTY_TURN: not checks.calls,
        L.INSTANCE_MISMATCH: checks.instances is False,
        L.CHECKER_ERROR: checks.checker_error is not None,
        L.STATE_MISMATCH: checks.state is False,
        L.RESPONSE_MISMATCH: checks.response is False,
        L.PASS: True,
    }
    assert turn_label(checks) is next(label for label in holds if holds[label])


def batch():
    """Two turns; four rollouts that were evaluated, one that was not."""
    task = task_of([], [LIGHTS])
    played = [
        acted(task, [], [LIGHTS]),
        acted(task, [FUEL], [LIGHTS]),
        acted(task, [FUEL], []),
        acted(task, [], [call("setHeadlights"), DARK]),
    ]
    crashed = played[0].model_copy(update={"outcome": None, "reward": None, "infrastructure_error": "worker died"})
    return task, [*played, crashed]


def test_the_profile_counts_turns_and_the_results_of_their_trajectories():
    task, trajectories = batch()
    profile = failure_profile([diagnose(one, task, TOOLS) for one in trajectories], trajectories)
    assert (profile.trajectories, profile.left_out, profile.turns) == (4, 1, 8)
    assert {label: (s.count, s.prevalence, s.mean_reward) for label, s in profile.labels.items()} == {
        L.SPURIOUS_TOOL_CALL: (2, 0.25, 0.5),
        L.CORRECT_ABSTENTION: (2, 0.25, 0.5),
        L.EMPTY_TURN: (1, 0.125, 0.0),
        L.STATE_MISMATCH: (1, 0.125, 0.0),
        L.PASS: (2, 0.25, 1.0),
    }
    assert profile.causes == {C.MISSING_CALL: 1, C.SURPLUS_CALL: 2, C.WRONG_ARGUMENT: 1}
    assert profile.errors == ErrorStatistics(errors=1, recovered=1)
    assert FailureProfile.model_validate_json(profile.model_dump_json()) == profile
    backwards = trajectories[::-1]
    assert failure_profile([diagnose(one, task, TOOLS) for one in backwards], backwards) == profile


def test_excluded_labels_are_in_no_share():
    task = task_of([MKDIR, COPY], [])
    trajectories = [acted(task, [MKDIR, COPY], [])]
    profile = failure_profile([diagnose(one, task, TOOLS) for one in trajectories], trajectories)
    assert profile.turns == 1
    assert profile.of(L.CORRECT_ABSTENTION).prevalence == 1.0
    assert (profile.of(L.CHECKER_ERROR).count, profile.of(L.CHECKER_ERROR).prevalence) == (1, 0.0)
    assert failure_profile([], []) == FailureProfile()
    with pytest.raises(ValueError, match="longer"):
        failure_profile([], trajectories)


def test_hints_are_counted_with_what_became_of_them():
    hinting = learning_interface(BFCL, InterfaceSettings())
    task = task_of([LIGHTS])
    tries = [[call("setHeadlights"), LIGHTS], [call("setHeadlights"), LOCK], [BABBLE, LOCK], [START, LOCK]]
    hinted = [acted(task, actions, environment=hinting) for actions in tries]
    plain = [acted(task, actions) for actions in tries]
    found = error_statistics(hinted)
    assert found == ErrorStatistics(
        errors=4, recovered=2, succeeded=1, hinted=3, hinted_recovered=2, hinted_succeeded=1
    )
    assert found.unhinted == ErrorStatistics(errors=1)
    assert error_statistics(plain) == ErrorStatistics(errors=4, recovered=2, succeeded=1)
    assert ErrorStatistics.total(error_statistics([one]) for one in hinted) == found
    assert ErrorStatistics.total([]) == ErrorStatistics()
    diagnoses = [diagnose(one, task, TOOLS) for one in hinted]
    assert diagnoses == [diagnose(one, task, TOOLS) for one in plain]
