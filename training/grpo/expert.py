"""The expert step: supervised updates on the references of new tasks before a round's GRPO (ours).

Every task that joins the set has a reference that the environment verified. A step of GRPO takes little from a task
that the policy never solves, because its rewards are all equal; its reference says what to do. With ``training.expert``
a round begins with supervised updates on the references of the tasks that joined since the round before (the first
round: D_0), in ``passes`` passes; a share ``replay`` of what is learnt from is drawn from older tasks. GRPO follows
from there.

A batch holds references of like length: short rows need no padding then, which more than halves the cost of an update.
Each pass is cut into pools of about POOL batches, drawn at random; a pool is sorted by length and cut into batches,
whose order is drawn (``draws``, ``batches``). Older references join a pool before it is sorted, so that ``replay`` is
its share in a pool and not in each batch.

With ``reword`` a reference has its own words in the first pass alone: in each further one, and where it is replayed,
its user turns are written anew (``Benchmark.render``), so that passes differ in words and a reference is not learnt by
heart. A user's tasks keep theirs. Each wording is played as a rollout, too; one that fails is replaced by the task's
own.

The loss of an update is the mean over the batch's written tokens of -log pi(token), from logits divided by
``training.temperature``, as everywhere in a round. AdamW begins afresh
in each expert step, so that nothing of it has to outlive the round; the learning rate rises over the first tenth of the
updates and falls linearly to a tenth of its peak. GRPO's own optimizer, its schedule and its count of steps are not
touched.

The expert step is whole or not there: a round that is killed before its first checkpoint begins with it again, with
equal results, and one that resumes from a checkpoint of its own has its effect in the weights.

Of several processes the first one plays the references. Each then computes the gradient of a share of every batch, and
all make the same update with the sum of them: updates and records are those of one process but for float order. Weights
that are divided among the processes are refused (``training.grpo.launch``).

TRL's SFTTrainer would be a second trainer in the process, in which TRL is unsound; the model and the precision here are
those of the round's own trainer.

Import this module late: it needs torch.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from trl.trainer.grpo_trainer import GRPOTrainer

from environments.base import InputError
from environments.registry import benchmark_of
from memory.jsonl import derive_seed
from memory.records import Measured, Task
from training.grpo.group_rollouts import GroupRollouts, TokenRow, token_row
from training.grpo.ranks import Ranks
from training.grpo.record import ExpertRecord, RoundFailure
from training.rollout.episodes import play_references
from training.settings import ExpertSettings

LEARNABLE = frozenset({"seed", "evolved", "given"})
"""Origins of tasks whose references are verified and may be learnt from; held-out and official tasks' may not."""

BATCH = 16
"""References in one update at most (our choice)."""

POOL = 16
"""Batches whose references are sorted by length together (our choice): enough for batches of like length, few enough
that a batch is not the same in each pass."""

_RISE = 0.1
_LAST = 0.1


def expert_step(
    rollouts: GroupRollouts,
    settings: ExpertSettings,
    tasks: Sequence[Task],
    evolved: bool,
    keep: Callable[[ExpertRecord], None],
) -> Callable[[GRPOTrainer], TrainerCallback]:
    """Play the references of a round's ``tasks`` and return what makes its expert step, as a callback of the trainer.

    ``evolved``: GRPO draws evolved tasks, too. ``keep`` is called with the record, in the first process.
    """
    plan, ranks = rollouts.plan, rollouts.ranks
    since = plan.iteration - 1 if plan.iteration > 0 else None
    seed = derive_seed(plan.run_seed, "expert", plan.iteration)
    new, old = learnt_from(tasks, since, replay=settings.replay > 0, evolved=evolved)
    # One process plays: a reference that failed in another one alone would leave them with different updates.
    data = ranks.by_first(lambda: played(rollouts, new, old, settings, seed))
    return lambda trainer: ExpertStep(
        trainer, data, settings, seed, lambda record: ranks.by_first(lambda: keep(record)), ranks
    )


@dataclass(frozen=True)
class ExpertData:
    """The data of an expert step, as tokens: the references of each update, in order.

    ``references`` of new tasks are in each pass of them, ``replayed`` different ones of older tasks were drawn.
    ``left_out`` counts the references, new or drawn, that did not succeed under the limits of an episode.
    """

    updates: tuple[tuple[TokenRow, ...], ...]
    references: int
    replayed: int
    left_out: int


def learnt_from(
    tasks: Sequence[Task], since: int | None, *, replay: bool, evolved: bool
) -> tuple[list[Task], list[Task]]:
    """Return the tasks whose references are new to the round, and those that were there before (none without replay).

    ``since`` is the t of the set that the round before trained on, None for the first round. Only references that are
    verified and may be learnt from (``LEARNABLE``) are among them. Without ``evolved`` GRPO never draws an
    evolved task (``TaskSettings.uses_evolved``), and none is learnt from here: a static D_0 stays one.
    """
    origins = LEARNABLE if evolved else LEARNABLE - {"evolved"}
    usable = [task for task in tasks if task.origin in origins]
    if since is None:
        return usable, []
    new = [task for task in usable if task.admitted_at is not None and task.admitted_at >= since]
    known = {task.id for task in new}
    return new, [task for task in usable if task.id not in known] if replay else []


