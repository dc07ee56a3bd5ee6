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
    """The bounds of the ratio to the policy that sampled: 1 - low, 1 + high, and ``dual`` where advantages are < 0.

    ``dual`` is above 1 + high, so that it changes nothing where they are positive.
    """

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
    divisor: float | None = None,
) -> LossFigures:
    """Return the loss of the rows of one update (CoEvolve, Eq. 1; SEAL, section 3).

    ``logps``, ``old`` and ``reference`` are log-probabilities in nats, (rows, tokens), of the policy, of the one that
    sampled and of the initial one. In a step's first update the policy is the one that sampled: the ratio is 1.
    ``advantages`` are (rows,); ``mask`` is 1 on the tokens that the policy wrote. ``kl`` weighs the k3 estimate. The
    sum over tokens is divided by ``divisor`` (``dapo``: the mean number of tokens of a step's updates; None: of these
    rows), or by each row's tokens and the rows (``grpo``). The default, ``group_tokens``, is ``dapo`` with advantages
    that ``per_group`` scaled.
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
    loss = of_rows if normaliser == "grpo" else tokens.sum() / (divisor or written)
    low = (ratio < 1 - clip.low) & (advantages < 0)
    high = (ratio > 1 + clip.high) & (advantages > 0)
    clipped = float(((low | high) * mask).sum() / written)
    return LossFigures(loss, float((estimate.detach() * mask).sum() / written), clipped)
