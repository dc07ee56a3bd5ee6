"""Reward: result first, length cost second."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sample_records import task

from environments.base import Observation, ObservationStatus, Outcome, ToolCall, TurnOutcome
from memory.records import Step, StopReason, TrajectoryTurn
from training.grpo.advantages import SUCCESS_FLOOR, reward, reward_of
from training.settings import TrainingSettings

SUCCESS = Outcome(success=True, turns=(TurnOutcome(calls=1, reference_calls=1),))
FAILURE = Outcome(success=False, turns=(TurnOutcome(calls=1, reference_calls=1),), failure="x", failed_turn=0)


@pytest.mark.parametrize(
    ("outcome", "calls", "reference_calls", "length_cost", "expected"),
    [
        (SUCCESS, 2, 2, 0.1, 1.0),
        (SUCCESS, 1, 2, 0.1, 1.0),
        (SUCCESS, 0, 2, 0.1, 1.0),
        (SUCCESS, 3, 2, 0.1, 0.9),
        (SUCCESS, 5, 2, 0.1, 0.7),
        (SUCCESS, 7, 2, 0.1, SUCCESS_FLOOR),
        (SUCCESS, 100, 2, 0.1, SUCCESS_FLOOR),
        (SUCCESS, 3, 2, 1.0, SUCCESS_FLOOR),
        (SUCCESS, 100, 2, 0.0, 1.0),
        (FAILURE, 2, 2, 0.1, 0.0),
        (FAILURE, 0, 2, 0.0, 0.0),
    ],
)
def test_table(outcome: Outcome, calls: int, reference_calls: int, length_cost: float, expected: float) -> None:
    assert reward(outcome, calls, reference_calls, TrainingSettings(length_cost=length_cost)) == pytest.approx(expected)


counts = st.integers(min_value=0, max_value=1000)
costs = st.floats(min_value=0.0, max_value=1.0)


@given(calls=counts, more=counts, reference_calls=counts, cost=costs)
def test_success_beats_failure_and_more_calls_never_pay(
    calls: int, more: int, reference_calls: int, cost: float
) -> None:
    settings = TrainingSettings(length_cost=cost)
    few = reward(SUCCESS, calls, reference_calls, settings)
    many = reward(SUCCESS, calls + more, reference_calls, settings)
    assert reward(FAILURE, calls, reference_calls, settings) == 0.0
    assert 0.5 < struct.unpack("f", struct.pack("f", many))[0] <= few + 1e-6 <= 1.0 + 1e-6
    assert many <= few


def test_a_rollout_pays_for_its_own_actions_alone_and_a_fault_has_no_reward() -> None:
    reference = (ToolCall(name="mkdir", arguments={"dir_name": "notes"}),)
    both = task(turns=("", ""), reference=(reference * 3, reference), played=1)
    step = Step(action=reference[0], observation=Observation(text="None", status=ObservationStatus.OK))
    given = TrajectoryTurn(text="", steps=(step,) * 3, stop_reason=StopReason.PLAYED)
    own = TrajectoryTurn(text="", steps=(step,) * 2, stop_reason=StopReason.END_OF_TURN)
    settings = TrainingSettings(length_cost=0.1)
    assert reward_of(SUCCESS, (given, own), both, settings) == pytest.approx(0.9), "one of two is beyond the reference"
    assert reward_of(None, (given, own), both, settings) is None


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_a_failure_that_makes_the_references_calls_gets_its_share_below_every_success(share: float) -> None:
    reference = (ToolCall(name="mkdir", arguments={"dir_name": "notes"}),)
    both = task(turns=("", ""), reference=(reference * 3, reference), played=1)
    step = Step(action=reference[0], observation=Observation(text="None", status=ObservationStatus.OK))
    given = TrajectoryTurn(text="", steps=(step,) * 3, stop_reason=StopReason.PLAYED)
    settings = TrainingSettings(similarity_reward=share, length_cost=1.0)

    def of(outcome: Outcome, steps: int) -> float | None:
        own = TrajectoryTurn(text="", steps=(step,) * steps, stop_reason=StopReason.END_OF_TURN)
        return reward_of(outcome, (given, own), both, settings)

    assert of(FAILURE, 1) == pytest.approx(share)
    assert of(FAILURE, 2) == pytest.approx(share / 2)
    assert of(FAILURE, 0) == 0.0
    assert (of(SUCCESS, 1), of(SUCCESS, 9)) == (1.0, SUCCESS_FLOOR)
    assert reward_of(FAILURE, (given,), both.model_copy(update={"reference": ()}), settings) == 0.0
