"""References lent to groups without any success: which groups, in which place, and how a policy is scored on them.

Rewards of a group that never succeeds are all equal, so that its advantages are zero and what the policy never samples
never rises (our choice; beyond CoEvolve). Every task of the set has a verified reference, and two estimators use it:

``off_policy`` puts the reference in the place of one of the K rollouts. Its reward is the environment's verdict, its
advantage that of the one success in its group, and the ratio of the surrogate is 1, as for what was just sampled. So
its term is ``A * grad log pi(reference)``: cloning of the reference, weighted by its advantage (2.5 for K = 8 with
advantages divided by the group's deviation), beside the usual policy gradient of the K - 1 failures. This is biased: an
unbiased estimate would weigh the reference by its probability under the policy, which is what makes it unlearnable.
The K - 1 failures are pushed down each time, which no success of the policy's own balances: at large learning rates
their mass goes anywhere. The KL term takes the reference's tokens for sampled ones too.

``supervised`` leaves the rollouts alone and adds ``lend_weight`` times the mean loss a written token of each lent
reference, divided by the number of groups in a step, so that one reference pulls equally hard however many are lent.

Import this module late: it needs torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
from trl.trainer.grpo_trainer import GRPOTrainer

from memory.jsonl import derive_seed
from memory.records import Task, Trajectory

LENDABLE = frozenset({"seed", "evolved", "given"})
"""Origins of tasks whose references were verified and may be learnt from; those of panels and the benchmark may not."""


@dataclass(frozen=True)
class Row:
    """One episode as the trainer takes it; ``mask`` is 1 on the ids that the policy writes, in turns that begin at
    ``begins``."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    mask: list[int]
    begins: tuple[int, ...]


def groups_to_lend(
    trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], size: int, at_most: int | None, seed: int
) -> tuple[int, ...]:
    """The groups of a step that are lent their reference, ascending; group ``n`` is the ``n``-th ``size`` trajectories.

    Those without any success that have a rollout without an infrastructure error, of tasks whose origin is LENDABLE.
    Of more than ``at_most`` the ``seed`` decides.
    """
    groups = [trajectories[start : start + size] for start in range(0, len(trajectories), size)]
    without = [
        number
        for number, group in enumerate(groups)
        if tasks[group[0].task_id].origin in LENDABLE
        and any(one.infrastructure_error is None for one in group)
        and not any(one.success for one in group)
    ]
    ranked = sorted(without, key=lambda number: derive_seed(seed, groups[number][0].task_id, number))
    return tuple(sorted(ranked[:at_most]))


def place_in(group: Sequence[Trajectory]) -> int:
    """Whose place in the group a reference takes: the last rollout that the environment failed, else the last one."""
    failed = [place for place, one in enumerate(group) if one.infrastructure_error is not None]
    return failed[-1] if failed else len(group) - 1


def written_logps(
    trainer: GRPOTrainer, model: torch.nn.Module, rows: Sequence[Row]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities (nats, of logits divided by the sampling temperature) of the rows' completions, and the mask
    of what the policy writes: both (rows, longest completion).
    """
    device = trainer.accelerator.device

    def padded(lists: Iterable[Sequence[int]], side: str) -> torch.Tensor:
        # Which id fills up does not matter: it is neither attended to nor scored.
        tensors = [torch.tensor(one, device=device) for one in lists]
        return pad_sequence(tensors, batch_first=True, padding_value=0, padding_side=side)

    prompts, completions = [row.prompt_ids for row in rows], [row.completion_ids for row in rows]
    ids = torch.cat([padded(prompts, "left"), padded(completions, "right")], dim=1)
    seen = [
        padded(([1] * len(one) for one in prompts), "left"),
        padded(([1] * len(one) for one in completions), "right"),
    ]
    mask = padded((row.mask for row in rows), "right")
    logps, _, _ = trainer._get_per_token_logps_and_entropies(model, ids, torch.cat(seen, dim=1), mask.shape[1])
    return logps, mask