def played(
    rollouts: GroupRollouts,
    new: Sequence[Task],
    old: Sequence[Task],
    settings: ExpertSettings,
    seed: int,
    batch: int = BATCH,
) -> ExpertData:
    """Play the references of new tasks, and of the old ones that are drawn, as a round's rollouts; plan the updates.

    A reference that fails in its own words is left out: a new one before the plan is made, an old one of the pools that
    it was drawn for. Raises RoundFailure when every new
    one fails.
    """

    table = _References(rollouts, settings.reword)
    learnt = [task for task in new if table.row(task) is not None]
    if new and not learnt:
        raise RoundFailure(
            f"training.expert: none of {len(new)} references succeeds under the limits of an episode: raise "
            "training.max_tokens, training.max_new_tokens or training.max_actions"
        )
    pools = list(draws(len(learnt), len(old), settings, derive_seed(seed, "draws"), batch))
    drawn = {place for _, places in pools for place in places}
    usable = {place for place in sorted(drawn) if table.row(old[place]) is not None}
    updates: list[tuple[TokenRow, ...]] = []
    for number, (places, older) in enumerate(pools):
        words = derive_seed(seed, "words", number)
        first = number < len(pools) // settings.passes
        pool = [table.learnt(learnt[place], None if first else words) for place in places]
        pool += [table.learnt(old[place], words) for place in older if place in usable]
        lengths = [len(row.prompt_ids) + len(row.completion_ids) for row in pool]
        cut = batches(lengths, batch, derive_seed(seed, "batches", number))
        updates += [tuple(pool[place] for place in part) for part in cut]
    return ExpertData(
        updates=tuple(updates),
        references=len(learnt),
        replayed=len(usable),
        left_out=len(new) - len(learnt) + len(drawn) - len(usable),
    )


class _References:
    """References as tokens: each is played once in its own words, and once in each further wording."""

    def __init__(self, rollouts: GroupRollouts, reword: bool) -> None:
        self.rollouts = rollouts
        self.reword = reword
        self.own: dict[str, TokenRow | None] = {}

    def row(self, task: Task) -> TokenRow | None:
        """Return the reference in the task's own words, None if it does not succeed."""
        if task.id not in self.own:
            self.own[task.id] = self._played(task)
        return self.own[task.id]

    def learnt(self, task: Task, words: int | None) -> TokenRow:
        """Return the reference, which succeeds, in words that ``words`` draws; None, or no ``reword``: its own."""
        own = self.row(task)
        assert own is not None
        if not self.reword or words is None or task.origin == "given":
            return own
        environment, rng = self.rollouts.played_in, random.Random(derive_seed(words, task.id))
        try:
            turns = benchmark_of(environment).render(environment, task, rng).turns
        except InputError:  # a call that the words do not fit
            return own
        if turns == task.turns:
            return own
        return self._played(task.model_copy(update={"turns": turns})) or own

    def _played(self, task: Task) -> TokenRow | None:
        rollouts = self.rollouts
        (result,) = play_references(rollouts.policy, rollouts.played_in, [task], rollouts.limits)
        if result.outcome is None or not result.outcome.success:
            return None
        return token_row(result, filler=0).cut_to(rollouts.settings.max_trained_tokens)


