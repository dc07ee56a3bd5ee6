"""Supervised updates of a model on episodes as tokens: batches of like length, the learning rate, the loss.

The expert step of a round (``training.grpo.expert``) and the warm start (``training.warm_start``) learn with it, from
rows in their order. All of this is ours.

The loss of an update is the mean over the batch's written tokens of -log pi(token). A batch holds rows of like length:
short rows need no padding then, which more than halves the cost of an update. It is bounded by rows and by tokens, and
goes through the model in parts that are bounded by tokens, so that neither long rows nor a large vocabulary decide how
much memory an update takes. With bfloat16 matrix products are computed in it, under autocast; weights, gradients and
AdamW's moments stay float32.

Import this module late: it needs torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar, cast

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from memory.records import Task
from training.device_memory import TOKENS_TOGETHER, give_back_freed
from training.grpo.ranks import ALONE, Ranks
from training.rollout.episodes import TokenRow

Item = TypeVar("Item")

BATCH = 16
"""Rows in one update at most (our choice)."""

BATCH_TOKENS = 4096
"""Tokens in one update at most, padding included (our choice): longer rows give more updates of fewer rows each."""

POOL = 16
"""Batches whose rows are sorted by length together (our choice): enough for batches of like length, few enough that a
batch is not the same in each pass."""

_RISE = 0.1
_LAST = 0.1


class Diverged(ArithmeticError):
    """The loss of an update is not finite; the message is that loss."""


@dataclass(frozen=True)
class Learning:
    """How a model is updated: AdamW, whose rate rises over the first tenth of the updates and falls to a tenth.

    ``learning_rate`` is the peak, ``max_grad_norm`` the norm to which an update's gradient is clipped. Logits are
    divided by ``temperature``. ``rows_together``: rows that go through the model together at most; None: as many as
    TOKENS_TOGETHER allows. ``fused``: the model's head is TRL's, which computes no logits at once (see
    ``written_loss``).
    """

    learning_rate: float
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    bfloat16: bool = False
    rows_together: int | None = None
    fused: bool = False


def learn(
    model: torch.nn.Module, updates: Sequence[Sequence[TokenRow]], learning: Learning, ranks: Ranks = ALONE
) -> Iterator[float]:
    """Make an update of each batch of rows; yield the loss of each in nats per written token.

    AdamW begins afresh. Of several ``ranks`` each computes the gradient of a share of every batch, and all make the
    same update with the sum of them. Raises Diverged before an update whose loss is not finite.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, learning.learning_rate, weight_decay=learning.weight_decay)
    was_training = model.training
    model.train()
    for number, rows in enumerate(updates):
        for group in optimizer.param_groups:
            group["lr"] = learning.learning_rate * rate(number, len(updates))
        optimizer.zero_grad()
        loss = backward(model, rows, learning, ranks)
        if ranks.count > 1:
            loss = _added_up(trained, loss)
        if not math.isfinite(loss):
            raise Diverged(loss)
        torch.nn.utils.clip_grad_norm_(trained, learning.max_grad_norm)
        optimizer.step()
        give_back_freed(trained[0].device.type)
        yield loss
    optimizer.zero_grad()
    model.train(was_training)


def backward(model: torch.nn.Module, rows: Sequence[TokenRow], learning: Learning, ranks: Ranks = ALONE) -> float:
    """Add the gradient of the mean loss of a batch, sorted by length, part by part; return the mean.

    Of several ``ranks`` each adds the share of its own rows.
    """
    tokens = sum(sum(row.mask) for row in rows)
    # Every second, third, ... row: the rows of a batch are sorted by length.
    own = rows[ranks.index :: ranks.count]
    # A process without a row adds zeros: all of them have to have gradients of the same parameters.
    share = 1.0 if own else 0.0
    own = own or rows[:1]
    together = learning.rows_together or len(own)
    device = next(model.parameters()).device
    lengths = [row.length for row in own]
    loss = 0.0
    for start in range(0, len(own), together):
        for part in within(range(start, min(start + together, len(own))), lengths, TOKENS_TOGETHER):
            some = [own[place] for place in part]
            with torch.autocast(device.type, torch.bfloat16, enabled=learning.bfloat16):
                mean = written_loss(model, some, learning.temperature, device, learning.fused) / tokens * share
            mean.backward()  # type: ignore[no-untyped-call]
            loss += float(mean.detach())
    return loss


def _added_up(trained: Sequence[torch.nn.Parameter], loss: float) -> float:
    """Replace each process's gradients by the sum of them, and return the sum of their losses."""
    # The forward passes are of the bare model, for which DDP reduces nothing.
    for parameter in trained:
        if parameter.grad is not None:
            torch.distributed.all_reduce(parameter.grad)
    summed = torch.tensor(loss, dtype=torch.float64, device=trained[0].device)
    torch.distributed.all_reduce(summed)
    return float(summed)


