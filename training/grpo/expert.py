"""The expert step: supervised updates on the references of new tasks before a round's GRPO (ours).

A step of GRPO takes little from a task that the policy never solves, because its rewards are all equal; its reference
says what to do. With ``training.expert`` a round begins with updates on the references of the tasks that joined since
the round before (the first round: D_0), in ``passes`` passes; a share ``replay`` is drawn from older tasks. With
``tokens`` passes go on until so many tokens went through the model, prompts included, and a round without new tasks
learns from older ones: arms of a comparison are at equal cost then.

With ``reword`` the user turns of a reference are written anew in each further pass and where it is replayed
(``Benchmark.render``); a user's tasks and a benchmark's own keep theirs. A wording that fails as a rollout is replaced
by the task's own.

AdamW begins afresh in each expert step. GRPO's own optimizer, its schedule and its count of steps are not touched. The
step is whole or not there: a round that is killed before its first checkpoint begins with it again, with equal results.
Of several processes the first plays the references; all make the same update with the sum of their gradients. Weights
that are divided among the processes are refused (``training.grpo.launch``).

Import this module late: it needs torch.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.trainer.grpo_config import GRPOConfig

from environments.base import InputError
from environments.registry import benchmark_of
from memory.jsonl import derive_seed
from memory.records import Measured, Task
from training.grpo.group_rollouts import GroupRollouts
from training.grpo.ranks import Ranks
from training.grpo.record import ExpertRecord, RoundFailure
from training.rollout.episodes import LEARNABLE, SYNTHESISED, TokenRow, limits_of, play_references, token_row
from training.settings import ExpertSettings
from training.supervised import (
    BATCH,
    POOL,
    Diverged,
    Learning,
    batches,
    evenly,
    in_one_row,
    learn,
    of_ends,
    without_parts,
)

"""Origins of tasks whose words are a person's: they are not worded anew."""


def expert_step(
    rollouts: GroupRollouts,
    settings: ExpertSettings,
    tasks: Sequence[Task],
    evolved: bool,
    keep: Callable[[ExpertRecord], None],
) -> ExpertStep:
    """Play the references of a round's ``tasks`` and return its expert step, a callback of the trainer.

    ``evolved``: GRPO draws evolved tasks, too. ``keep`` is called with the record, in the first process.
    """
    plan, ranks = rollouts.plan, rollouts.ranks
    since = plan.iteration - 1 if plan.iteration > 0 else None
    seed = derive_seed(plan.run_seed, "expert", plan.iteration)
    new, old = learnt_from(tasks, since, replay=settings.replay > 0 or settings.tokens is not None, evolved=evolved)
    if since is None and not settings.initial:
        new = []
    elif settings.tokens is not None and not new:
        new, old = old, []
    # One process plays: a reference that failed in another one alone would leave them with different updates.
    data = ranks.by_first(lambda: played(rollouts, new, old, settings, seed))
    return ExpertStep(data, settings, keep, ranks)


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

    ``since`` is the t of the set that the round before trained on, None for the first round. The turns of an official
    task are learnt once (``without_parts``, ``in_one_row``). Without ``evolved`` GRPO never draws an evolved task, and
    none is learnt from here: a static D_0 stays one.
    """
    origins = LEARNABLE if evolved else LEARNABLE - {"evolved"}
    usable = in_one_row(without_parts([task for task in tasks if task.origin in origins and task.split == "train"]))
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

    A reference that fails in its own words is left out. Raises RoundFailure when every new one fails.
    """
    table = _References(rollouts, settings.reword)
    learnt = [task for task in new if table.row(task) is not None]
    if new and not learnt:
        raise RoundFailure(
            f"training.expert: none of {len(new)} references succeeds under the limits of an episode: raise "
            "training.max_tokens, training.max_new_tokens or training.max_actions"
        )
    updates: list[tuple[TokenRow, ...]] = []
    drawn: set[int] = set()
    taken, left = 0, settings.tokens or math.inf
    for number, (places, older) in enumerate(draws(len(learnt), len(old), settings, derive_seed(seed, "draws"), batch)):
        taken += len(places)
        drawn.update(older)
        words = derive_seed(seed, "words", number)
        pool = [table.learnt(learnt[place], None if taken <= len(learnt) else words) for place in places]
        pool += [table.learnt(old[place], words) for place in older if table.row(old[place]) is not None]
        pool = _up_to(pool, left, derive_seed(seed, "last", number))
        left -= sum(row.length for row in pool)
        cut = batches([row.length for row in pool], batch, derive_seed(seed, "batches", number))
        updates += [tuple(pool[place] for place in part) for part in cut]
        if left <= 0:
            break
    usable = [place for place in drawn if table.row(old[place]) is not None]
    return ExpertData(
        updates=tuple(updates),
        references=len(learnt),
        replayed=len(usable),
        left_out=len(new) - len(learnt) + len(drawn) - len(usable),
    )


