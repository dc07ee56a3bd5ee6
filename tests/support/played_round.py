"""A round of the trainer in this process, watched: what it sampled, the batches TRL made of that, what it reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from environments.base import Environment
from memory.records import Task
from support.small_policy import small_settings
from training.grpo.record import RoundPlan, Stopwatch
from training.settings import PolicySettings, TrainingSettings

K = 4
SEED = 11


def play(
    starter: Path,
    folder: Path,
    steps: Sequence[Sequence[Task]],
    environment: Environment,
    monkeypatch: pytest.MonkeyPatch,
    *,
    iteration: int = 0,
    first_step: int = 1,
    checkpoint: Path | None = None,
    checkpoint_steps: int = 100,
    policy: Mapping[str, object] | None = None,
    **training: object,
) -> SimpleNamespace:
    """Train ``steps``, K rollouts a task; checkpoints go to ``folder``."""
    import torch

    from training.grpo import trl_run
    from training.grpo.group_rollouts import GroupRollouts
    from training.grpo.trainer import RoundTrainer
    from training.rollout.in_process import InProcessSampler
    from training.rollout.policy import load_initial_policy

    torch.set_num_threads(1)
    settings: TrainingSettings = small_settings(
        starter, tasks_per_step=len(steps[0]), rollouts_per_task=K, **training
    ).training
    chosen = PolicySettings.model_validate({"path": str(starter), "device": "cpu", **(policy or {})})
    plan = RoundPlan(run_seed=SEED, iteration=iteration, first_step=first_step, steps=tuple(map(tuple, steps)))
    kept = SimpleNamespace(trajectories=[], batches=[], reported=[], saved=[], settings=settings)
    real = RoundTrainer._generate_and_score_completions

    def watched(self, inputs):
        batch = real(self, inputs)
        kept.batches.append({key: value.clone() for key, value in batch.items()})
        return batch

    with monkeypatch.context() as patched:
        patched.setattr(RoundTrainer, "_generate_and_score_completions", watched)
        stopwatch = Stopwatch()
        initial = load_initial_policy(chosen)
        rollouts = GroupRollouts(
            plan,
            initial,
            InProcessSampler(initial.model),
            environment,
            settings,
            kept.trajectories.extend,
            stopwatch,
        )
        callback = trl_run.RoundCallback(plan, stopwatch, lambda step, _: kept.reported.append(step), kept.saved.append)
        config = trl_run.trainer_config(
            settings,
            plan,
            folder,
            checkpoint_steps,
            on_cpu=True,
            bfloat16=chosen.known_dtype == "bfloat16",
        )
        kept.trainer = trl_run.train(config, rollouts, callback, checkpoint, chosen.lora)
    kept.policy = rollouts.policy
    kept.seconds = stopwatch.seconds()
    return kept
