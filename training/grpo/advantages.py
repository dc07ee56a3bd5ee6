"""The advantages of GRPO, as pure functions: from the rewards of groups to a factor of each row.

The trainer calls ``per_group`` on what TRL computed. TRL 1.16.0 computes the form of
``group_advantages`` itself; tests state its values by hand. Import this module late: it needs torch.
"""

from __future__ import annotations

import torch

NO_DEVIATION = 1e-4
"""Added to a group's standard deviation before rewards are divided by it (TRL's)."""


def group_advantages(rewards: torch.Tensor, size: int) -> torch.Tensor:
    """Return the advantages of rows, (rows,), from their rewards, in groups of ``size`` rows one after the other.

    A_i = (R_i - mean) / (std + 1e-4) over the group's rewards that are not NaN, std with n - 1 (CoEvolve, section 3;
    the division by std is left open there). A NaN is a rollout that the environment failed: it has advantage 0 and is
    no part of the baseline. A group whose rewards are all equal has advantage 0 in every row.
    """
    groups = rewards.reshape(-1, size)
    scored = ~torch.isnan(groups)
    count = scored.sum(dim=1, keepdim=True)
    off = groups - groups.nanmean(dim=1, keepdim=True)
    squares = torch.where(scored, off**2, 0.0).sum(dim=1, keepdim=True)
    off = off / ((squares / (count - 1).clamp(min=1)).sqrt() + NO_DEVIATION)
    return torch.where(scored, off, 0.0).reshape(-1)


def per_group(sampled: torch.Tensor, total: torch.Tensor, size: int) -> torch.Tensor:
    """Return the factors of advantages, (rows,), that give each group of ``size`` rows a normaliser of its own.

    ``sampled`` are the rows' numbers of tokens that the policy wrote, and ``total`` is the number in the step, by which
    the loss is divided. The clipped surrogate is linear in positive factors, so that it becomes the mean over groups of
    1 / (tokens of the group) times the sum over its tokens; the KL term is not scaled.
    """
    tokens = sampled.reshape(-1, size).sum(dim=1)
    return (total / (len(tokens) * tokens.clamp(min=1))).repeat_interleave(size)
