"""Reward: result first, length cost second."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import InputError, Outcome, ToolCall, TurnOutcome
from environments.example import depot
from environments.python_class.episode import PythonEpisode
from environments.settings import EnvironmentSettings
from evaluation.settings import EvaluationSettings
from graph.settings import RunSettings
from memory.records import Task
from memory.run import RunDirectory
from memory.tasks import admit
from training.grpo.reward import FAILURE_CEILING, SUCCESS_FLOOR, check_reward, reward
from training.grpo.round import run_round
from training.settings import PolicySettings, TrainingSettings

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
        (SUCCESS, 3, 2, 5.0, SUCCESS_FLOOR),
        (SUCCESS, 100, 2, 0.0, 1.0),
        (FAILURE, 2, 2, 0.1, 0.0),
        (FAILURE, 0, 2, 0.0, 0.0),
    ],
)
def test_table(outcome: Outcome, calls: int, reference_calls: int, length_cost: float, expected: float) -> None:
    assert reward(outcome, calls, reference_calls, TrainingSettings(length_cost=length_cost)) == pytest.approx(expected)


counts = st.integers(min_value=0, max_value=1000)
costs = st.floats(min_value=0.0, max_value=100.0)


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


shares = st.floats(min_value=0.0, max_value=1.0)


def told(partial: float | None, success: bool = False) -> Outcome:
    return (SUCCESS if success else FAILURE).model_copy(update={"partial": partial})


@given(passed=shares, more=shares, calls=counts, reference_calls=counts, cost=costs)
def test_passed_checks_pay_a_failure_and_never_as_much_as_a_success(
    passed: float, more: float, calls: int, reference_calls: int, cost: float
) -> None:
    dense, sparse = TrainingSettings(length_cost=cost, reward="checks"), TrainingSettings(length_cost=cost)
    little, much = sorted((passed, more))
    low = reward(told(little), calls, reference_calls, dense)
    high = reward(told(much), calls, reference_calls, dense)
    assert 0.0 <= low <= high <= FAILURE_CEILING
    assert struct.unpack("f", struct.pack("f", high))[0] < 0.5
    assert low == pytest.approx(FAILURE_CEILING * little)
    succeeded = reward(told(more, success=True), calls, reference_calls, dense)
    assert high < 0.5 < succeeded == reward(told(None, success=True), calls, reference_calls, sparse)
    assert reward(told(passed), calls, reference_calls, sparse) == 0.0


def test_doing_nothing_earns_nothing() -> None:
    assert reward(told(0.0), 0, 3, TrainingSettings(reward="checks")) == 0.0


def test_a_share_that_nobody_tells_is_no_zero() -> None:
    with pytest.raises(InputError, match=r"training\.reward is checks.*set it to success"):
        reward(told(None), 1, 1, TrainingSettings(reward="checks"))


def parcel_task() -> Task:
    (start,) = depot(starts=1).starts()
    call = ToolCall(name=start.tools[0])
    return Task(id="t", origin="given", **start.model_dump(exclude={"id"}), turns=("go",), reference=((call,),))


def no_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the shares of checks from the outcomes of own classes."""
    whole = PythonEpisode.outcome
    monkeypatch.setattr(PythonEpisode, "outcome", lambda self: whole(self).model_copy(update={"partial": None}))


def test_an_environment_without_shares_is_told_before_the_first_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    environment, task = depot(starts=1), parcel_task()
    check_reward(environment, task, TrainingSettings(reward="checks"))
    no_shares(monkeypatch)
    check_reward(environment, task, TrainingSettings())
    with pytest.raises(InputError, match=r"training\.reward is checks"):
        check_reward(environment, task, TrainingSettings(reward="checks"))


def test_a_round_says_so_before_it_loads_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_shares(monkeypatch)
    (tmp_path / "empty").mkdir()
    settings = RunSettings(
        environment=EnvironmentSettings(name="environments.example:depot"),
        evaluation=EvaluationSettings(set=None),
        policy=PolicySettings(path=str(tmp_path / "empty"), device="cpu"),
        training=TrainingSettings(reward="checks"),
    )
    run = RunDirectory.create(tmp_path / "run", settings)
    admit(run, [parcel_task()])
    with pytest.raises(InputError, match=r"training\.reward is checks"):
        run_round(run.root, 0, False, lambda _: None)
    assert not (run.iteration(0) / "trajectories.jsonl").exists()


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        reward(SUCCESS, -1, 0, TrainingSettings())
