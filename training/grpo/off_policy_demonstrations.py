"""Off-policy demonstrations: references for groups without any success, and how a policy is scored on them.

The rewards of a group that never succeeds are all equal, so that its advantages are zero and a behaviour that the
policy never samples never rises. Every task of the set has a verified reference, and two estimators use it (our choice,
beyond CoEvolve):

``off_policy`` puts the reference in the place of one of the K rollouts. Its reward is the environment's, its advantage
that of the one success in its group, and the ratio of the surrogate is 1, as for a rollout that was just sampled. So
its term is ``A * grad log pi(reference)``: cloning of the reference, weighted by its advantage (2.5 for K = 8 with
advantages divided by the group's deviation), beside the usual policy gradient of the K - 1 failures. This is biased: an
unbiased estimate would weight the reference by its probability under the policy, which is too small to learn from. The
K - 1 failures are pushed down each time and no success of the policy's own balances that: at large learning rates their
probability mass goes anywhere. The KL term counts the reference's tokens as sampled ones.

``supervised`` leaves the rollouts unchanged and adds ``lend_weight`` times the mean loss per written token of each
reference, divided by the number of groups in an update, so that a reference's gradient does not depend on their number.
With several updates per step the references are dealt to them, not necessarily with their groups.

Import this module late: it needs torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.utils.rnn import pad_sequence
from trl.trainer.grpo_trainer import GRPOTrainer

from memory.jsonl import derive_seed
from memory.records import Task, Trajectory

DEMONSTRABLE = frozenset({"seed", "evolved", "given"})
"""Origins of tasks whose references are verified and may be learnt from; held-out and official tasks' may not."""


@dataclass(frozen=True)
class TokenRow:
    """One episode as the trainer takes it: ids after the prompt, their log-probabilities (nats) and their mask.

    ``mask`` is 1 on the ids that the policy writes; user turns begin at the indexes ``begins`` of the completion.
    ``withheld`` are for each of them the ids that could not be sampled; empty where nothing was withheld.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    mask: list[int]
    begins: tuple[int, ...]
    withheld: tuple[tuple[int, ...], ...] = ()

    def cut_to(self, most: int | None) -> TokenRow:
        """Return the row with the first ``most`` ids after the prompt alone; None: the whole row.

        Turns that begin later have no token. Ids that are left out would change no loss of the others: a causal model
        does not see them.
        """
        if most is None or len(self.completion_ids) <= most:
            return self
        return replace(
            self,
            completion_ids=self.completion_ids[:most],
            logprobs=self.logprobs[:most],
            mask=self.mask[:most],
            begins=tuple(min(begin, most) for begin in self.begins),
        )


def groups_to_demonstrate(
    trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], size: int, at_most: int | None, seed: int
) -> tuple[int, ...]:
    """Return the groups of a step that get their reference, ascending; group ``n`` is the ``n``-th ``size`` rows.

    They have no success, a rollout without an infrastructure error, and a task whose origin is DEMONSTRABLE. Of more
    than ``at_most`` such groups, ``seed`` draws which.
    """
    groups = [trajectories[start : start + size] for start in range(0, len(trajectories), size)]
    without = [
        number
        for number, group in enumerate(groups)
        if tasks[group[0].task_id].origin in DEMONSTRABLE
        and any(one.infrastructure_error is None for one in group)
        and not any(one.success for one in group)
    ]
    ranked = sorted(without, key=lambda number: derive_seed(seed, groups[number][0].task_id, number))
    return tuple(sorted(ranked[:at_most]))


def place_in(group: Sequence[Trajectory]) -> int:
    """Return the index in the group that a reference takes: the last rollout with a fault, else the last rollout."""
    failed = [place for place, one in enumerate(group) if one.infrastructure_error is not None]
    return failed[-1] if failed else len(group) - 1


def written_logps(
    trainer: GRPOTrainer, model: torch.nn.Module, rows: Sequence[TokenRow]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of the rows' completions, and their mask: both (rows, longest completion).

    Log-probabilities are in nats, of logits divided by the sampling temperature.
    """
    device = trainer.accelerator.device

    def padded(lists: Iterable[Sequence[int]], side: str) -> torch.Tensor:
        # The padding id does not matter: it is neither attended to nor scored.
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
