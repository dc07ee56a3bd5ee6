"""Reward of one rollout: the environment's outcome, less a cost for calls beyond the reference's number."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from environments.base import Environment, InputError, Outcome, TaskSpec
from environments.history import agent_calls
from memory.records import TrajectoryTurn
from training.settings import TrainingSettings

SUCCESS_FLOOR = 0.501
"""Least reward of a success (our choice): strictly above one half, also in float32, whatever the length cost, so that
every success beats every failure and any threshold at 0.5 agrees with the official rule."""

FAILURE_CEILING = 0.499
"""Reward of a failure that passes every check that doing nothing fails (our choice): below one half for that reason."""


def reward(outcome: Outcome, calls: int, reference_calls: int, settings: TrainingSettings) -> float:
    """Return a reward in [0, 1]: of a success 1 less ``length_cost`` per call beyond the reference, floored; else 0.

    With ``reward: checks`` a failure earns its ``Outcome.partial`` times ``FAILURE_CEILING``, whatever its length:
    checks that doing nothing passes earn nothing. ``calls`` counts every action of the agent's turns, malformed ones
    included; ``reference_calls`` those of their reference. Fewer calls than the reference cost nothing and earn
    nothing. The paper's reward is success alone (CoEvolve, table 9); the length cost is our choice: without it a policy
    that reads everything first loses nothing.

    Raises ValueError for a negative count, InputError for ``reward: checks`` where the outcome has no ``partial``.
    """
    if calls < 0 or reference_calls < 0:
        raise ValueError(f"calls={calls}, reference_calls={reference_calls}: counts cannot be negative")
    if outcome.success:
        return max(SUCCESS_FLOOR, 1.0 - settings.length_cost * max(0, calls - reference_calls))
    if settings.reward == "success":
        return 0.0
    if outcome.partial is None:
        raise InputError(
            "training.reward is checks, and the environment reports of an episode whether it succeeded, not how many "
            "checks it passed: set it to success"
        )
    return FAILURE_CEILING * outcome.partial


def reward_of(
    outcome: Outcome | None, turns: Iterable[TrajectoryTurn], task: TaskSpec, settings: TrainingSettings
) -> float | None:
    """Return the reward of a rollout of ``task``, None without an outcome: an infrastructure error has no reward."""
    if outcome is None:
        return None
    actions = sum(len(turn.steps) for turn in turns if not turn.played)
    return reward(outcome, actions, agent_calls(task), settings)


def check_reward(environment: Environment, task: TaskSpec, settings: TrainingSettings) -> None:
    """Raise InputError, before long work, if ``task``'s environment cannot give the rewards of the settings.

    With ``reward: checks`` an episode is opened and its outcome computed without any action.
    """
    if settings.reward == "success":
        return
    with closing(environment.open(task)) as episode:
        episode.start()
        outcome = episode.outcome()
    reward(outcome, 0, 0, settings)
