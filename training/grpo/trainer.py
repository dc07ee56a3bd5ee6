"""A round of GRPO with TRL: configuration in our order of tasks, checkpoints, and the loop itself.

TRL's part is the loss, the reference model, the optimizer and its state. Ours is the rollout function and callbacks
into public hooks. Import this module late: it needs torch, transformers and TRL.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_pt_utils import safe_globals
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from environments.base import EnvironmentFault, InputError
from environments.command import writing
from memory.jsonl import derive_seed
from training.grpo.checkpoints import checkpoint_folder
from training.grpo.group_rollouts import GroupRollouts, verdict_reward
from training.grpo.lending import written_logps
from training.grpo.record import RoundFailure, RoundPlan, Stopwatch
from training.rollout.lora import lora_config
from training.rollout.policy import check_weights
from training.settings import LoraSettings, TrainingSettings

ScoreTokens = Callable[..., tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]]

SCALED_BY_STD = {"grpo": "group", "dapo": "group", "dr_grpo": "none"}
"""Whether advantages are divided by the group's standard deviation: Dr. GRPO's point is that they are not."""

LAST_OF_DECAY = 0.1
"""What is left of the learning rate when its decay is over."""

_STATE = ("optimizer.pt", "scheduler.pt", "rng_state*.pth")

ROWS_TOGETHER = 8
"""Rows that go through the model at once, sorted by length (our choice, measured: a step of 64 rollouts of the tiny
policy took 2.5 s of CPU time in one piece, 1.2 s by sixteens, 0.8 s by eights)."""


class RoundTrainer(GRPOTrainer):
    """GRPOTrainer that scores equal rows once and rows of like length together, adds lent references' loss, and writes
    no model card.

    TRL pads every row of a step to the longest, so that one rollout that rambles makes the other 63 as dear as itself.
    A small policy says the same in several rollouts of a group: four in ten of its rows are distinct (measured).
    """

    def create_model_card(self, *args: object, **kwargs: object) -> None:
        """Nothing: the card would be a draft that names no data and a model id that does not exist."""

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """TRL's schedule, which falls over the run's ``decay_steps`` and not over the steps until this round ends."""
        rollouts = self.rollout_func
        if isinstance(rollouts, GroupRollouts) and rollouts.settings.decay_steps is not None:
            num_training_steps = rollouts.settings.decay_steps
        scheduler: torch.optim.lr_scheduler.LRScheduler = super().create_scheduler(num_training_steps, optimizer)
        return scheduler

    def _save_checkpoint(self, model: torch.nn.Module, trial: object) -> None:
        """Save, or leave nothing behind. Raises StorageError naming the folder where the disk takes no more."""
        folder = checkpoint_folder(Path(str(self.args.output_dir)), self.state.global_step)
        try:
            with writing(folder):
                super()._save_checkpoint(model, trial)  # type: ignore[no-untyped-call]
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """What TRL's method of this name gives, with SEAL's weights on the advantages: (B, T) in place of (B,).

        TRL's loss takes advantages of either shape, for subclasses that give one a token.
        """
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        rollouts = self.rollout_func
        if isinstance(rollouts, GroupRollouts):
            began = time.perf_counter()
            advantages: torch.Tensor = batch["advantages"]
            weights = rollouts.token_weights(advantages.tolist(), batch["completion_ids"].shape[1])
            if weights is not None:
                batch["advantages"] = advantages.unsqueeze(1) * advantages.new_tensor(weights)
                rollouts.stopwatch.seal += time.perf_counter() - began
        return batch

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, Any], *args: object, **kwargs: object
    ) -> torch.Tensor:
        """TRL's loss of a micro-batch, and with it the loss of the references that this micro-batch is lent."""
        loss: torch.Tensor = super().compute_loss(model, inputs, *args, **kwargs)
        rollouts = self.rollout_func
        if not isinstance(rollouts, GroupRollouts) or not (due := rollouts.due_references()):
            return loss
        logps, mask = written_logps(self, model, due)
        losses = -(logps * mask).sum(dim=1) / mask.sum(dim=1)
        weight = rollouts.settings.lend_weight / rollouts.settings.tasks_per_step
        return torch.add(loss, losses.sum(), alpha=weight)

    def _get_per_token_logps_and_entropies(
        self,
        model: torch.nn.Module,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **others: object,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """What TRL's method of this name gives, row for row, computed once for rows that are equal, ROWS_TOGETHER at
        a time, without their padding.

        A smaller ``batch_size`` (micro-batches) is kept to. Dropout makes equal rows differ: with it each is computed.
        ``others`` belong to images and to experts: when any is given, TRL's own way is taken.
        """
        score: ScoreTokens = super()._get_per_token_logps_and_entropies
        together = min(ROWS_TOGETHER, batch_size or ROWS_TOGETHER)
        if len(input_ids) <= together or any(value is not None and value is not False for value in others.values()):
            return score(model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others)
        assert isinstance(self.args, GRPOConfig)
        kept, back = _distinct(input_ids, attention_mask, every=not self.args.disable_dropout)
        input_ids, attention_mask = input_ids[kept], attention_mask[kept]
        width = input_ids.shape[1]
        columns = torch.arange(width, device=input_ids.device)
        begins = torch.where(attention_mask.bool(), columns, width).amin(dim=1)
        ends = torch.where(attention_mask.bool(), columns + 1, 0).amax(dim=1)
        order = torch.argsort(ends, stable=True)
        logps: list[torch.Tensor] = []
        entropies: list[torch.Tensor] = []
        for rows in torch.split(order, together):
            begin, cut = int(begins[rows].min()), width - int(ends[rows].max())
            part = (rows, slice(begin, width - cut))
            scored, entropy, _ = score(
                model, input_ids[part], attention_mask[part], logits_to_keep - cut, None, compute_entropy
            )
            logps.append(torch.nn.functional.pad(scored, (0, cut)))
            if entropy is not None:
                entropies.append(torch.nn.functional.pad(entropy, (0, cut)))
        back = torch.argsort(order)[back]
        return torch.cat(logps)[back], torch.cat(entropies)[back] if entropies else None, None


def _distinct(ids: torch.Tensor, attended: torch.Tensor, every: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first of each set of equal rows, and for every row which of those it equals: (distinct rows,), (rows,).

    ``every``: all rows, equal or not.
    """
    places = torch.arange(len(ids), device=ids.device)
    if every:
        return places, places
    _, equal_to = torch.unique(torch.cat([ids, attended], dim=1), dim=0, return_inverse=True)
    first = torch.full_like(places, len(ids)).scatter_reduce(0, equal_to, places, "amin")
    kept, _ = torch.sort(first[: int(equal_to.max()) + 1])
    return kept, torch.searchsorted(kept, first[equal_to])


class RoundCallback(TrainerCallback):
    """Seeds each step, reports it, stops at a loss that is not a number, and completes checkpoints."""

    def __init__(
        self,
        plan: RoundPlan,
        stopwatch: Stopwatch,
        on_step: Callable[[int], None],
        on_checkpoint: Callable[[int], None],
    ) -> None:
        self.plan = plan
        self.stopwatch = stopwatch
        self.on_step = on_step
        self.on_checkpoint = on_checkpoint
        self.logged = 0.0

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Make what TRL draws (it permutes each batch) depend on the step alone, not on where the process started."""
        set_seed(derive_seed(self.plan.run_seed, "step", state.global_step) % 2**32)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        """Report a finished step. Raises RoundFailure for a loss or gradient that is not finite, before it is saved."""
        logs = kwargs["logs"]
        assert isinstance(logs, dict)
        if "loss" not in logs:  # the summary at the end of training
            return
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs[name]):
                raise RoundFailure(f"{name} is {logs[name]} at step {state.global_step}: lower training.learning_rate")
        self.on_step(state.global_step)
        self.logged = time.perf_counter()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """The trainer saves right after it logs: complete that checkpoint."""
        self.stopwatch.save += time.perf_counter() - self.logged
        self.on_checkpoint(state.global_step)


def trainer_config(
    settings: TrainingSettings,
    plan: RoundPlan,
    policies: Path,
    checkpoint_steps: int,
    on_cpu: bool,
    bfloat16: bool = False,
    lora: LoraSettings | None = None,
) -> GRPOConfig:
    """TRL's configuration of a round: one step is one batch of ``tasks_per_step`` groups of K, in the plan's order.

    Micro-batches are TRL's own gradient accumulation: rollouts of a step are drawn together, advantages are those of
    whole groups, and the update is that of the unsplit step; only the logged KL is then a mean over micro-batches.
    ``bfloat16``: matrix products in it. ``max_steps`` is the global step that ends the round, because the trainer goes
    on from the last checkpoint's. A schedule that decays does so over steps that the settings count, because one over
    ``max_steps`` would jump with every round's larger number.
    """
    rows = len(plan.steps[0]) * settings.rollouts_per_task
    together = settings.micro_batch or rows
    return GRPOConfig(
        output_dir=str(policies),
        max_steps=plan.last_step,
        per_device_train_batch_size=together,
        gradient_accumulation_steps=rows // together,
        steps_per_generation=rows // together,
        num_generations=settings.rollouts_per_task,
        shuffle_dataset=False,
        ignore_data_skip=True,
        max_completion_length=settings.max_tokens,
        temperature=settings.temperature,
        loss_type=settings.loss,
        scale_rewards=SCALED_BY_STD[settings.loss],
        beta=settings.kl,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup_steps,
        **_schedule(settings),
        max_grad_norm=settings.max_grad_norm,
        # TRL's switch would silence the adapter's dropout with the model's own.
        disable_dropout=lora is None or lora.dropout == 0.0,
        seed=derive_seed(plan.run_seed, plan.iteration, "trainer") % 2**32,
        use_cpu=on_cpu,
        bf16=bfloat16,
        gradient_checkpointing=settings.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if settings.gradient_checkpointing else None,
        dataloader_pin_memory=not on_cpu,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=checkpoint_steps,
        report_to="none",
        disable_tqdm=True,
    )


def _schedule(settings: TrainingSettings) -> dict[str, Any]:
    if settings.decay_steps is None:
        return {"lr_scheduler_type": "constant_with_warmup"}
    last = settings.learning_rate * LAST_OF_DECAY
    return {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": last, "power": 1.0}}


def train(
    config: GRPOConfig,
    rollouts: GroupRollouts,
    callback: RoundCallback,
    checkpoint: Path | None,
    lora: LoraSettings | None = None,
) -> GRPOTrainer:
    """Train the steps of the plan from ``checkpoint`` (None: from the starter, with a fresh optimizer).

    The policy must hold the *starter*, loaded from its path: TRL builds the reference of the KL term from that path,
    and only then loads the checkpoint's weights into the policy. With ``lora`` the adapter is put into the policy's
    layers in place, the checkpoint is the adapter's, and the reference is the policy without it. One trainer a
    process. Raises RoundFailure, EnvironmentFault, InputError for a ``lora`` that does not fit the policy and for a
    checkpoint with a file that cannot be read.
    """
    if checkpoint is not None:
        check_weights(checkpoint)
        check_state(checkpoint)
    adapter = None if lora is None else lora_config(lora, rollouts.policy.model)
    if adapter is not None:
        set_seed(config.seed)  # peft draws the adapter's first weights
    prompts = [task.id for step in rollouts.plan.steps for task in step]
    trainer = RoundTrainer(
        model=rollouts.policy.model,
        args=config,
        reward_funcs=[verdict_reward],
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=rollouts.policy.tokenizer,
        rollout_func=rollouts,
        callbacks=[callback],
        peft_config=adapter,
    )
    for printer in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printer)
    rollouts.stopwatch.loaded()
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise RoundFailure(_out_of_memory(trainer.state.global_step + 1, error)) from error
    except RuntimeError as error:
        if isinstance(error, RoundFailure | EnvironmentFault) or "can't allocate memory" not in str(error):
            raise
        raise RoundFailure(_out_of_memory(trainer.state.global_step + 1, error)) from error
    return trainer


def check_state(checkpoint: Path) -> None:
    """Look at the trainer's own files before it loads them, as it does: tensors and plain values, never any code.

    Raises InputError that names the file which is cut or damaged, or holds something else.
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


def _out_of_memory(step: int, error: BaseException) -> str:
    first_line = str(error).strip().partition("\n")[0]
    return f"out of memory at step {step}: set training.micro_batch, or lower training.max_tokens ({first_line})"
