"""Weights of advantages: the paper's numbers, rho in motion, and limits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from training.seal import seal
from training.seal.diagnosis import EXCLUDED, Diagnosis, FailureProfile, LabelStatistics, TurnLabel
from training.seal.seal import BASE_RHO, FIRST_RHO, RhoState, SealSettings, WeightSettings, moved_rho, trajectory_weight

L = TurnLabel
PAPER = WeightSettings()
MOVING = WeightSettings(dynamic=True)


def weight(*labels, state=FIRST_RHO):
    return trajectory_weight(Diagnosis(success=False, turns=labels), state)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([L.PASS], 1.0),
        ([L.STATE_MISMATCH], 1.0),
        ([L.RESPONSE_MISMATCH], 0.9),
        ([L.INSTANCE_MISMATCH], 0.6),
        ([L.SPURIOUS_TOOL_CALL], 2.0),
        ([L.SPURIOUS_TOOL_CALL, L.PASS], 1.5),
        ([L.SPURIOUS_TOOL_CALL, L.SPURIOUS_TOOL_CALL, L.EMPTY_TURN, L.PASS], 1.625),
        ([L.PASS, L.CORRECT_ABSTENTION], 1.4),
        ([L.PASS, L.STATE_MISMATCH, L.SPURIOUS_TOOL_CALL, L.GT_ERROR], 4 / 3),
        ([L.PASS, L.GT_ERROR, L.SPURIOUS_TOOL_CALL], 1.5),
        ([L.GT_ERROR], 1.0),
        ([L.PASS, L.PASS, L.CORRECT_ABSTENTION, L.EMPTY_TURN], 5.3 / 4),
        ([], 1.0),
    ],
)
def test_a_trajectorys_weight_is_the_mean_rho_of_its_turns(labels, expected):
    assert weight(*labels) == pytest.approx(expected)


def test_weights_are_clipped():
    wild = RhoState(rho=BASE_RHO | {L.PASS: 9.0, L.STATE_MISMATCH: 0.1})
    assert (weight(L.PASS, state=wild), weight(L.STATE_MISMATCH, state=wild)) == (2.0, 0.5)


def test_a_rollout_without_a_diagnosis_is_left_alone():
    assert trajectory_weight(None, FIRST_RHO) == 1.0


# Properties

settings_of = st.builds(WeightSettings, dynamic=st.booleans())


profiles = st.dictionaries(
    st.sampled_from(TurnLabel),
    st.builds(
        LabelStatistics, count=st.integers(0, 99), prevalence=st.floats(0.0, 1.0), mean_reward=st.floats(0.0, 1.0)
    ),
).map(lambda found: FailureProfile(labels=found))


@settings(deadline=None)
@given(st.lists(st.sampled_from(TurnLabel), max_size=4), settings_of, profiles)
def test_weights_are_finite_and_within_the_limits(labels, settings, profile):
    """So that no sign flips and no advantage vanishes."""
    state = moved_rho(FIRST_RHO, profile, settings)
    assert 0.5 <= weight(*labels, state=state) <= 2.0


@settings(deadline=None)
@given(settings_of, st.lists(profiles, max_size=6))
def test_rho_stays_within_the_limits_and_survives_being_saved(settings, history):
    state = FIRST_RHO
    for profile in history:
        state = moved_rho(state, profile, settings)
        saved = RhoState.model_validate_json(state.model_dump_json())
        assert saved == state
        assert saved.rho.keys() == set(TurnLabel) - EXCLUDED
        assert all(0.5 <= value <= 2.0 for value in state.rho.values())
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


def test_the_window_is_an_epoch_and_rho_survives_its_end(monkeypatch):
    monkeypatch.setattr(seal, "WINDOW_STEPS", 2)
    bad, good = profile_of(state_mismatch=(32, 0.0)), profile_of(**{"pass": (32, 1.0)})
    states = [FIRST_RHO]
    for profile in (bad, good, good):
        states.append(moved_rho(states[-1], profile, MOVING))
    counts = [{label: found.count for label, found in state.window.items()} for state in states]
    assert counts == [{}, {L.STATE_MISMATCH: 32}, {L.STATE_MISMATCH: 32, L.PASS: 32}, {L.PASS: 32}]
    found = [state.rho[L.STATE_MISMATCH] for state in states]
    assert found == [1.0, 1.25, 1.25 * 0.75 + 1.5 * 0.25, (1.25 * 0.75 + 1.5 * 0.25) * 0.75 + 0.25]
    assert states[-1].total[L.STATE_MISMATCH].count == 32


def test_an_epoch_without_a_turn_follows_the_turns_since_the_run_began(monkeypatch):
    monkeypatch.setattr(seal, "WINDOW_STEPS", 1)
    shown = moved_rho(FIRST_RHO, profile_of(state_mismatch=(32, 0.0)), MOVING)
    after = moved_rho(shown, FailureProfile(), MOVING)
    assert (after.window, after.rho[L.STATE_MISMATCH]) == ({}, 1.25 * 0.75 + 2.0 * 0.25)


def test_rho_stays_while_no_turn_counts_and_where_it_is_fixed():
    excluded = profile_of(gt_error=(9, 0.0))
    assert moved_rho(FIRST_RHO, excluded, MOVING).rho == BASE_RHO
    assert moved_rho(FIRST_RHO, WINDOW, PAPER) == FIRST_RHO


# Settings


def test_seal_with_nothing_in_it_is_refused_and_the_arms_can_be_said():
    with pytest.raises(ValidationError, match="both null"):
        SealSettings(weights=None, interface=None)
    assert SealSettings(weights=None).interface is not None
    assert not SealSettings().weights.dynamic, "by the paper's text rho is fixed"
    open_loop = SealSettings.model_validate({"weights": {"dynamic": True}, "interface": {"constraint_cues": False}})
    assert SealSettings.model_validate_json(open_loop.model_dump_json()) == open_loop
