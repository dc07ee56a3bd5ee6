"""SEAL's advantage weights: rho of each label, the weights of trajectories or turns, and those of their tokens.

SEAL (arXiv 2605.24426) multiplies the advantage of a trajectory by ``clip(sum of p(z) * rho(z), 0.5, 2)``, where p(z)
is the share of its turns with label z (equations 10 to 12). The alternative, one weight per turn on that turn's tokens,
is ours. Weights are positive: they scale an advantage, never change its sign, and a zero stays zero.

By the paper rho is fixed; in the released full run it moves (``moved_rho``, after the released code's
``update_dynamic_tag_weights``; ``tests/training/seal/released_code.json.gz`` holds what that code computes).
Pure and free of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from pydantic import Field

from environments.base import Record
from training.seal.diagnosis import Diagnosis
from training.seal.failure_profile import FailureProfile
from training.seal.labels import EXCLUDED, TurnLabel
from training.seal.settings import WeightSettings

__all__ = [
    "LabelCount",
    "RhoState",
    "WeighedRollout",
    "first_rho",
    "group_weights",
    "moved_rho",
    "token_weights",
    "turn_tokens",
]


class LabelCount(Record):
    """Turns with one label, and how many of them are of a trajectory that succeeded."""

    count: int = Field(0, ge=0)
    successes: int = Field(0, ge=0)

    @property
    def mean_reward(self) -> float:
        """The mean reward of the turns' trajectories, of rewards 0 and 1; 0 without a turn."""
        return self.successes / self.count if self.count else 0.0


class RhoState(Record):
    """Rho of every label that is not excluded, after ``updates`` profiles.

    ``window`` counts the turns since the epoch began, ``total`` those since the run began; empty where rho is fixed.
    """

    updates: int = Field(0, ge=0)
    rho: dict[TurnLabel, float]
    window: dict[TurnLabel, LabelCount] = {}
    total: dict[TurnLabel, LabelCount] = {}


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
    """Return rho after the profile of one more step, as the released full run moves it; unchanged if it is fixed.

    A label's rho moves by the fraction ``rate`` towards ``base * (1 + alpha * q * (1 - m) * min(1, n / full_count))``,
    clipped to ``least`` and ``most``. n turns have the label since the epoch of ``window_steps`` began, this step
    included, m is the mean reward of their trajectories, and q their share of the turns whose label is not excluded. A
    label that did not occur moves towards its base. ``pass`` keeps its base. Where an epoch has no turn yet, the turns
    since the run began count.

    Nothing moves while there is no turn to count. The released code then weighs by the base; the trajectories of such
    a step have excluded labels alone, so that their weight is 1 either way.
    """
    if not settings.dynamic:
        return state
    epoch_begins = state.updates % settings.window_steps == 0
    window = _with_profile({} if epoch_begins else state.window, profile)
    total = _with_profile(state.total, profile)
    counts = window or total
    turns = sum(found.count for label, found in counts.items() if label not in EXCLUDED)
    rho = dict(state.rho)
    for label, base in settings.base().items() if turns else ():
        found = counts.get(label, LabelCount())
        trust = min(1.0, found.count / settings.full_count)
        pressure = settings.alpha * (found.count / turns) * (1.0 - found.mean_reward) * trust
        target = _clipped(base if label is TurnLabel.PASS else base * (1.0 + pressure), settings)
        rho[label] = (1.0 - settings.rate) * state.rho[label] + settings.rate * target
    return RhoState(updates=state.updates + 1, rho=rho, window=window, total=total)


def _with_profile(counts: Mapping[TurnLabel, LabelCount], profile: FailureProfile) -> dict[TurnLabel, LabelCount]:
    """Return ``counts`` with those of a profile added, in the order of the labels."""
    added = {}
    for label in TurnLabel:
        before, found = counts.get(label, LabelCount()), profile.of(label)
        if before.count + found.count:
            added[label] = LabelCount(
                count=before.count + found.count,
                successes=before.successes + round(found.mean_reward * found.count),  # rewards are 0 or 1: exact
            )
    return added


def group_weights(
    group: Sequence[WeighedRollout], state: RhoState, settings: WeightSettings
) -> tuple[tuple[float, ...], ...]:
    """Return a positive weight for each turn of each rollout of a group, in their order.

    If the unit is the trajectory, the weights of one rollout are equal. A turn without a label, or with an excluded
    one, has weight 1 and does not count in its trajectory's.
    """
    return tuple(_turn_weights(rollout, state, settings) for rollout in group)


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
        if turn.turn < turns and turn.label not in EXCLUDED:  # a turn that was not reached has no token
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
