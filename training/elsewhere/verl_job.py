"""The job in which verl 0.9 trains a round: its rows, its agent loop and its settings, from those of the run.

A row of the data is one draw of a task, in the order of the steps. Differences to a round of this project: AdamW begins
afresh, and the KL term is to the policy that the round begins with, because a job knows one model. verl divides a
group's reward by its standard deviation, as TRL does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from memory.jsonl import dump_yaml
from memory.records import Task
from memory.run import RunDirectory
from training.grpo.record import RoundSettings
from training.settings import TrainingSettings

LOOP = "coevolve"
_LOSSES = {"grpo": "seq-mean-token-mean", "dapo": "token-mean"}


def write_job(
    run: RunDirectory,
    iteration: int,
    settings: RoundSettings,
    policy: str,
    steps: Sequence[Sequence[Task]],
    before: int,
) -> tuple[list[str], Path]:
    """Write what verl reads of a round; return its command, and the folder in which it leaves the weights.

    ``policy`` is what the round begins with, ``before`` the global steps done before it.
    """
    from datasets import Dataset

    elsewhere, per_step = settings.training.elsewhere, settings.training.tasks_per_step
    assert elsewhere is not None
    job = run.iteration(iteration).job.resolve()
    job.mkdir(parents=True)
    draws = enumerate((task for step in steps for task in step), start=before * per_step)
    rows = [
        {
            "prompt": [{"role": "user", "content": task.turns[0]}],  # the agent loop makes the prompt
            "data_source": LOOP,
            "agent_name": LOOP,
            "extra_info": {"index": draw, "task_id": task.id},
        }
        for draw, task in draws
    ]
    Dataset.from_list(rows).to_parquet(job / "draws.parquet")
    loop = {
        "name": LOOP,
        "_target_": "training.elsewhere.verl_loop.CoEvolveAgentLoop",
        "run": str(run.root.resolve()),
        "iteration": iteration,
        "policy": policy,
    }
    (job / "loop.yaml").write_text(dump_yaml([loop]))
    argv = [str(Path(elsewhere.python).absolute()), "-m", "verl.trainer.main_ppo"]
    argv += [*overrides(settings.training, policy, job), *elsewhere.overrides]
    return argv, job / f"global_step_{len(steps)}" / "actor" / "huggingface"


def overrides(training: TrainingSettings, policy: str, job: Path) -> list[str]:
    """Return verl's settings, ``KEY=VALUE``, of a round."""
    updates = training.tasks_per_step // training.updates_per_step
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    given: dict[str, object] = {
        "data.train_files": str(job / "draws.parquet"),
        "data.val_files": str(job / "draws.parquet"),
        "data.train_batch_size": training.tasks_per_step,
        "data.shuffle": False,
        "data.max_prompt_length": training.max_tokens,
        "data.max_response_length": training.max_tokens,
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.model.path": policy,
        "actor_rollout_ref.model.use_remove_padding": False,  # that and its attention need FlashAttention, built apart
        "++actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.model.enable_gradient_checkpointing": training.gradient_checkpointing,
        f"{actor}.optim.lr": training.learning_rate,
        f"{actor}.optim.weight_decay": training.weight_decay,
        f"{actor}.optim.clip_grad": training.max_grad_norm,
        f"{actor}.ppo_mini_batch_size": updates,
        f"{actor}.ppo_micro_batch_size_per_gpu": training.micro_batch or 1,
        f"{actor}.clip_ratio_low": training.clip_low,
        f"{actor}.clip_ratio_high": training.clip_high,
        f"{actor}.clip_ratio_c": training.dual_clip or 1e6,
        f"{actor}.use_kl_loss": training.kl > 0,
        f"{actor}.kl_loss_coef": training.kl,
        f"{actor}.loss_agg_mode": _LOSSES[training.loss],
        f"{actor}.checkpoint.save_contents": ["model", "hf_model"],
        f"{rollout}.name": "vllm",
        f"{rollout}.n": training.rollouts_per_task,
        f"{rollout}.temperature": training.temperature,
        f"{rollout}.max_model_len": training.max_tokens,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": training.micro_batch or 1,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": training.micro_batch or 1,
        f"{rollout}.agent.agent_loop_config_path": str(job / "loop.yaml"),
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": training.steps,
        "trainer.save_freq": training.steps,
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "disable",
        "trainer.default_local_dir": str(job),
        "trainer.logger": ["console"],
    }
    return [f"{key}={json.dumps(value)}" for key, value in given.items()]
