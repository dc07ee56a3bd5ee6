"""Makes rollouts of given actions, which an environment executes and evaluates like those of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from environments.base import Action, Environment
from memory.jsonl import record_id
from memory.records import Step, Task, Trajectory, TrajectoryTurn


def acted_out(task: Task, environment: Environment, *turns: Sequence[Action], sample: int = 0) -> Trajectory:
    """Return what happens in a fresh episode of ``task`` when ``turns``, the actions of each user turn, are played.

    It is a rollout without a policy, as of step 1. The environment executes and evaluates the actions like those of a
    policy. The reward is 1 for a success, else 0; no token was sampled. Every turn is ended; the episode stops after
    the last one given.
    """
    played = []
    with closing(environment.open(task)) as episode:
        shown = episode.start()
        for actions in turns:
            steps = tuple(Step(action=action, observation=episode.step(action)) for action in actions)
            played.append(TrajectoryTurn(text=shown.text, guidelines=shown.guidelines, steps=steps, ended=True))
            shown = episode.end_turn() or shown
        outcome = episode.outcome()
    return Trajectory(
        id=record_id("trajectory", task.id, 1, sample),
        task_id=task.id,
        iteration=0,
        step=1,
        sample=sample,
        turns=tuple(played),
        outcome=outcome,
        reward=float(outcome.success),
    )
