"""The loss of GRPO on tokens, as a pure function of log-probabilities, advantages and a mask.

TRL 1.16.0 computes the loss of a training run itself; this is the same loss in a form that can be read, and a test
holds both, and their gradients, equal. ``training.grpo.trainer`` states the symbols and settings. Import this module
late: it needs torch.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

Normaliser = Literal["dapo", "grpo"]


class Clip(NamedTuple):
    """The bounds of the ratio to the policy that sampled: 1 - low, 1 + high, and ``dual`` where advantages are < 0."""

    low: float = 0.2
    high: float = 0.28
    dual: float | None = None


class LossFigures(NamedTuple):
    """The loss, which has a gradient, and two means over the policy's tokens: the KL estimate and the share clipped."""

    loss: torch.Tensor
    kl: float
    clipped: float


def grpo_loss(
    logps: torch.Tensor,
    old: torch.Tensor,
    reference: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip: Clip,
    kl: float,
    normaliser: Normaliser = "dapo",
) -> LossFigures:
    """Return the loss of the rows of one update (CoEvolve, Eq. 1; SEAL, section 3).

    ``logps``, ``old`` and ``reference`` are log-probabilities in nats, (rows, tokens), of the policy, of the one that
    sampled and of the initial one. ``advantages`` are (rows,); ``mask`` is 1 on the tokens that the
    policy wrote. ``kl`` weighs the k3 estimate. The sum over tokens is divided by the number of tokens (``dapo``; TRL
    takes the mean over a step's updates; with advantages that ``per_group`` scaled it is the mean over groups of their
    token means); or by each row's tokens and the rows (``grpo``).
    """
    advantages = advantages.unsqueeze(1)
    ratio = torch.exp(logps - old)
    bounded = ratio.clamp(1 - clip.low, 1 + clip.high)
    if clip.dual is not None:
        ratio = ratio.clamp(max=clip.dual)
    surrogate = torch.min(ratio * advantages, bounded * advantages)
    ahead = reference - logps
    estimate = torch.exp(ahead) - ahead - 1
    tokens = (-surrogate + kl * estimate) * mask
    written = mask.sum().clamp(min=1)
    of_rows = (tokens.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean()
    loss = of_rows if normaliser == "grpo" else tokens.sum() / written
    low = (ratio < 1 - clip.low) & (advantages < 0)
    high = (ratio > 1 + clip.high) & (advantages > 0)
    clipped = float(((low | high) * mask).sum() / written)
    return LossFigures(loss, float((estimate * mask).sum() / written), clipped)
