"""The record of a round follows from its trajectories."""

import pytest

from environments.base import Outcome
from memory.records import Trajectory
from training.grpo.record import RoundSeconds, StepMetrics, round_record, step_record


def trajectory(step: int, task: str, sample: int, reward: float | None, tokens: int = 3) -> Trajectory:
    return Trajectory(
        id=f"{step}{task}{sample}",
        task_id=task,
        iteration=1,
        step=step,
        sample=sample,
        turns=(),
        outcome=None if reward is None else Outcome(success=reward > 0.5, turns=()),
        reward=reward,
        infrastructure_error="broken" if reward is None else None,
        sampled_tokens=tokens,
    )


FIRST = [
    trajectory(4, "a", 0, 1.0),
    trajectory(4, "a", 1, 0.0),
    trajectory(4, "b", 0, 0.8),
    trajectory(4, "b", 1, None),
    trajectory(4, "c", 0, None, tokens=0),
]
SECOND = [trajectory(5, "a", 0, 0.0), trajectory(5, "a", 1, 0.0)]


def test_infrastructure_errors_take_part_in_no_mean() -> None:
    record = step_record(4, FIRST, {"kl": 0.25, "loss": 0.5, "grad_norm": 2.0})
    assert (record.rollouts, record.infrastructure_errors, record.sampled_tokens) == (5, 2, 12)
    assert record.success == pytest.approx(2 / 3)
    assert record.reward == pytest.approx(0.6)
    assert record.mixed_groups == 0.5, "of the groups a and b; c has no outcome"
    assert (record.kl, record.loss, record.grad_norm) == (0.25, 0.5, 2.0)


def test_a_round_is_its_steps_in_order() -> None:
    record = round_record(
        iteration=1,
        policy="policy/checkpoint-5",
        tasks=7,
        trajectories=[*SECOND, *FIRST],
        metrics=[
            StepMetrics(step=step, trainer={"kl": kl}, rollouts={}) for step, kl in ((4, 0.25), (5, 0.75), (1, 9.0))
        ],
        updates=1,
        measured=RoundSeconds(load=1.0),
    )
    assert [step.step for step in record.steps] == [4, 5]
    assert (record.first_step, record.last_step, record.tasks) == (4, 5, 7)
    assert record.success == pytest.approx((2 / 3 + 0) / 2)
    assert (record.kl, record.mixed_groups) == (0.5, 0.25)
    assert (record.sampled_tokens, record.infrastructure_errors) == (18, 2)
    assert record.measured.load == 1.0


def test_without_a_kl_term_there_is_no_kl() -> None:
    record = round_record(
        iteration=0, policy="p", tasks=1, trajectories=SECOND, metrics=[], updates=1, measured=RoundSeconds()
    )
    assert record.kl is None
