"""A round that another engine trains: ``training.run_round`` with ``training.elsewhere``.

With verl 0.9 it starts a job and waits for its end; prime-rl trains beside the run, and the round waits until enough
groups were played. Either way it writes what a round of this project writes: trajectories, ``round.json`` and the
policy as a checkpoint, without an optimizer. The engine's own metrics stay with it.

verl's job differs from a round of this project: AdamW begins afresh, and the KL term is to the policy that the round
begins with, because a job knows one model. verl divides a group's reward by its standard deviation, as TRL does.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from environments.base import InputError
from memory.files import whole_folder, write_atomically
from memory.jsonl import dump_yaml
from memory.processes import exclusive, run_child
from memory.records import Task, Trajectory
from memory.run import RunDirectory, read_existing, read_json, write_json, write_jsonl
from memory.tasks import load_tasks, tasks_at
from training.elsewhere.rollouts import Played, RolloutReader, trajectories_of, trajectory_id
from training.grpo.checkpoints import (
    RoundCheckpoint,
    checkpoint_folder,
    complete_checkpoint,
    discard_after,
    discard_superseded,
)
from training.grpo.record import RoundFailure, RoundProgress, RoundRecord, RoundSeconds, RoundSettings, round_record
from training.grpo.task_sampler import round_tasks
from training.policy_files import check_folder
from training.rollout.policy import load_rendering, policy_folder
from training.settings import TrainingSettings

Groups = Mapping[int, Sequence[Played]]

POLL = 1.0
"""Seconds between two looks at what was played."""

NO_DEADLINE = 10 * 365 * 24 * 3600.0
"""A job ends with this process, which has a deadline (``deadlines.round``)."""

LOOP = "coevolve"
_LOSSES = {"grpo": "seq-mean-token-mean", "dapo": "token-mean"}
_POLICY = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")


def train_elsewhere(run: RunDirectory, iteration: int, resume: bool = False) -> None:
    """Let the engine of ``training.elsewhere`` train the round of ``iteration``, where it is not finished.

    One JSON line per step goes to stdout. ``resume`` begins a round that was killed afresh. Raises InputError for a
    user's mistake, RoundFailure and ChildFailure where the engine did not finish it.
    """
    with exclusive(run.round_lock_path, f"the training of {run.root}", end_orphan=resume):
        if not run.iteration(iteration).round.exists():
            asyncio.run(_train(run, iteration))


async def _train(run: RunDirectory, iteration: int) -> None:
    began, folder, settings = time.perf_counter(), run.iteration(iteration), run.settings(RoundSettings)
    training, before, policy = settings.training, 0, policy_folder(settings.policy.path)
    policy = str(Path(policy).resolve()) if Path(policy).is_dir() else policy  # verl's processes start elsewhere
    assert training.elsewhere is not None
    if iteration > 0:
        former = read_json(run.iteration(iteration - 1).round, RoundRecord)
        before, policy = former.last_step, str((run.root / former.policy).resolve())
    discard_after(run.policy_path, before)
    tasks = tasks_at(load_tasks(run), iteration)
    if training.elsewhere.output is None:
        groups, weights = await _by_job(run, iteration, settings, tasks, policy, before)
    else:
        groups, weights = await _beside(run, iteration, settings, Path(training.elsewhere.output))
    trajectories = trajectories_of(
        groups, iteration=iteration, first_step=before + 1, per_step=training.tasks_per_step, seed=settings.seed
    )
    last, seconds = before + training.steps, RoundSeconds(optimisation=time.perf_counter() - began)
    target = checkpoint_folder(run.policy_path, last)
    try:
        record = round_record(
            iteration=iteration,
            policy=str(target.relative_to(run.root)),
            tasks=len(tasks),
            trajectories=trajectories,
            metrics=(),
            updates=training.updates_per_step,
            measured=seconds,
        )
    except ValueError as error:
        cause = next(one.infrastructure_error for one in trajectories if one.infrastructure_error is not None)
        raise RoundFailure(f"{error}: {cause}") from None
    check_folder(weights)
    write_jsonl(folder.trajectories, trajectories)
    run.policy_path.mkdir(exist_ok=True)
    with whole_folder(target) as copy:
        for file in (file for pattern in _POLICY for file in weights.glob(pattern)):
            shutil.copyfile(file, copy / file.name)
    card, _, _ = load_rendering(policy, settings.policy)
    length = folder.trajectories.stat().st_size
    mark = RoundCheckpoint(iteration=iteration, step=last, last_step=last, log_bytes=length, seconds=seconds)
    complete_checkpoint(target, mark, card)
    discard_superseded(run.policy_path, last)
    write_json(folder.round, record)


async def _by_job(
    run: RunDirectory, iteration: int, settings: RoundSettings, tasks: Sequence[Task], policy: str, before: int
) -> tuple[Groups, Path]:
    """Run verl on the round's draws; return their groups and the folder of weights that it wrote."""
    training, folder = settings.training, run.iteration(iteration)
    steps = round_tasks(tasks, settings, iteration)
    for left in (folder.played_elsewhere, folder.job):
        shutil.rmtree(left, ignore_errors=True)  # of a job that was killed
    argv, weights = write_job(run, iteration, settings, policy, steps, before)
    recorded, shown = RolloutReader(folder.played_elsewhere), list[int]()
    job = asyncio.create_task(
        run_child(argv, log_path=folder.engine_log, deadline=NO_DEADLINE, on_line=lambda line: None)
    )
    while not (await asyncio.wait([job], timeout=POLL))[0]:
        _show(recorded.groups(training.rollouts_per_task), shown, settings)
    job.result()
    groups = recorded.groups(training.rollouts_per_task)
    _show(groups, shown, settings)
    if len(groups) < (wanted := sum(map(len, steps))) or not weights.is_dir():
        raise RoundFailure(
            f"verl ended after {len(groups)} of {wanted} groups, {'with' if weights.is_dir() else 'without'} weights: "
            f"see {folder.engine_log}"
        )
    return groups, weights


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
    write_atomically(job / "loop.yaml", [dump_yaml([loop]).encode()])
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


