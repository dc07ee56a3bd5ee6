"""A round of GRPO with TRL 1.16.0: the objective, the configuration, and the hooks into TRL's trainer.

**One step** is ``tasks_per_step`` groups of K rollouts, sampled by the policy pi_old, and ``updates_per_step`` updates
of pi by the optimizer; pi is pi_old before the first of them, and each group is learnt from in one. TRL computes the
loss, holds the reference model and the optimizer; rollouts, rewards and checkpoints are ours.

Symbols: row i is one rollout, t a position after its first prompt. N rows and G groups in an update, U updates in a
step. m_it is 1 on the ids that the policy wrote and 0 on everything else: observations, padding, and all of a rollout
that the environment failed; ``max_trained_tokens`` cuts a row. R_i is the reward in [0, 1], None where the environment
failed. Settings are those of ``training``.

Advantage   A_i  = (R_i - mean(R)) / (std(R) + 1e-4), over the rewards of i's group that are not None; std with n - 1.
                   0 where R_i is None or the only one of its group.
Weight      A_it = w_i A_i with SEAL (``training.seal``), else A_i. The mean of w is not scaled back to 1.
Ratio       r_it = pi(it) / pi_old(it), from logits divided by ``temperature``. With one update per step TRL takes
                   pi_old = stop_gradient(pi): r is 1 and its gradient that of log pi. With several, the trainer's model
                   scores all rows of the step before the first update, in which r is 1 but for float rounding.
Sampler     An engine that rounds otherwise than the trainer samples from another policy, mu. With vLLM in bfloat16
                   each token's surrogate is multiplied by the rollout's pi_old / mu, as the engine reports mu, or by 0
                   where it is above 3; the trainer's model then scores pi_old with one update per step too. This is
                   TRL's own correction (sequence_mask; the papers have none); else mu enters no loss. With any sampler
                   |log pi_old - log mu| is logged over the step's written tokens (``GAP``).
Clip        to 1 - ``clip_low`` .. 1 + ``clip_high``. From the second update of a step on r differs from 1. A token
                   whose advantage pushes its ratio beyond its bound has the gradient of the KL term alone.
                   ``dual_clip`` bounds r where A_it < 0.
KL          k_it = exp(d) - d - 1 with d = log pi_ref(it) - log pi(it) (the k3 estimator), at the same temperature, as a
                   term of the loss. pi_ref is the initial policy of the *run*; with LoRA its frozen base.
Token       l_it = - min(r_it A_it, clip(r_it) A_it) + ``kl`` * k_it
Loss        ``group_tokens``: 1/G sum_g [ sum_{i in g, t} m_it l_it / max(1, sum_{i in g, t} m_it) ], the mean over
                         groups of their token means. So is the surrogate; the KL term has the normaliser of ``dapo``.
                         A failed rollout has no tokens; a group that failed as a whole is one of the G.
            ``grpo``     1/N sum_i [ sum_t m_it l_it / max(1, sum_t m_it) ]: the mean over rows of their token means. A
                         failed rollout is one of the N: it shrinks the update by its share.
            ``dapo``     sum_it m_it l_it / M, with M the mean over the step's updates of sum_it m_it.
Expert step ``training.expert``: supervised updates before the round's first step (``training.grpo.expert``).
Update      AdamW with ``weight_decay``, gradient norm clipped to ``max_grad_norm``; the learning rate is constant.
Micro-batches (``micro_batch``) split the rows of an update, not its groups' statistics: the update is that of the
unsplit rows. Only the logged KL is then a mean over micro-batches.

**Counts.** TRL's ``global_step`` counts updates. Seeds of rollouts, records, names of checkpoints, resumption and what
is reported count steps (``steps_done``). Checkpoints are saved at the end of a step alone.

**Several processes** (``training.launch``; ours). Each plays and learns from whole groups; an update holds the same
groups whatever their number, and gradients are averaged, so that the sums above are over all processes. The number of
tokens of the step is that of all; the token means of ``group_tokens`` are over the groups of all.

**Where this departs from TRL 1.16.0**
- Defaults: ``loss_type`` (TRL: dapo), ``beta`` 1e-3 (0), ``epsilon_high`` 0.28 (0.2), a constant schedule (linear),
  dropout off (on), tasks in the plan's order (shuffled), a random state set from the run's seed before each update.
- ``RoundTrainer`` overrides: advantages times SEAL's weights, and scaled ones for ``group_tokens``; whole
  groups in each of several updates, in an order drawn per step, and their rows together in micro-batches (TRL: shuffled
  rows); log-probabilities computed once for equal rows and in batches of like length, equal but for float rounding,
  and with ``kl: 0`` without a gradient where the advantage is 0; checkpoints that are named by steps, and are whole or
  not there; no model card.
- For models of a large vocabulary on one CPU: prompts of a group computed once, the head on written
  tokens alone (``training.grpo.scoring``). Figures of other tokens are 0, and TRL masks them.
- Rollouts come from ``rollout_func``; TRL's ``environment_factory`` ends an episode with its first user turn.

docs/papers.md has where the objective is that of CoEvolve (Eq. 1, table 9) and of SEAL's released code, by which
settings, and where it departs from them.

Import this module late: it needs torch, transformers and TRL.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import TrainingArguments
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from environments.command import writing
from training.device_memory import ROWS_TOGETHER, give_back_freed
from training.grpo.advantages import per_group
from training.grpo.checkpoints import checkpoint_folder
from training.grpo.group_rollouts import GroupRollouts
from training.grpo.record import GAP, LARGEST_GAP
from training.grpo.scoring import can_score, score_written

Scored = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""What TRL's scoring of tokens returns: log-probabilities, entropies, and the loss of experts."""


