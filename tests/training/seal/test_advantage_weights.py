"""Weights of advantages: the paper's numbers, rho in motion, signs that stay, and turns on their tokens."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from training.seal.advantage_weights import (
    RhoState,
    WeighedRollout,
    first_rho,
    group_weights,
    moved_rho,
    token_weights,
    turn_tokens,
)
from training.seal.diagnosis import Diagnosis, TurnDiagnosis
from training.seal.failure_profile import FailureProfile, LabelStatistics
from training.seal.labels import EXCLUDED, TurnLabel
from training.seal.settings import BASE_RHO, SealSettings, WeightSettings

L = TurnLabel
PAPER = WeightSettings()
MOVING = WeightSettings(dynamic=True)
TURNS = WeightSettings(unit="turn")


def diagnosed(*labels, success=False):
    """A diagnosis; None stands for a turn without one."""
    turns = [TurnDiagnosis(turn=number, label=label) for number, label in enumerate(labels) if label is not None]
    return Diagnosis(trajectory_id="t", success=success, turns=tuple(turns))


def rollout(*labels, advantage=-1.0, tokens=None):
    return WeighedRollout(diagnosed(*labels), advantage, tokens or (4,) * len(labels))


def weights(rollouts, settings=PAPER, state=None):
    return group_weights(rollouts, state or first_rho(settings), settings)


@pytest.mark.parametrize(
    ("labels", "advantage", "expected"),
    [
        ([L.PASS], 1.0, 1.0),
        ([L.STATE_MISMATCH], -1.0, 1.0),
        ([L.RESPONSE_MISMATCH], -1.0, 0.9),
        ([L.INSTANCE_MISMATCH], -1.0, 0.6),
        ([L.SPURIOUS_TOOL_CALL], -1.0, 2.0),
        ([L.SPURIOUS_TOOL_CALL, L.PASS], -1.0, 1.5),
        ([L.SPURIOUS_TOOL_CALL, L.SPURIOUS_TOOL_CALL, L.EMPTY_TURN, L.PASS], -1.0, 1.625),
        ([L.PASS, L.CORRECT_ABSTENTION], -1.0, 1.4),
        ([L.PASS, L.CORRECT_ABSTENTION], 1.0, 1.4),
        ([L.PASS, L.STATE_MISMATCH, L.SPURIOUS_TOOL_CALL, L.GT_ERROR], -1.0, 4 / 3),
        ([L.PASS, L.GT_ERROR, L.SPURIOUS_TOOL_CALL], -1.0, 1.5),
        ([L.GT_ERROR], -1.0, 1.0),
        ([None, L.SPURIOUS_TOOL_CALL], -1.0, 2.0),
    ],
)
def test_a_trajectorys_weight_is_the_mean_rho_of_its_turns(labels, advantage, expected):
    (own,) = weights([rollout(*labels, advantage=advantage)])
    assert own == pytest.approx((expected,) * len(labels))


def test_a_turn_has_the_rho_of_its_own_label():
    failed = rollout(L.PASS, L.SPURIOUS_TOOL_CALL, L.CHECKER_ERROR, None, L.INSTANCE_MISMATCH)
    assert weights([failed], TURNS) == ((1.0, 2.0, 1.0, 1.0, 0.6),)


@pytest.mark.parametrize("label", TurnLabel)
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_of_one_turn_both_units_say_the_same(label, advantage):
    """Why the two are one arm where training tasks have one user turn."""
    assert weights([rollout(label, advantage=advantage)]) == weights([rollout(label, advantage=advantage)], TURNS)


def test_abstention_is_praised_unless_the_setting_says_no():
    praised = rollout(L.CORRECT_ABSTENTION, advantage=0.7)
    assert weights([praised], TURNS) == ((1.8,),)
    capped = WeightSettings(unit="turn", cap_abstention=True)
    assert weights([praised], capped) == ((1.0,),)
    assert weights([rollout(L.CORRECT_ABSTENTION, advantage=-0.7)], capped) == ((1.8,),)
    low = WeightSettings(unit="turn", cap_abstention=True, rho={L.CORRECT_ABSTENTION: 0.5})
    assert weights([praised], low) == ((0.5,),)


def test_a_turn_that_was_not_reached_counts_in_the_trajectorys_weight_and_has_no_token():
    """Two turns were played and two padded."""
    padded = WeighedRollout(diagnosed(L.PASS, L.PASS, L.CORRECT_ABSTENTION, L.EMPTY_TURN), -1.0, (4, 4))
    assert weights([padded]) == ((pytest.approx(5.3 / 4),) * 2,)
    assert weights([padded], TURNS) == ((1.0, 1.0),)


def test_weights_are_clipped():
    wild = RhoState(rho=BASE_RHO | {L.PASS: 9.0, L.STATE_MISMATCH: 0.1})
    assert weights([rollout(L.PASS), rollout(L.STATE_MISMATCH)], state=wild) == ((2.0,), (0.5,))
    assert weights([rollout(L.PASS, L.STATE_MISMATCH)], TURNS, wild) == ((2.0, 0.5),)


def test_a_rollout_without_a_diagnosis_is_left_alone():
    settings = WeightSettings()
    group = [WeighedRollout(None, 0.0, (3, 3)), WeighedRollout(None, 0.0, ()), rollout(L.SPURIOUS_TOOL_CALL)]
    assert weights(group, settings)[:2] == ((1.0, 1.0), ())


# Properties

labels = st.one_of(st.none(), st.sampled_from(TurnLabel))
advantages = st.one_of(st.just(0.0), st.floats(1e-6, 1e3), st.floats(-1e3, -1e-6))
settings_of = st.builds(
    WeightSettings,
    unit=st.sampled_from(["trajectory", "turn"]),
    rho=st.dictionaries(st.sampled_from([*BASE_RHO]), st.floats(0.5, 2.0)),
    dynamic=st.booleans(),
    cap_abstention=st.booleans(),
)


@st.composite
def rollouts(draw):
    found = draw(st.lists(labels, max_size=4))
    tokens = tuple(draw(st.integers(0, 9)) for _ in found)
    return WeighedRollout(diagnosed(*found) if draw(st.booleans()) else None, draw(advantages), tokens)


profiles = st.dictionaries(
    st.sampled_from(TurnLabel),
    st.builds(
        LabelStatistics, count=st.integers(0, 99), prevalence=st.floats(0.0, 1.0), mean_reward=st.floats(0.0, 1.0)
    ),
).map(lambda found: FailureProfile(labels=found))


@settings(deadline=None)
@given(st.lists(rollouts(), min_size=1, max_size=8), settings_of, profiles)
def test_no_sign_flips_and_no_advantage_vanishes(group, settings, profile):
    state = moved_rho(first_rho(settings), profile, settings)
    for own, one in zip(weights(group, settings, state), group, strict=True):
        assert len(own) == len(one.turn_tokens)
        for weight in own:
            assert math.isfinite(weight)
            assert weight > 0
            assert math.copysign(1.0, weight * one.advantage) == math.copysign(1.0, one.advantage)
            assert (weight * one.advantage == 0) == (one.advantage == 0)
            assert settings.least <= weight <= settings.most


@settings(deadline=None)
@given(settings_of, st.lists(profiles, max_size=6))
def test_rho_stays_within_the_limits_and_survives_being_saved(settings, history):
    state = first_rho(settings)
    for profile in history:
        state = moved_rho(state, profile, settings)
        saved = RhoState.model_validate_json(state.model_dump_json())
        assert saved == state
        assert saved.rho.keys() == set(TurnLabel) - EXCLUDED
        assert all(settings.least <= value <= settings.most for value in state.rho.values())
    assert state.updates == (len(history) if settings.dynamic else 0)


# Rho in motion


def profile_of(**labels):
    """The profile of a step: ``label=(turns with it, mean reward)``."""
    turns = sum(count for label, (count, _) in labels.items() if TurnLabel(label) not in EXCLUDED)
    return FailureProfile(
        turns=turns,
        labels={
            TurnLabel(label): LabelStatistics(count=count)
            if TurnLabel(label) in EXCLUDED
            else LabelStatistics(count=count, prevalence=count / turns, mean_reward=reward)
            for label, (count, reward) in labels.items()
        },
    )


WINDOW = profile_of(
    **{"pass": (60, 0.3), "state_mismatch": (30, 0.0), "correct_abstention": (10, 0.3), "gt_error": (5, 0)}
)
"""The window that the released code was run with."""


def test_rho_moves_as_in_the_released_code():
    """Its figures, to the digit, after an update and another one with the same window; ``pass`` keeps its base."""
    first = moved_rho(first_rho(MOVING), WINDOW, MOVING)
    assert first.rho == BASE_RHO | {L.STATE_MISMATCH: 1.0703125, L.CORRECT_ABSTENTION: 1.8098437500000002}
    second = moved_rho(first, FailureProfile(), MOVING)  # a step that adds nothing leaves the window as it is
    assert second.rho == BASE_RHO | {L.STATE_MISMATCH: 1.123046875, L.CORRECT_ABSTENTION: 1.8172265625000001}


@pytest.mark.parametrize(
    ("label", "count", "of", "mean_reward", "expected"),
    [
        (L.STATE_MISMATCH, 32, 80, 0.0, 1.0 + 0.25 * 0.4),
        (L.STATE_MISMATCH, 64, 160, 0.0, 1.0 + 0.25 * 0.4),
        (L.STATE_MISMATCH, 8, 20, 0.0, 1.0 + 0.25 * 0.1),
        (L.STATE_MISMATCH, 32, 80, 1.0, 1.0),
        (L.EMPTY_TURN, 32, 64, 0.0, 1.5 + 0.25 * 0.5),
        (L.INSTANCE_MISMATCH, 32, 32, 0.5, 0.6 + 0.25 * 0.3),
        (L.SPURIOUS_TOOL_CALL, 64, 64, 0.0, 2.0),
        (L.PASS, 64, 64, 0.0, 1.0),
    ],
)
def test_rho_goes_a_quarter_of_the_way(label, count, of, mean_reward, expected):
    """A spurious call stays where it is, at the upper limit."""
    others = {} if of == count else {L.PASS.value: (of - count, 0.5)}
    moved = moved_rho(first_rho(MOVING), profile_of(**{label.value: (count, mean_reward)}, **others), MOVING)
    assert moved.rho[label] == pytest.approx(expected)
    assert {other: rho for other, rho in moved.rho.items() if other is not label} == {
        other: rho for other, rho in BASE_RHO.items() if other is not label
    }


def test_the_window_is_an_epoch_and_rho_survives_its_end():
    bad, good = profile_of(state_mismatch=(32, 0.0)), profile_of(**{"pass": (32, 1.0)})
    settings = WeightSettings(dynamic=True, window_steps=2)
    states = [first_rho(settings)]
    for profile in (bad, good, good):
        states.append(moved_rho(states[-1], profile, settings))
    counts = [{label: found.count for label, found in state.window.items()} for state in states]
    assert counts == [{}, {L.STATE_MISMATCH: 32}, {L.STATE_MISMATCH: 32, L.PASS: 32}, {L.PASS: 32}]
    found = [state.rho[L.STATE_MISMATCH] for state in states]
    assert found == [1.0, 1.25, 1.25 * 0.75 + 1.5 * 0.25, (1.25 * 0.75 + 1.5 * 0.25) * 0.75 + 0.25]
    assert states[-1].total[L.STATE_MISMATCH].count == 32


def test_an_epoch_without_a_turn_follows_the_turns_since_the_run_began():
    settings = WeightSettings(dynamic=True, window_steps=1)
    shown = moved_rho(first_rho(settings), profile_of(state_mismatch=(32, 0.0)), settings)
    after = moved_rho(shown, FailureProfile(), settings)
    assert (after.window, after.rho[L.STATE_MISMATCH]) == ({}, 1.25 * 0.75 + 2.0 * 0.25)


def test_rho_stays_while_no_turn_counts_and_where_it_is_fixed():
    excluded = profile_of(gt_error=(9, 0.0))
    assert moved_rho(first_rho(MOVING), excluded, MOVING).rho == BASE_RHO
    assert moved_rho(first_rho(PAPER), WINDOW, PAPER) == first_rho(PAPER)


# Tokens


def test_turns_fall_on_their_tokens():
    mask, begins = [1, 1, 0, 0, 1, 1, 1], (0, 3)
    assert turn_tokens(mask, begins) == (2, 3)
    assert token_weights([(1.0, 2.0), (0.5,), ()], [begins, (0,), ()], 8) == [
        [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0],
        [0.5] * 8,
        [1.0] * 8,
    ]
    assert turn_tokens([], ()) == ()
    assert turn_tokens([0], ()) == ()
    assert turn_tokens([1, 1], (0, 2)) == (2, 0)


@pytest.mark.parametrize("begins", [(1,), (0, 5, 4), (0, 9)])
def test_places_that_are_none_are_refused(begins):
    with pytest.raises(ValueError, match="from 0 on, in order"):
        token_weights([(1.0,) * len(begins)], [begins], 8)
    with pytest.raises(ValueError, match="from 0 on, in order"):
        turn_tokens([1] * 8, begins)


def test_each_turn_needs_a_weight():
    with pytest.raises(ValueError, match="1 weights for 2 turns"):
        token_weights([(1.0,)], [(0, 3)], 8)


# Settings


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"rho": {"gt_error": 1.0}}, "gives gt_error a weight"),
        ({"rho": {"pass": 3.0}}, "'rho' of pass is 3: give 0.5 to 2"),
        ({"rho": {"passed": 1.0}}, "rho.passed"),
        ({"alpha": 2.0}, "'alpha' is for dynamic: true"),
        ({"window_steps": 9}, "'window_steps' is for dynamic: true"),
        ({"unit": "token"}, "unit"),
        ({"most": 0.5}, "most"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given_settings, message):
    with pytest.raises(ValidationError, match=message):
        WeightSettings.model_validate(given_settings)


def test_seal_with_nothing_in_it_is_refused_and_the_arms_can_be_said():
    with pytest.raises(ValidationError, match="both null"):
        SealSettings(weights=None, interface=None)
    assert SealSettings().weights.base() == BASE_RHO
    assert SealSettings(weights=None).interface is not None
    assert not SealSettings().weights.dynamic, "by the paper's text rho is fixed"
    open_loop = SealSettings.model_validate({"weights": {"dynamic": True}, "interface": {"constraint_cues": False}})
    assert SealSettings.model_validate_json(open_loop.model_dump_json()) == open_loop