async def _beside(run: RunDirectory, iteration: int, settings: RoundSettings, output: Path) -> tuple[Groups, Path]:
    """Wait until prime-rl has played a round's groups beyond those of earlier rounds; return them and its weights.

    Both are read while it goes on: groups that it drops are not waited for, and the weights are the newest.
    """
    earlier = {
        one.id for number in range(iteration) for one in read_existing(run.iteration(number).trajectories, Trajectory)
    }
    wanted = settings.training.steps * settings.training.tasks_per_step
    recorded, shown, groups = RolloutReader(run.played_path), list[int](), dict[int, list[Played]]()
    while len(groups) < wanted:
        groups = {
            draw: group
            for draw, group in recorded.groups(settings.training.rollouts_per_task).items()
            if trajectory_id(group[0].task_id, draw, 0, settings.seed) not in earlier
        }
        _show(groups, shown, settings)
        await asyncio.sleep(POLL)
    if (weights := newest_weights(output)) is None:
        raise RoundFailure(f"{output} has no finished weights: let prime-rl write checkpoints or broadcasts there")
    taken, known = dict(list(groups.items())[:wanted]), {task.id for task in load_tasks(run)}
    if foreign := {one[0].task_id for one in taken.values()} - known:
        raise InputError(f"{run.played_path} has rollouts of {min(foreign)}, which is no task of {run.root}")
    return taken, weights


def newest_weights(output: Path) -> Path | None:
    """Return the newest weights that prime-rl completed in its output folder; None before there are any."""
    found = {}
    for stable in (*output.glob("broadcasts/step_*/STABLE"), *output.glob("checkpoints/step_*/STABLE")):
        number, kind = stable.parent.name.removeprefix("step_"), stable.parts[-3]
        folder = stable.parent / "weight" if kind == "checkpoints" else stable.parent
        if number.isdecimal() and next(folder.glob("*.safetensors"), None):
            found[int(number), kind] = folder
    return found[max(found)] if found else None


def _show(groups: Groups, shown: list[int], settings: RoundSettings) -> None:
    """Print the progress of each step whose groups have become whole; ``shown`` are the draws of steps before it."""
    per_step, steps = settings.training.tasks_per_step, settings.training.steps
    fresh = [draw for draw in groups if draw not in set(shown)]
    while len(fresh) >= per_step and len(shown) < per_step * steps:
        shown += fresh[:per_step]
        rollouts = [one for draw in fresh[:per_step] for one in groups[draw]]
        outcomes = [one.outcome for one in rollouts if one.outcome is not None]
        done = RoundProgress(
            step=len(shown) // per_step,
            of=steps,
            success=sum(one.success for one in outcomes) / max(1, len(outcomes)),
            reward=sum(one.reward or 0.0 for one in rollouts) / max(1, len(outcomes)),
            infrastructure_errors=len(rollouts) - len(outcomes),
        )
        print(done.model_dump_json(), flush=True)
        del fresh[:per_step]
