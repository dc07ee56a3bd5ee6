"""The adaptive interface: guidelines that appear and retire by the failure profile, and its settings."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from training.seal import seal
from training.seal.diagnosis import FAILED, FailureProfile, LabelStatistics, TurnLabel
from training.seal.seal import (
    APPEAR_COUNT,
    APPEAR_MEAN_REWARD,
    AT_MOST,
    GUIDELINES,
    InterfaceSettings,
    InterfaceState,
    next_interface,
)

SETTINGS = InterfaceSettings()
L = TurnLabel


def test_a_guideline_for_each_label_that_blames_the_policy_and_for_no_other():
    assert set(GUIDELINES) == set(FAILED)
    for sentence in GUIDELINES.values():
        assert not re.search(r"[\d\"'`\n]", sentence)


# U(Omega, C)


def profile(turns=100, **labels):
    """``label=(count, mean reward)``; the rest of the turns passed."""
    labels |= {"pass": (turns - sum(count for count, _ in labels.values()), 0.9)}
    return FailureProfile(
        turns=turns,
        labels={
            TurnLabel(name): LabelStatistics(count=count, prevalence=count / turns, mean_reward=reward)
            for name, (count, reward) in labels.items()
        },
    )


def after(*profiles, settings=SETTINGS):
    state = InterfaceState()
    for one in profiles:
        state = next_interface(state, one, settings)
    return state


@pytest.mark.parametrize(
    ("failures", "appears"),
    [
        ({"state_mismatch": (8, 0.0)}, True),
        ({"state_mismatch": (7, 0.0)}, False),
        ({"state_mismatch": (50, 0.59)}, True),
        ({"state_mismatch": (50, 0.6)}, False),
        ({"state_mismatch": (10, 0.0), "response_mismatch": (90, 0.9)}, True),
        ({"state_mismatch": (10, 0.0), "response_mismatch": (91, 0.9)}, False),
        ({"state_mismatch": (10, 0.0), "correct_abstention": (900, 0.0), "gt_error": (90, 0.0)}, True),
    ],
)
def test_a_guideline_appears_past_all_three_thresholds(failures, appears):
    """Shares are of the turns that failed: those that passed, abstained or were excluded do not count."""
    state = after(profile(1200, **failures))
    assert state.guidelines == ((L.STATE_MISMATCH,) if appears else ())
    assert state.retired == ()


@pytest.mark.parametrize(
    ("later", "stays"),
    [
        (profile(state_mismatch=(30, 0.0)), True),
        (profile(state_mismatch=(4, 0.0)), True),
        (profile(state_mismatch=(3, 0.0)), False),
        (profile(state_mismatch=(5, 0.0), response_mismatch=(95, 0.9)), True),
        (profile(turns=200, state_mismatch=(5, 0.0), response_mismatch=(96, 0.9)), False),
        (profile(state_mismatch=(30, 0.65)), True),
        (profile(state_mismatch=(30, 0.7)), False),
        (profile(), False),
        (profile(turns=7), True),
        (FailureProfile(), True),
    ],
)
def test_a_guideline_retires_when_it_is_mastered_and_not_before(later, stays):
    state = after(profile(state_mismatch=(30, 0.0)), later)
    assert state.guidelines == ((L.STATE_MISMATCH,) if stays else ())
    assert state.retired == (() if stays else (L.STATE_MISMATCH,))


def test_the_most_pressing_are_shown_and_who_gives_way_is_not_retired():
    crowd = profile(
        spurious_tool_call=(20, 0.5),
        empty_turn_model_response=(20, 0.0),
        state_mismatch=(30, 0.0),
        response_mismatch=(11, 0.0),
    )
    first = after(profile(spurious_tool_call=(20, 0.5)))
    assert first.guidelines == (L.SPURIOUS_TOOL_CALL,)
    second = next_interface(first, crowd, SETTINGS)
    assert second.guidelines == (L.STATE_MISMATCH, L.EMPTY_TURN, L.RESPONSE_MISMATCH)
    assert second.retired == ()


def test_excluded_and_good_labels_have_no_guideline(monkeypatch):
    monkeypatch.setattr(seal, "AT_MOST", 9)
    everything = {label.value: (90, 0.0) for label in TurnLabel if label is not L.PASS}
    assert set(after(profile(1000, **everything)).guidelines) == set(FAILED)


def test_without_constraint_cues_nothing_appears():
    off = InterfaceSettings(constraint_cues=False)
    assert after(profile(state_mismatch=(90, 0.0)), settings=off) == InterfaceState(updates=1)


counts = st.sampled_from([0, 3, 4, 7, 8, 30, 100])
rewards = st.sampled_from([0.0, 0.3, 0.59, 0.6, 0.65, 0.7, 1.0])
profiles = st.dictionaries(
    st.sampled_from([label.value for label in TurnLabel if label is not L.PASS]), st.tuples(counts, rewards)
).map(lambda labels: profile(1000, **labels))


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(profiles, max_size=6))
def test_updates_of_any_history(history):
    states = [after(*history[:end]) for end in range(len(history) + 1)]
    for (before, state), batch in zip(pairwise(states), history, strict=True):
        assert len(state.guidelines) <= AT_MOST
        assert InterfaceState.model_validate_json(state.model_dump_json()) == state
        again = next_interface(state, batch, SETTINGS)
        assert (again.guidelines, again.retired) == (state.guidelines, state.retired)
        pressures = [batch.pressure(label) for label in state.guidelines]
        assert pressures == sorted(pressures, reverse=True)
        for label in set(state.guidelines) - set(before.guidelines):
            found = batch.of(label)
            assert found.count >= APPEAR_COUNT
            assert found.mean_reward < APPEAR_MEAN_REWARD


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"schema_cues": False, "recovery_hints": False, "constraint_cues": False}, "every cue is off"),
        ({"schema": True}, "schema"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given_settings, message):
    with pytest.raises(ValidationError, match=message):
        InterfaceSettings.model_validate(given_settings)
