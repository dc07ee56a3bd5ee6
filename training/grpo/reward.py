"""Reward of one rollout: the environment's outcome, less a cost for calls beyond the reference's number."""

from __future__ import annotations

from collections.abc import Iterable

from environments.base import Outcome, TaskSpec
from environments.turns import agent_calls
from memory.records import TrajectoryTurn
from training.settings import TrainingSettings

SUCCESS_FLOOR = 0.501
"""Least reward of a success (our choice): strictly above one half, also in float32, whatever the length cost, so that
every success beats every failure and any threshold at 0.5 agrees with the official rule."""


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
    """Return the reward of a rollout of ``task``, None without an outcome: an infrastructure error has no reward."""
    if outcome is None:
        return None
    actions = sum(len(turn.steps) for turn in turns if not turn.played)
    return reward(outcome, actions, agent_calls(task), settings)
