"""Rewards and advantages of GRPO, as pure functions: from an outcome to a reward, from a group's to each row's factor.

TRL 1.16.0 computes advantages itself, in the form of ``group_advantages``, which tests hold equal to it. The trainer
multiplies them by SEAL's weights of trajectories (``training.seal``), if any, and then by ``per_group``. Torch is not
imported here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from environments.base import Outcome, TaskSpec
from environments.turns import agent_calls
from memory.records import TrajectoryTurn
from training.grpo.call_similarity import similarity
from training.settings import TrainingSettings

if TYPE_CHECKING:
    import torch

SUCCESS_FLOOR = 0.501
"""Least reward of a success (our choice): strictly above one half, also in float32, whatever the length cost, so that
every success beats every failure and any threshold at 0.5 agrees with the official rule."""

NO_DEVIATION = 1e-4
"""Added to a group's standard deviation before rewards are divided by it (TRL's)."""


def reward(outcome: Outcome, calls: int, reference_calls: int, settings: TrainingSettings) -> float:
    """Return a reward in [0, 1]: of a success 1 less ``length_cost`` per call beyond the reference, floored; else 0.

    ``calls`` counts every action of the agent's turns, malformed ones included; ``reference_calls`` those of their
    reference. The paper's reward is success alone (CoEvolve, table 9); the length cost is our choice: without it a
    policy that reads everything first loses nothing.
    """
    if not outcome.success:
        return 0.0
    return max(SUCCESS_FLOOR, 1.0 - settings.length_cost * max(0, calls - reference_calls))


def reward_of(
    outcome: Outcome | None, turns: Iterable[TrajectoryTurn], task: TaskSpec, settings: TrainingSettings
) -> float | None:
    """Return the reward of a rollout of ``task``, None without an outcome: an infrastructure error has no reward.

    A failure has ``similarity_reward``, which is below every success, times how alike its calls are to the reference's.
    """
    if outcome is None:
        return None
    own = [[step.action for step in turn.steps] for turn in turns if not turn.played]
    if not outcome.success and settings.similarity_reward and task.reference:
        return settings.similarity_reward * similarity(own, task.reference[task.played :])
    return reward(outcome, sum(map(len, own)), agent_calls(task), settings)


def group_advantages(rewards: torch.Tensor, size: int) -> torch.Tensor:
    """Return the advantages of rows, (rows,), from their rewards, in groups of ``size`` rows one after the other.

    A_i = (R_i - mean) / (std + 1e-4) over the group's rewards that are not NaN, std with n - 1 (CoEvolve, section 3;
    the division by std is left open there). A NaN is a rollout that the environment failed: it has advantage 0 and is
    no part of the baseline. A group whose rewards are all equal has advantage 0 in every row, up to rounding: below
    0.001 in float32 where a length cost makes rewards that are no binary fractions.
    """
    groups = rewards.reshape(-1, size)
    scored = ~groups.isnan()
    count = scored.sum(dim=1, keepdim=True)
    off = groups - groups.nanmean(dim=1, keepdim=True)
    squares = off.nan_to_num(0.0).square().sum(dim=1, keepdim=True)
    off = off / ((squares / (count - 1).clamp(min=1)).sqrt() + NO_DEVIATION)
    return off.nan_to_num(0.0).reshape(-1)


def per_group(sampled: torch.Tensor, total: torch.Tensor, size: int) -> torch.Tensor:
    """Return the factors of advantages, (rows,), that give each group of ``size`` rows a normaliser of its own.

    ``sampled`` are the rows' numbers of tokens that the policy wrote in a step, and ``total`` is their sum over the
    step. The surrogate is linear in positive factors, so that with ``dapo``'s normaliser it becomes the mean over
    groups of 1 / (tokens of the group) times the sum over its tokens (Eq. 1); the KL term is not scaled.
    """
    tokens = sampled.reshape(-1, size).sum(dim=1)
    return (total / (len(tokens) * tokens.clamp(min=1))).repeat_interleave(size)
