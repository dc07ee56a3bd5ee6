"""Labels: a trajectory acted out in BFCL for each of them, and the profile of a batch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bfcl_tasks import (
    DARK,
    FUEL,
    LIGHTS,
    LOCK,
    MKDIR,
    START,
    acted_out,
    call,
    task_of,
)

from environments.base import MalformedCall, TurnOutcome
from training.seal.diagnosis import FailureProfile, TurnLabel, diagnose, failure_profile, turn_label

L = TurnLabel
BABBLE = MalformedCall(text="open sesame", reason="not a call")
COPY = call("cp", source="a", destination="a")


def found(trajectory):
    diagnosis = diagnose(trajectory)
    assert diagnosis is not None
    assert diagnosis.success == trajectory.success
    return list(diagnosis.turns)


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
    assert found(acted_out(task, *turns)) == labels


def test_bfcl_gives_every_label_but_two():
    """One is hidden by another; a reference that raises is a fault of the environment, which has no labels."""
    given_by_bfcl = {label for case in LABELLED for label in case.values[2]}
    assert given_by_bfcl == set(TurnLabel) - {L.INSTANCE_MISMATCH, L.GT_ERROR}
    other = TurnOutcome(calls=1, reference_calls=1, instances=False, state=False, response=False)
    assert turn_label(other) is L.INSTANCE_MISMATCH


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
    assert found(acted_out(task, *turns, cut_off=cut_off)) == labels


def test_infrastructure_errors_have_no_diagnosis():
    task = task_of([FUEL])
    played = acted_out(task, [FUEL])
    crashed = played.model_copy(update={"outcome": None, "reward": None, "infrastructure_error": "worker died"})
    assert diagnose(crashed) is None


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
        acted_out(task, [], [LIGHTS]),
        acted_out(task, [FUEL], [LIGHTS]),
        acted_out(task, [FUEL], []),
        acted_out(task, [], [call("setHeadlights"), DARK]),
    ]
    crashed = played[0].model_copy(update={"outcome": None, "reward": None, "infrastructure_error": "worker died"})
    return [*played, crashed]


def test_the_profile_counts_turns_and_the_results_of_their_trajectories():
    trajectories = batch()
    profile = failure_profile([diagnose(one) for one in trajectories])
    assert (profile.trajectories, profile.left_out, profile.turns) == (4, 1, 8)
    assert {label: (s.count, s.prevalence, s.mean_reward) for label, s in profile.labels.items()} == {
        L.SPURIOUS_TOOL_CALL: (2, 0.25, 0.5),
        L.CORRECT_ABSTENTION: (2, 0.25, 0.5),
        L.EMPTY_TURN: (1, 0.125, 0.0),
        L.STATE_MISMATCH: (1, 0.125, 0.0),
        L.PASS: (2, 0.25, 1.0),
    }
    assert FailureProfile.model_validate_json(profile.model_dump_json()) == profile
    assert failure_profile([diagnose(one) for one in trajectories[::-1]]) == profile


def test_excluded_labels_are_in_no_share():
    task = task_of([MKDIR, COPY], [])
    trajectories = [acted_out(task, [MKDIR, COPY], [])]
    profile = failure_profile([diagnose(one) for one in trajectories])
    assert profile.turns == 1
    assert profile.of(L.CORRECT_ABSTENTION).prevalence == 1.0
    assert (profile.of(L.CHECKER_ERROR).count, profile.of(L.CHECKER_ERROR).prevalence) == (1, 0.0)
    assert failure_profile([]) == FailureProfile()