def draws(
    new: int, old: int, settings: ExpertSettings, seed: int, batch: int = BATCH
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the indexes of each pool's new and old references; pools are of about POOL batches, and equal sizes.

    Each of ``passes`` passes takes each new reference once, in an order of its own. Old ones are drawn for each pool
    without replacement, up to the share ``replay`` of it.
    """
    rng = random.Random(seed)
    replayed = min(round(batch * settings.replay), batch - 1)
    size = batch - replayed
    for _ in range(settings.passes):
        for places in _evenly(rng.sample(range(new), new), POOL * size):
            count = min(old, round(len(places) * replayed / size))
            yield places, rng.sample(range(old), count)


def batches(lengths: Sequence[int], size: int, seed: int) -> list[list[int]]:
    """Return the indexes of a pool in batches of up to ``size`` of like length, in an order that ``seed`` draws."""
    cut = _evenly(sorted(range(len(lengths)), key=lambda place: lengths[place]), size)
    random.Random(seed).shuffle(cut)
    return cut


def _evenly(places: Sequence[int], most: int) -> list[list[int]]:
    """Return ``places`` cut into as few parts of up to ``most`` as can be; their sizes differ by 1 at most."""
    parts = -(-len(places) // most)
    ends = [len(places) * number // parts for number in range(parts + 1)] if parts else [0]
    return [list(places[start:end]) for start, end in pairwise(ends)]


class ExpertStep(TrainerCallback):
    """Makes the supervised updates when the trainer has loaded its weights, before the first rollout."""

    def __init__(
        self,
        trainer: GRPOTrainer,
        data: ExpertData,
        settings: ExpertSettings,
        seed: int,
        keep: Callable[[ExpertRecord], None],
        ranks: Ranks,
    ) -> None:
        self.trainer = trainer
        self.data = data
        self.settings = settings
        self.seed = seed
        self.keep = keep
        self.ranks = ranks

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Learn from the references and keep the record. Raises RoundFailure for a loss that is not finite."""
        began = time.perf_counter()
        losses: list[float] = []
        if self.data.updates:
            set_seed(derive_seed(self.seed, "dropout") % 2**32)
            losses += self._updates()
        tenth = max(1, len(losses) // 10)
        self.keep(
            ExpertRecord(
                references=self.data.references,
                left_out=self.data.left_out,
                replayed=self.data.replayed,
                updates=len(losses),
                tokens=sum(sum(row.mask) for rows in self.data.updates for row in rows),
                first_loss=_mean(losses[:tenth]),
                last_loss=_mean(losses[-tenth:]),
                measured=Measured(seconds=time.perf_counter() - began),
            )
        )

    def _updates(self) -> Iterator[float]:
        """Make the updates; yield the loss of each in nats per token."""
        trainer = self.trainer
        model = trainer.model
        assert isinstance(model, torch.nn.Module)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, self.settings.learning_rate, weight_decay=trainer.args.weight_decay)
        was_training = model.training
        model.train()
        for number, rows in enumerate(self.data.updates):
            for group in optimizer.param_groups:
                group["lr"] = self.settings.learning_rate * rate(number, len(self.data.updates))
            optimizer.zero_grad()
            loss = self._backward(model, rows)
            if self.ranks.count > 1:
                loss = self._added_up(trained, loss)
            if not math.isfinite(loss):
                raise RoundFailure(f"the loss of the expert step is {loss}: lower training.expert.learning_rate")
            torch.nn.utils.clip_grad_norm_(trained, trainer.args.max_grad_norm)
            optimizer.step()
            yield loss
        optimizer.zero_grad()
        model.train(was_training)

    def _backward(self, model: torch.nn.Module, rows: Sequence[TokenRow]) -> float:
        """Add the gradient of the batch's token mean, micro-batch by micro-batch; return the mean.

        Of several processes each adds the part of its own rows.
        """
        tokens = sum(sum(row.mask) for row in rows)
        # Every second, third, ... row: the rows of a batch are sorted by length.
        own = rows[self.ranks.index :: self.ranks.count]
        # A process without a row adds zeros: all of them have to have gradients of the same parameters.
        share = 1.0 if own else 0.0
        own = own or rows[:1]
        together = min(len(own), self.trainer.args.per_device_train_batch_size)
        device = self.trainer.accelerator.device
        loss = 0.0
        for start in range(0, len(own), together):
            some = own[start : start + together]
            with self.trainer.compute_loss_context_manager(), self.trainer.accelerator.autocast():
                part = written_loss(model, some, self.trainer.temperature, device, device.type != "cpu") / tokens
                part = part * share
            self.trainer.accelerator.backward(part)
            loss += float(part.detach())
        return loss

    def _added_up(self, trained: Sequence[torch.nn.Parameter], loss: float) -> float:
        """Replace each process's gradients by the sum of them, and return the sum of their losses."""
        # The forward passes are of the bare model, for which DDP reduces nothing.
        for parameter in trained:
            if parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad)
        summed = torch.tensor(loss, dtype=torch.float64, device=self.trainer.accelerator.device)
        torch.distributed.all_reduce(summed)
        return float(summed)


def written_loss(
    model: torch.nn.Module, rows: Sequence[TokenRow], temperature: float, device: torch.device, compact: bool
) -> torch.Tensor:
    """Return the sum over the rows' written tokens of -log pi(token), in nats, of logits divided by ``temperature``.

    Logits are computed for these tokens alone. Padding is behind the rows, where no token of theirs attends to it:
    without a mask for it the attention is plainly causal, and cheaper. ``compact``: the model's head is TRL's, which
    has the temperature, skips what has no label, and never holds all logits at once; on a CPU it computes them all.
    """
    ids = [torch.tensor(row.prompt_ids + row.completion_ids) for row in rows]
    wanted = [torch.tensor([0] * len(row.prompt_ids) + row.mask, dtype=torch.bool) for row in rows]
    padded, written = (pad_sequence(tensors, batch_first=True).to(device) for tensors in (ids, wanted))
    if compact:
        labels = padded.masked_fill(~written, -100)
        scored: torch.Tensor = model(input_ids=padded, labels=labels, fused_lm_head=True).log_probs
        return -scored.sum()
    # An adapter passes on what it does not have itself: this is the model's own head.
    head: torch.nn.Module = cast("PreTrainedModel", model).get_output_embeddings()  # type: ignore[no-untyped-call]
    before = torch.nn.functional.pad(written[:, 1:], (0, 1))
    with head.register_forward_pre_hook(lambda _, given: (given[0][before],)):
        logits = model(input_ids=padded, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float() / temperature, padded[written], reduction="sum")


def rate(number: int, updates: int) -> float:
    """Return the share of the peak learning rate of update ``number``, from 0, of so many."""
    rise = min(1.0, (number + 1) / max(1.0, updates * _RISE))
    return rise * (1.0 - (1.0 - _LAST) * number / updates)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
