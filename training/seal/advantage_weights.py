"""SEAL's advantage weights: rho of each label, the weights of trajectories or turns, and those of their tokens.

SEAL (arXiv 2605.24426) multiplies the advantage of a trajectory by ``clip(sum of p(z) * rho(z), 0.5, 2)``, where p(z)
is the share of its turns with label z. The alternative, one weight per turn on that turn's tokens, is ours. Weights are
positive: they scale an advantage, never change its sign, and a zero stays zero. Pure and free of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import fsum
from typing import NamedTuple

from pydantic import Field

from environments.base import Record
from training.seal.diagnosis import Diagnosis
from training.seal.failure_profile import FailureProfile
from training.seal.labels import EXCLUDED, TurnLabel
from training.seal.settings import WeightSettings

__all__ = ["RhoState", "WeighedRollout", "first_rho", "group_weights", "moved_rho", "token_weights", "turn_tokens"]


class RhoState(Record):
    """Rho of every label that is not excluded, after ``updates`` profiles."""

    updates: int = Field(0, ge=0)
    rho: dict[TurnLabel, float]


class WeighedRollout(NamedTuple):
    """The input of a rollout's weights.

    ``diagnosis``: if None, the weights are 1. ``advantage`` is the trainer's, of any scale. ``turn_tokens`` are the
    numbers of sampled tokens in each turn of the trajectory (function ``turn_tokens``).
    """

    diagnosis: Diagnosis | None
    advantage: float
    turn_tokens: Sequence[int]


def first_rho(settings: WeightSettings) -> RhoState:
    """Return rho before any profile."""
    return RhoState(rho=settings.base())


def moved_rho(state: RhoState, profile: FailureProfile, settings: WeightSettings) -> RhoState:
    """Return rho after one more profile (the paper's released recipe); unchanged where it is not dynamic.

    Each label's rho moves by the fraction ``rate`` towards ``base * (1 + alpha * prevalence * (1 - mean reward) *
    min(1, count / full_count))``, clipped to ``least`` and ``most``; one that did not occur moves towards its base.
    """
    if not settings.dynamic:
        return state
    rho = {}
    for label, base in settings.base().items():
        found = profile.of(label)
        trust = min(1.0, found.count / settings.full_count)
        target = _clipped(base * (1.0 + settings.alpha * found.pressure * trust), settings)
        rho[label] = state.rho[label] + settings.rate * (target - state.rho[label])
    return RhoState(updates=state.updates + 1, rho=rho)


def group_weights(
    group: Sequence[WeighedRollout], state: RhoState, settings: WeightSettings
) -> tuple[tuple[float, ...], ...]:
    """Return a positive weight for each turn of each rollout of a group, in their order.

    If the unit is the trajectory, the weights of one rollout are equal. A turn without a label, or with an excluded
    one, has weight 1 and does not count in its trajectory's.

    With ``group_mean_one`` the weights of the rollouts with a diagnosis and a sampled token are divided by their mean;
    they may then leave the limits. A rollout's weight in that mean is the mean over its sampled tokens, as in the
    ``grpo`` loss.
    """
    weights = [_turn_weights(rollout, state, settings) for rollout in group]
    if settings.group_mean_one:
        means = [
            fsum(w * n for w, n in zip(own, rollout.turn_tokens, strict=True)) / sum(rollout.turn_tokens)
            for own, rollout in zip(weights, group, strict=True)
            if rollout.diagnosis is not None and any(rollout.turn_tokens)
        ]
        mean = sum(means) / len(means) if means else 1.0
        weights = [
            own if rollout.diagnosis is None else tuple(weight / mean for weight in own)
            for own, rollout in zip(weights, group, strict=True)
        ]
    return tuple(weights)


def _turn_weights(rollout: WeighedRollout, state: RhoState, settings: WeightSettings) -> tuple[float, ...]:
    turns = len(rollout.turn_tokens)
    if rollout.diagnosis is None:
        return (1.0,) * turns
    rho = dict(state.rho)
    if settings.cap_abstention and rollout.advantage > 0:
        rho[TurnLabel.CORRECT_ABSTENTION] = min(1.0, rho[TurnLabel.CORRECT_ABSTENTION])
    if settings.unit == "trajectory":
        labels = rollout.diagnosis.labels()
        return (_clipped(sum(rho[label] for label in labels) / len(labels), settings) if labels else 1.0,) * turns
    weights = [1.0] * turns
    for turn in rollout.diagnosis.turns:
        if turn.label not in EXCLUDED:
            weights[turn.turn] = _clipped(rho[turn.label], settings)
    return tuple(weights)


def turn_tokens(mask: Sequence[int], begins: Sequence[int]) -> tuple[int, ...]:
    """Count the sampled tokens in each turn; ``mask`` is 1 on them, turn ``i`` begins at index ``begins[i]``.

    Raises ValueError unless ``begins`` starts with 0 and is sorted within the mask.
    """
    return tuple(sum(mask[begin:end]) for begin, end in _spans(begins, len(mask)))


def token_weights(weights: Iterable[Sequence[float]], begins: Iterable[Sequence[int]], width: int) -> list[list[float]]:
    """Spread turn weights over tokens, in rows of ``width``: a (B, T) factor of advantages, as lists.

    ``begins`` are the indices in the completion at which each row's turns begin. The last turn's weight extends to the
    end of the row: padding is masked. Raises ValueError for a row whose indices do not fit its weights or the width.
    """
    rows = []
    for own, places in zip(weights, begins, strict=True):
        if len(own) != len(places):
            raise ValueError(f"{len(own)} weights for {len(places)} turns: give one per turn")
        row = [1.0] * width
        for weight, (begin, end) in zip(own, _spans(places, width), strict=True):
            row[begin:end] = [weight] * (end - begin)
        rows.append(row)
    return rows


def _spans(begins: Sequence[int], length: int) -> tuple[tuple[int, int], ...]:
    """Return where each turn begins and ends."""
    spans = tuple(pairwise((*begins, length)))
    if (begins and begins[0] != 0) or any(end < begin for begin, end in spans):
        raise ValueError(f"turns begin at {list(begins)} of {length} tokens: give places from 0 on, in order")
    return spans


def _clipped(weight: float, settings: WeightSettings) -> float:
    return min(settings.most, max(settings.least, weight))
