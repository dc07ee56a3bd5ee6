"""Reward of one rollout: the environment's verdict, less a cost for calls beyond the reference's number."""

from __future__ import annotations

from environments.base import Outcome
from training.settings import TrainingSettings

SUCCESS_FLOOR = 0.501
"""Least reward of a success (our choice): strictly above one half, also in float32, whatever the length cost, so that
every success beats every failure and any threshold at 0.5 agrees with the official verdict."""


def reward(outcome: Outcome, calls: int, reference_calls: int, settings: TrainingSettings) -> float:
    """Reward in [0, 1]: 0 for a failure; for a success 1 less ``length_cost`` a call beyond the reference, floored.

    ``calls`` counts every action of the rollout, malformed ones included; ``reference_calls`` those of the task's
    reference. Fewer calls than the reference cost nothing and earn nothing. The paper's reward is the verdict alone
    (CoEvolve, section 4); the length cost is our choice: without it a policy that reads everything first loses nothing.
    Raises ValueError for a negative count.
    """
    if calls < 0 or reference_calls < 0:
        raise ValueError(f"calls={calls}, reference_calls={reference_calls}: counts cannot be negative")
    if not outcome.success:
        return 0.0
    return max(SUCCESS_FLOOR, 1.0 - settings.length_cost * max(0, calls - reference_calls))