def written_loss(
    model: torch.nn.Module, rows: Sequence[TokenRow], temperature: float, device: torch.device, fused: bool
) -> torch.Tensor:
    """Return the sum over the rows' written tokens of -log pi(token), in nats, of logits divided by ``temperature``.

    Logits are computed for these tokens alone. Padding is behind the rows, where no token of theirs attends to it:
    without a mask for it the attention is plainly causal, and cheaper. ``fused``: the model's head is TRL's, which
    has the temperature, skips what has no label, and never holds all logits at once; on a CPU it computes them all.
    """
    ids = [torch.tensor(row.prompt_ids + row.completion_ids) for row in rows]
    wanted = [torch.tensor([0] * len(row.prompt_ids) + row.mask, dtype=torch.bool) for row in rows]
    padded, written = (pad_sequence(tensors, batch_first=True).to(device) for tensors in (ids, wanted))
    if fused:
        labels = padded.masked_fill(~written, -100)
        scored: torch.Tensor = model(input_ids=padded, labels=labels, fused_lm_head=True).log_probs
        return -scored.sum()
    # The logits that predict a token are those before it.
    with head_on(model, torch.nn.functional.pad(written[:, 1:], (0, 1))):
        logits = model(input_ids=padded, use_cache=False).logits
    heated = logits.float() if temperature == 1.0 else logits.float() / temperature
    return torch.nn.functional.cross_entropy(heated, padded[written], reduction="sum")


@contextmanager
def head_on(model: torch.nn.Module, chosen: torch.Tensor) -> Iterator[None]:
    """Compute logits of the positions ``chosen`` (rows, tokens) alone: they become (chosen positions, vocabulary)."""
    # An adapter passes on what it does not have itself: this is the model's own head.
    head: torch.nn.Module = cast("PreTrainedModel", model).get_output_embeddings()  # type: ignore[no-untyped-call]
    with head.register_forward_pre_hook(lambda _, given: (given[0][chosen],)):
        yield


def of_ends(losses: Sequence[float]) -> tuple[float, float]:
    """Return the mean losses of the first and of the last tenth of the updates, of which there is at least one."""
    tenth = max(1, len(losses) // 10)
    return sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth


def rate(number: int, updates: int) -> float:
    """Return the share of the peak learning rate of update ``number``, from 0, of so many."""
    rise = min(1.0, (number + 1) / max(1.0, updates * _RISE))
    return rise * (1.0 - (1.0 - _LAST) * number / updates)


def batches(lengths: Sequence[int], size: int, seed: int, tokens: int = BATCH_TOKENS) -> list[list[int]]:
    """Return the indexes of a pool of rows in batches of like length, in an order that ``seed`` draws.

    ``lengths`` are the rows' tokens. A batch has up to ``size`` rows, and up to ``tokens`` tokens with its padding
    unless it is a single row; its rows are sorted by length.
    """
    sizes = evenly(sorted(range(len(lengths)), key=lambda place: lengths[place]), size)
    cut = [part for batch in sizes for part in within(batch, lengths, tokens)]
    random.Random(seed).shuffle(cut)
    return cut


def within(places: Sequence[int], lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield ``places``, which are sorted by length, in parts of up to ``tokens`` tokens with padding, or of one row."""
    padded = len(places) * lengths[places[-1]]
    if len(places) == 1 or padded <= tokens:
        yield list(places)
        return
    for part in evenly(places, math.ceil(len(places) / math.ceil(padded / tokens))):
        yield from within(part, lengths, tokens)


def evenly(places: Sequence[Item], most: int) -> list[list[Item]]:
    """Return ``places`` cut into as few parts of up to ``most`` as can be; their sizes differ by 1 at most."""
    parts = -(-len(places) // most)
    ends = [len(places) * number // parts for number in range(parts + 1)] if parts else [0]
    return [list(places[start:end]) for start, end in pairwise(ends)]


def without_parts(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks without the single turns of official ones that are among them whole: they would be learnt twice.

    A whole task teaches all of its turns in one row. It is the parent of its single turns.
    """
    official = {task.id for task in tasks if task.origin == "official"}
    return [task for task in tasks if official.isdisjoint(_parents_of_a_turn(task))]


def in_one_row(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks, single turns of one official task as one: the longest, with the turns before it to learn.

    Each of them repeats the turns before its own, so that one row teaches all at a third of the tokens.
    """
    longest: dict[str, Task] = {}
    for task in tasks:
        for whole in _parents_of_a_turn(task):
            longest[whole] = max(longest.get(whole, task), task, key=lambda one: len(one.turns))
    last = {task.id for task in longest.values()}
    return [
        task.model_copy(update={"played": 0}) if task.id in last else task
        for task in tasks
        if task.id in last or not _parents_of_a_turn(task)
    ]


def _parents_of_a_turn(task: Task) -> tuple[str, ...]:
    """Return the id of the whole of which an official task is a single turn; none for any other task."""
    return task.parents if task.origin == "official" else ()
