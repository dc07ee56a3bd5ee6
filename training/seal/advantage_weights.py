"""SEAL's advantage weights: rho of each label, and the weight of a trajectory. Pure and free of torch.

SEAL (arXiv 2605.24426) multiplies the advantage of a trajectory by ``clip(sum of p(z) * rho(z), 0.5, 2)``, where p(z)
is the share of its turns with label z (equations 10 to 12). By the paper rho is fixed; in the released full run it
moves (``moved_rho``, after the released code's ``update_dynamic_tag_weights``;
``tests/training/seal/released_code.json.gz`` holds what that code computes).
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from environments.base import Record
from training.seal.diagnosis import EXCLUDED, Diagnosis, FailureProfile, TurnLabel
from training.seal.settings import BASE_RHO, WeightSettings

LEAST, MOST = 0.5, 2.0
"""Limits of a weight, and of rho in motion (equation 12)."""

WINDOW_STEPS = 12
"""Steps of an epoch, counted over the run: a moving rho follows the turns since it began (released code, as below)."""

FULL_COUNT = 32
"""Turns with a label at which its statistics count in full."""

RATE = 0.25
"""Fraction of the way to its target that rho moves in one step."""


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


FIRST_RHO = RhoState(rho=BASE_RHO)
"""Rho before any profile."""


def moved_rho(state: RhoState, profile: FailureProfile, settings: WeightSettings) -> RhoState:
    """Return rho after the profile of one more step, as the released full run moves it; unchanged if it is fixed.

    A label's rho moves by the fraction RATE towards ``base * (1 + q * (1 - m) * min(1, n / FULL_COUNT))``, clipped to
    LEAST and MOST. n turns have the label since the epoch of WINDOW_STEPS began, this step included, m is the mean
    reward of their trajectories, and q their share of the turns whose label is not excluded. A label that did not occur
    moves towards its base. ``pass`` keeps its base. Where an epoch has no turn yet, the turns since the run began
    count.

    Nothing moves while there is no turn to count. The released code then weighs by the base; the trajectories of such
    a step have excluded labels alone, so that their weight is 1 either way.
    """
    if not settings.dynamic:
        return state
    epoch_begins = state.updates % WINDOW_STEPS == 0
    window = _with_profile({} if epoch_begins else state.window, profile)
    total = _with_profile(state.total, profile)
    counts = window or total
    turns = sum(found.count for label, found in counts.items() if label not in EXCLUDED)
    rho = dict(state.rho)
    for label, base in BASE_RHO.items() if turns else ():
        found = counts.get(label, LabelCount())
        trust = min(1.0, found.count / FULL_COUNT)
        pressure = (found.count / turns) * (1.0 - found.mean_reward) * trust
        target = _clipped(base if label is TurnLabel.PASS else base * (1.0 + pressure))
        rho[label] = (1.0 - RATE) * state.rho[label] + RATE * target
    return RhoState(updates=state.updates + 1, rho=rho, window=window, total=total)


def _with_profile(counts: Mapping[TurnLabel, LabelCount], profile: FailureProfile) -> dict[TurnLabel, LabelCount]:
    added = {}
    for label in TurnLabel:
        before, found = counts.get(label, LabelCount()), profile.of(label)
        if before.count + found.count:
            added[label] = LabelCount(
                count=before.count + found.count,
                successes=before.successes + round(found.mean_reward * found.count),  # rewards are 0 or 1: exact
            )
    return added


def trajectory_weight(diagnosis: Diagnosis | None, state: RhoState) -> float:
    """Return the factor of the trajectory's advantage, w; 1 without a diagnosis or a label that counts."""
    labels = () if diagnosis is None else diagnosis.labels()
    return _clipped(sum(state.rho[label] for label in labels) / len(labels)) if labels else 1.0


def _clipped(weight: float) -> float:
    return min(MOST, max(LEAST, weight))
