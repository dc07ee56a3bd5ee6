"""The run of TRL's trainer in a round: its configuration, what happens at each step, and how it ends.

``training.grpo.trainer`` states the objective. Import this module late: it needs torch, transformers and TRL.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_pt_utils import safe_globals
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from environments.base import EnvironmentFault, InputError
from memory.jsonl import derive_seed
from training.grpo.group_rollouts import GroupRollouts, outcome_reward, step_seed
from training.grpo.record import RoundFailure, RoundPlan, Stopwatch
from training.grpo.trainer import RoundTrainer, steps_done
from training.policy_files import check_folder
from training.rollout.policy import lora_config
from training.settings import LoraSettings, TrainingSettings

_STATE = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "rng_state*.pth")


@dataclass(eq=False)
class RoundCallback(TrainerCallback):
    """Seeds each update, reports each step, stops at a loss that is not finite, and completes checkpoints.

    TRL's ``global_step`` counts updates; everything that is reported counts steps. ``on_step`` is called with TRL's log
    of the step.
    """

    plan: RoundPlan
    stopwatch: Stopwatch
    on_step: Callable[[int, Mapping[str, float]], None]
    on_checkpoint: Callable[[int], None]
    logged: float = field(default=0.0, init=False)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Set the random state from the number of the update."""
        # Each batch is permuted: a resumed round must permute as an undisturbed one does.
        set_seed(step_seed(self.plan.run_seed, state.global_step))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        """Report a finished step. Raises RoundFailure for a loss or gradient that is not finite, before it is saved."""
        logs = kwargs["logs"]
        assert isinstance(logs, dict)
        if "loss" not in logs:  # the summary at the end of training
            return
        step = steps_done(args, state.global_step)
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs[name]):
                raise RoundFailure(f"{name} is {logs[name]} at step {step}: lower training.learning_rate")
        self.on_step(step, {name: float(value) for name, value in logs.items()})
        self.logged = time.perf_counter()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Complete the checkpoint that the trainer has just saved; it saves right after it logs."""
        self.stopwatch.save += time.perf_counter() - self.logged
        self.on_checkpoint(steps_done(args, state.global_step))


def trainer_config(
    settings: TrainingSettings,
    plan: RoundPlan,
    policies: Path,
    checkpoint_steps: int,
    on_cpu: bool,
    bfloat16: bool = False,
    corrected: bool = False,
) -> GRPOConfig:
    """Return TRL's configuration of a round: one step is one batch of ``tasks_per_step`` groups of K, in plan order.

    Checkpoints go to ``policies``, every ``checkpoint_steps`` global steps and at the end. ``bfloat16``: matrix
    products are computed in it. ``corrected``: importance sampling for the engine that samples.
    """
    # Micro-batches are TRL's own gradient accumulation: the rollouts of a step are drawn together, and their advantages
    # are those of whole groups. With as many of them per generation as per update pi_old is the policy itself. TRL
    # calls an update a step: whatever the settings count in steps is given to it times the updates of one.
    updates = settings.updates_per_step
    rows = len(plan.steps[0]) * settings.rollouts_per_task // (updates * settings.processes)
    together = settings.micro_batch or rows
    return GRPOConfig(
        output_dir=str(policies),
        # The global step that ends the round: the trainer continues from the last checkpoint's.
        max_steps=plan.last_step * updates,
        # Rows are scored in as many forwards as they need, which differs between processes, and DDP would synchronise
        # buffers in each: they hold no statistics in a language model.
        ddp_broadcast_buffers=False,
        ddp_find_unused_parameters=False,
        # FSDP2 of the layers that the model's class names; a checkpoint has whole weights. It was not run on GPUs;
        # tested on CPUs over gloo is torch's fully_shard of the tiny policy: its weights gathered, equal gradients.
        fsdp=settings.launch is not None and settings.launch.fsdp,  # type: ignore[arg-type]  # a truth value, as documented
        ddp_timeout=1800 if settings.launch is None else math.ceil(settings.launch.deadline),
        per_device_train_batch_size=together,
        gradient_accumulation_steps=rows // together,
        steps_per_generation=rows // together * updates,
        num_generations=settings.rollouts_per_task,
        shuffle_dataset=False,
        ignore_data_skip=True,
        max_completion_length=settings.max_tokens,
        temperature=settings.temperature,
        # Its normaliser is the step's, which ``per_group`` makes each group's.
        loss_type="dapo" if settings.loss == "group_tokens" else settings.loss,
        scale_rewards="group",
        epsilon=settings.clip_low,
        epsilon_high=settings.clip_high,
        delta=settings.dual_clip,
        beta=settings.kl,
        # TRL multiplies the term by the ratio as its default; both papers have the plain estimate.
        use_bias_correction_kl=False,
        vllm_importance_sampling_correction=corrected,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=settings.max_grad_norm,
        weight_decay=settings.weight_decay,
        disable_dropout=True,
        seed=derive_seed(plan.run_seed, plan.iteration, "trainer") % 2**32,
        use_cpu=on_cpu,
        bf16=bfloat16,
        gradient_checkpointing=settings.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if settings.gradient_checkpointing else None,
        dataloader_pin_memory=not on_cpu,
        logging_steps=updates,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=checkpoint_steps * updates,
        report_to="none",
        disable_tqdm=True,
    )


def train(
    config: GRPOConfig,
    rollouts: GroupRollouts,
    callback: RoundCallback,
    checkpoint: Path | None,
    lora: LoraSettings | None = None,
    beginning: TrainerCallback | None = None,
) -> GRPOTrainer:
    """Train the steps of the plan from ``checkpoint`` (None: from the initial policy, with a fresh optimizer).

    The policy must hold the *initial* weights, loaded from their path: TRL builds the reference of the KL term from
    that path, and only then loads the checkpoint's weights into the policy. With ``lora`` the adapter is put into the
    policy's layers in place, the checkpoint is the adapter's, and the reference is the policy without it. ``beginning``
    is called before the first step (``training.grpo.expert``). Raises RoundFailure, EnvironmentFault, InputError for a
    ``lora`` that does not fit the policy and for a checkpoint with a file that cannot be read.
    """
    if checkpoint is not None:
        check_folder(checkpoint)
        check_state(checkpoint)
    adapter = None if lora is None else lora_config(lora, rollouts.policy.model)
    if adapter is not None:
        set_seed(config.seed)  # peft draws the adapter's first weights
    prompts = rollouts.prompts()
    trainer = RoundTrainer(
        rollouts,
        model=rollouts.policy.model,
        args=config,
        reward_funcs=[outcome_reward],
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=rollouts.policy.tokenizer,
        callbacks=[callback] if beginning is None else [callback, beginning],
        peft_config=adapter,
    )
    trainer.remove_callback(PrinterCallback)
    rollouts.stopwatch.loaded()
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except (RuntimeError, MemoryError) as error:
        full = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
        if not full or isinstance(error, RoundFailure | EnvironmentFault):
            raise
        step, reason = steps_done(config, trainer.state.global_step + 1), str(error).strip().partition("\n")[0]
        raise RoundFailure(
            f"out of memory at step {step}: set training.micro_batch, or lower training.max_tokens ({reason})"
        ) from error
    return trainer


def check_state(checkpoint: Path) -> None:
    """Read the trainer's own files before it does, in its way: tensors and plain values, never any code.

    Raises InputError that names a file which is cut or damaged, or holds something else.
    """
    for file in sorted(path for pattern in _STATE for path in checkpoint.glob(pattern)):
        try:
            with safe_globals():  # type: ignore[no-untyped-call]
                torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:
            raise InputError(
                f"{file} is cut or damaged, or a pickle of something else than the trainer's state, which is never "
                f"read ({type(error).__name__}): restore {checkpoint} from a copy"
            ) from error