def _up_to(pool: Sequence[TokenRow], tokens: float, seed: int) -> list[TokenRow]:
    """Return the pool, or as many of its rows, new and older ones alike, as reach ``tokens``, in a drawn order."""
    if sum(row.length for row in pool) <= tokens:
        return list(pool)
    kept: list[TokenRow] = []
    for row in random.Random(seed).sample(pool, len(pool)):
        if tokens <= 0:
            break
        kept.append(row)
        tokens -= row.length
    return kept


@dataclass
class _References:
    """References as tokens: each is played once in its own words, and once in each further wording."""

    rollouts: GroupRollouts
    reword: bool
    own: dict[str, TokenRow | None] = field(default_factory=dict)

    def row(self, task: Task) -> TokenRow | None:
        """Return the reference in the task's own words, None if it does not succeed or has nothing to learn."""
        if task.id not in self.own:
            self.own[task.id] = self._played(task)
        return self.own[task.id]

    def learnt(self, task: Task, words: int | None) -> TokenRow:
        """Return the reference, which succeeds, in words that ``words`` draws; None, or no ``reword``: its own."""
        own = self.row(task)
        assert own is not None
        if not self.reword or words is None or task.origin not in SYNTHESISED:
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
        # A row may hold several turns of official tasks, each of them an episode of its own for GRPO.
        limits = limits_of(rollouts.settings).model_copy(update={"max_steps": None})
        (result,) = play_references(rollouts.policy, rollouts.played_in, [task], limits)
        if result.outcome is None or not result.outcome.success:
            return None
        row = token_row(result, filler=0).cut_to(rollouts.settings.max_trained_tokens)
        return row if any(row.mask) else None


def draws(
    new: int, old: int, settings: ExpertSettings, seed: int, batch: int = BATCH
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the indexes of each pool's new and old references; pools are of about POOL batches, and equal sizes.

    Each of ``passes`` passes takes each new reference once, in an order of its own; with ``tokens`` passes do not end
    while there is a new reference. Old ones are drawn for each pool without replacement, up to the share ``replay`` of
    it.
    """
    rng = random.Random(seed)
    replayed = min(round(batch * settings.replay), batch - 1)
    size = batch - replayed
    endless = settings.tokens is not None and new > 0
    for _ in count() if endless else range(settings.passes):
        for places in evenly(rng.sample(range(new), new), POOL * size):
            again = min(old, round(len(places) * replayed / size))
            yield places, rng.sample(range(old), again)


@dataclass(eq=False)
class ExpertStep(TrainerCallback):
    """Makes the supervised updates when the trainer has loaded its weights, before the first rollout."""

    data: ExpertData
    settings: ExpertSettings
    keep: Callable[[ExpertRecord], None]
    ranks: Ranks

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: object
    ) -> None:
        """Learn from the references and keep the record. Raises RoundFailure for a loss that is not finite."""
        began, model = time.perf_counter(), given["model"]
        assert isinstance(model, torch.nn.Module)
        assert isinstance(args, GRPOConfig)
        learning = Learning(
            learning_rate=self.settings.learning_rate,
            weight_decay=args.weight_decay,
            max_grad_norm=args.max_grad_norm,
            temperature=args.temperature,
            bfloat16=bool(args.bf16),
            rows_together=args.per_device_train_batch_size,
            fused=args.device.type != "cpu",
        )
        try:
            losses = list(learn(model, self.data.updates, learning, self.ranks))
        except Diverged as loss:
            raise RoundFailure(f"the loss of the expert step is {loss}: lower training.expert.learning_rate") from None
        first_loss, last_loss = of_ends(losses) if losses else (None, None)
        record = ExpertRecord(
            references=self.data.references,
            left_out=self.data.left_out,
            replayed=self.data.replayed,
            updates=len(losses),
            tokens=sum(sum(row.mask) for rows in self.data.updates for row in rows),
            processed=sum(row.length for rows in self.data.updates for row in rows),
            first_loss=first_loss,
            last_loss=last_loss,
            measured=Measured(seconds=time.perf_counter() - began),
        )
        self.ranks.by_first(lambda: self.keep(record))
