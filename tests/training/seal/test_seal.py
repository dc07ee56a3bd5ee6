"""SEAL through the steps of two iterations, in the real environment, with a script in place of a policy."""

from __future__ import annotations

import pytest
from support.bfcl_tasks import ENVIRONMENT, FUEL, LIGHTS, acted_out, call, task_of

from environments.learning_interface import LearningInterface
from training.seal.diagnosis import TurnLabel
from training.seal.seal import BASE_RHO, RhoState, Seal, SealSettings, SealState, figures, first_state

L = TurnLabel
SPEC = task_of([LIGHTS], [])
LAZY, RIGHT, BUSY = ([], []), ([LIGHTS], []), ([LIGHTS], [FUEL])
SETTINGS = SealSettings()


def play(seal, step, *scripts):
    """A step's rollouts in the environment of ``seal``, taken in by it, and their weights."""
    environment = seal.environment
    rollouts = [
        acted_out(SPEC, *script, environment=environment, step=step, sample=sample)
        for sample, script in enumerate(scripts)
    ]
    return rollouts, seal.take_in(step, rollouts)


def test_a_round_in_numbers():
    """Two rounds of two steps: the guideline that the first leaves behind is read in the second, and retires there."""
    kept = []
    seal = Seal(SETTINGS, ENVIRONMENT, first_state(SETTINGS), kept.append)
    for step, script in enumerate([LAZY, LAZY, RIGHT, ([call("setHeadlights"), LIGHTS], [])], start=1):
        play(seal, step, *[script] * 8)
    first = figures(first_state(SETTINGS), kept[:2])
    assert (first.steps, first.labels) == (2, {L.EMPTY_TURN: 16, L.CORRECT_ABSTENTION: 16})
    assert (first.guidelines, first.retired) == ({L.EMPTY_TURN: 1}, {})
    second = figures(kept[1].state, kept[2:])
    assert second.labels == {L.CORRECT_ABSTENTION: 16, L.PASS: 16}
    assert (second.guidelines, second.retired) == ({L.EMPTY_TURN: 1}, {L.EMPTY_TURN: 1})
    without = SealSettings(interface=None)
    assert figures(first_state(without), []).guidelines == {}


def test_the_profile_of_a_step_weighs_that_step():
    steps = []
    seal = Seal(
        SealSettings.model_validate({"weights": {"dynamic": True}, "interface": None}),
        ENVIRONMENT,
        SealState(rho=RhoState(rho=BASE_RHO)),
        steps.append,
    )
    assert seal.environment is ENVIRONMENT
    _, weights = play(seal, 1, LAZY, RIGHT, BUSY, RIGHT)
    profile = steps[0].profile
    assert profile.of(L.EMPTY_TURN).prevalence == 1 / 8
    moved = seal.state.rho.rho
    assert moved[L.EMPTY_TURN] == pytest.approx(1.5 + 0.25 * 1.5 / 8 / 32)
    empty, passed, abstained = (moved[label] for label in (L.EMPTY_TURN, L.PASS, L.CORRECT_ABSTENTION))
    spurious = moved[L.SPURIOUS_TOOL_CALL]
    pairs = [(empty, abstained), (passed, abstained), (passed, spurious), (passed, abstained)]
    assert weights == pytest.approx([(first + second) / 2 for first, second in pairs])


def test_what_is_off_stays_off():
    no_weights = SealSettings(weights=None)
    seal = Seal(no_weights, ENVIRONMENT, first_state(no_weights), lambda step: None)
    _, weights = play(seal, 1, LAZY)
    assert seal.state.rho is None
    assert isinstance(seal.environment, LearningInterface)
    assert weights is None


def test_an_infrastructure_error_is_left_out_and_weighs_one():
    steps = []
    seal = Seal(SETTINGS, ENVIRONMENT, first_state(SETTINGS), steps.append)
    good = acted_out(SPEC, *BUSY)
    dead = good.model_copy(update={"outcome": None, "reward": None, "infrastructure_error": "died", "turns": ()})
    weighed, left = seal.take_in(1, [good, dead])
    assert (steps[0].profile.trajectories, steps[0].profile.left_out) == (1, 1)
    assert left == 1.0 < weighed


def test_hints_reach_the_trajectory_and_its_result_is_that_of_the_environment():
    seal = Seal(SETTINGS, ENVIRONMENT, first_state(SETTINGS), lambda step: None)
    (rollout,), _ = play(seal, 1, ([call("setHeadlights"), LIGHTS], []))
    assert rollout.turns[0].steps[0].observation.hint.kind == "missing_argument"
    assert rollout.outcome == acted_out(SPEC, [call("setHeadlights"), LIGHTS], []).outcome