class RoundTrainer(GRPOTrainer):
    """GRPOTrainer on the rollouts of a round: the hooks that the module's docstring lists."""

    def __init__(self, rollouts: GroupRollouts, **given: Any) -> None:  # noqa: ANN401 - TRL's own arguments
        self.rollouts = rollouts
        self._parts: Sequence[dict[str, torch.Tensor | None]] = ()
        self._idle: torch.Tensor | None = None
        """Which of the rows that are scored next have no gradient, (rows,); None: none of them is known to."""
        self._mask: torch.Tensor | None = None
        """Which tokens of the rows that are scored next the policy wrote, (rows, tokens); None: it is not known."""
        self._scored: torch.Tensor | None = None
        """Log-probabilities of the micro-batch by the policy that is updated, (rows, tokens), without a gradient."""
        self._gaps: list[torch.Tensor] = []
        """Of each micro-batch since the last log: sum, number and largest of the sampler's differences, (3,)."""
        super().__init__(rollout_func=self._roll_out, **given)
        assert isinstance(self.args, GRPOConfig)
        if self.args.vllm_importance_sampling_correction:
            # TRL corrects for the sampler only where it is configured as if vLLM sampled. It would start an engine of
            # its own: the rollouts have theirs, load its weights themselves, and know whether they arrived.
            self.use_vllm = True
            engine: Any = SimpleNamespace(sync_weights=lambda: None)
            self.vllm_generation = engine
            self._last_loaded_step = -1

    def _roll_out(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Play a step, as TRL's rollout function."""
        rows = self.rollouts.step(prompts, trainer)
        self._mask = pad_sequence(list(map(torch.tensor, rows["env_mask"])), batch_first=True)
        give_back_freed(self.accelerator.device.type)
        return rows

    def create_model_card(self, *args: object, **kwargs: object) -> None:
        """Write nothing: the card would be a draft that names no data and a model id that does not exist."""

    def _save_checkpoint(self, model: torch.nn.Module, trial: object) -> None:
        """Save under the number of the step, or leave nothing behind.

        Raises StorageError that names the folder when the disk is full.
        """
        policies, done = Path(str(self.args.output_dir)), self.state.global_step
        # TRL names the folder by its own count, of updates. Nothing that counts is there: later steps are not done yet.
        written, folder = (checkpoint_folder(policies, one) for one in (done, steps_done(self.args, done)))
        ranks = self.rollouts.ranks
        try:
            with writing(folder):
                super()._save_checkpoint(model, trial)  # type: ignore[no-untyped-call]
            ranks.gather(None)  # every process has written its random state
            if written != folder and ranks.first:
                written.rename(folder)
        except Exception:
            if ranks.first:
                shutil.rmtree(written, ignore_errors=True)
            raise

    def _prepare_inputs(self, generation_batch: Any) -> Any:  # noqa: ANN401 - TRL's own types
        """Return the next micro-batch; where a step has several, they take its rows in the order of play.

        TRL shuffles the rows of a step before it splits them, so that every group would be part of every update, and
        prompts could not be shared in a micro-batch.
        """
        assert isinstance(self.args, GRPOConfig)
        parts = self.args.steps_per_generation
        assert parts is not None
        if parts == 1:
            return super()._prepare_inputs(generation_batch)
        if self._step % parts == 0:
            self._parts = split_tensor_dict(self._generate_and_score_completions(generation_batch), parts)
        return self._parts[self._step % parts]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return what TRL's method returns, with other advantages: times SEAL's weights of rows, and with
        ``loss: group_tokens`` so scaled that the step's normaliser becomes each group's.
        """
        inputs_of_step: dict[str, Any] = super()._generate_and_score_completions(inputs)
        rollouts, advantages = self.rollouts, inputs_of_step["advantages"]
        if rollouts.weights is not None:
            advantages = advantages * advantages.new_tensor(rollouts.weights)
        if rollouts.settings.loss == "group_tokens":
            sampled = inputs_of_step["completion_mask"] * inputs_of_step["tool_mask"]
            # The number of tokens is that of all processes, which average their gradients.
            total = inputs_of_step["num_items_in_batch"] / rollouts.ranks.count
            advantages = advantages * per_group(sampled.sum(dim=1), total, rollouts.settings.rollouts_per_task)
        inputs_of_step["advantages"] = advantages
        return inputs_of_step

    def training_step(self, *given: Any, **named: Any) -> torch.Tensor:  # noqa: ANN401 - TRL's own arguments
        """Return the loss of a micro-batch, whose gradients are added up, and give back what it took on a CPU."""
        loss: torch.Tensor = super().training_step(*given, **named)  # type: ignore[no-untyped-call]
        give_back_freed(self.accelerator.device.type)
        return loss

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, Any], *args: object, **kwargs: object
    ) -> torch.Tensor:
        """Return TRL's loss of a micro-batch, and note how far the sampler was from pi_old on its tokens."""
        # Under a KL term no row is without a gradient, and several processes make as many forwards and backwards.
        apart = self.beta == 0.0 and self.rollouts.ranks.count == 1
        self._idle = inputs["advantages"] == 0.0 if apart else None
        self._mask = inputs["completion_mask"] * inputs["tool_mask"]
        loss: torch.Tensor = super().compute_loss(model, inputs, *args, **kwargs)
        old = inputs.get("old_per_token_logps", self._scored)
        assert old is not None
        assert self._mask is not None
        gaps = (old - inputs["sampling_per_token_logps"]).abs()[self._mask.bool()].double()
        gaps = gaps[~gaps.isnan()]  # an engine may report none of a token
        largest = gaps.max() if len(gaps) else gaps.sum()
        self._gaps.append(torch.stack([gaps.sum(), gaps.new_tensor(len(gaps)), largest]))
        self._idle = self._mask = self._scored = None
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add to TRL's log of an update the mean and the largest difference of the sampler, over all processes."""
        if self._gaps:
            sums, counts, largest = self.accelerator.gather(torch.stack(self._gaps)).unbind(dim=1)
            logs |= {GAP: float(sums.sum() / counts.sum().clamp(min=1)), LARGEST_GAP: float(largest.max())}
            self._gaps = []
        super().log(logs, start_time)

    def _get_per_token_logps_and_entropies(
        self,
        *given: Any,  # noqa: ANN401 - TRL's own arguments
        **named: Any,  # noqa: ANN401 - TRL's own arguments
    ) -> Scored:
        """Return what TRL's method returns, as ``_scores`` computes it."""
        found = self._scores(*given, **named)
        self._scored = found[0].detach()
        return found

    def _scores(
        self,
        model: torch.nn.Module,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **others: object,
    ) -> Scored:
        """Return what TRL's method returns, row for row, from ROWS_TOGETHER rows at a time without their padding.

        Rows without a gradient (groups whose rewards are equal, most of them early and late in a run) are scored
        without one, for TRL's figures alone. A smaller ``batch_size`` (micro-batches) is kept. ``others`` belong to
        images and to experts: when any is given, TRL's own way is taken.
        """
        # TRL pads every row of a step to the longest, so that one rollout that rambles makes the other 63 as expensive
        # as itself: rows of like length go together. A small policy writes the same in several rollouts of a group
        # (four in ten of its rows are distinct, measured): equal rows are scored once and their gradients add up.
        score: Callable[..., Scored] = super()._get_per_token_logps_and_entropies
        together = min(ROWS_TOGETHER, batch_size or ROWS_TOGETHER)
        others = {name: value for name, value in others.items() if value is not None and value is not False}
        written = self._mask
        # Gradient checkpointing keeps no keys and values.
        plain = others or self.args.gradient_checkpointing or self.rollouts.ranks.count > 1
        if written is not None and not plain and can_score(model):
            learnt = None if self._idle is None else ~self._idle
            with self.accelerator.autocast():
                found = score_written(
                    model, input_ids, attention_mask, written, self.temperature, learnt=learnt, entropy=compute_entropy
                )
            return found.logps, found.entropies, None
        if others:
            return score(model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others)
        # Every forward, and its backward, gathers weights that are divided: all processes have to make as many.
        if len(input_ids) <= together or self.rollouts.ranks.sharded:
            return score(model, input_ids, attention_mask, logits_to_keep, together, compute_entropy)
        kept, back = _distinct(input_ids, attention_mask)
        input_ids, attention_mask = input_ids[kept], attention_mask[kept]
        width = input_ids.shape[1]
        columns = torch.arange(width, device=input_ids.device)
        begins = torch.where(attention_mask.bool(), columns, width).amin(dim=1)
        ends = torch.where(attention_mask.bool(), columns + 1, 0).amax(dim=1)
        order = torch.argsort(ends, stable=True)
        learnt = torch.ones_like(order, dtype=torch.bool)
        if self._idle is not None and torch.is_grad_enabled():
            learnt = torch.zeros_like(learnt).index_fill(0, back[~self._idle], True)  # a row may equal one of a group
            learnt[0] |= not learnt.any()  # the loss has to hang on the weights
        # First come rows with a gradient: autocast keeps weights as it first casts them.
        parts = [*torch.split(order[learnt[order]], together), *torch.split(order[~learnt[order]], together)]
        parts = [part for part in parts if len(part)]
        order = torch.cat(parts)
        logps: list[torch.Tensor] = []
        entropies: list[torch.Tensor] = []
        for rows in parts:
            cut = width - int(ends[rows].max())
            part = (rows, slice(int(begins[rows].min()), width - cut))
            with torch.set_grad_enabled(torch.is_grad_enabled() and bool(learnt[rows[0]])):
                scored, entropy, _ = score(
                    model, input_ids[part], attention_mask[part], logits_to_keep - cut, None, compute_entropy
                )
            logps.append(torch.nn.functional.pad(scored, (0, cut)))
            if entropy is not None:
                entropies.append(torch.nn.functional.pad(entropy, (0, cut)))
        back = torch.argsort(order)[back]
        return torch.cat(logps)[back], torch.cat(entropies)[back] if entropies else None, None


def _distinct(ids: torch.Tensor, attended: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first of each set of equal rows, and for every row which of those it equals: (distinct,), (rows,)."""
    places = torch.arange(len(ids), device=ids.device)
    _, equal_to = torch.unique(torch.cat([ids, attended], dim=1), dim=0, return_inverse=True)
    first = torch.full_like(places, len(ids)).scatter_reduce(0, equal_to, places, "amin")
    kept, _ = torch.sort(first[: int(equal_to.max()) + 1])
    return kept, torch.searchsorted(kept, first[equal_to])


def steps_done(args: TrainingArguments, updates: int) -> int:
    """Return the number of steps that are begun after ``updates`` optimizer updates, which TRL calls steps."""
    assert isinstance(args, GRPOConfig)
    assert args.steps_per_generation is not None
    return -(-updates * args.gradient_accumulation_steps // args.steps_per_generation)
