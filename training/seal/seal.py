"""SEAL in a round of training: each step's failure profile updates the advantage weights and the interface.

The rollouts of a step use the current interface. Their profile then moves rho, which weights the advantages of the same
step, and updates the interface for the next step (SEAL's order). The result is a function of the settings, the state
before the step and the step's trajectories. Free of torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from environments.base import Environment, Record
from memory.records import Trajectory
from training.seal.advantage_weights import FIRST_RHO, RhoState, moved_rho, trajectory_weight
from training.seal.diagnosis import FailureProfile, SealFigures, TurnLabel, diagnose, failure_profile
from training.seal.interface import InterfaceState, learning_interface, update
from training.seal.settings import SealSettings


class SealState(Record):
    """SEAL's state between steps; a part is None where the settings turn it off."""

    rho: RhoState | None = None
    interface: InterfaceState | None = None


class SealStep(Record):
    """One global step: the failure profile of its rollouts, and the state after it."""

    step: int
    profile: FailureProfile
    state: SealState


def first_state(settings: SealSettings) -> SealState:
    """Return the state of a run before its first step."""
    return SealState(
        rho=None if settings.weights is None else FIRST_RHO,
        interface=None if settings.interface is None else InterfaceState(),
    )


def next_state(state: SealState, profile: FailureProfile, settings: SealSettings) -> SealState:
    """Return the state after one more profile."""
    return SealState(
        rho=moved_rho(state.rho, profile, settings.weights) if state.rho and settings.weights else None,
        interface=update(state.interface, profile, settings.interface)
        if state.interface and settings.interface
        else None,
    )


def figures(before: SealState, steps: Sequence[SealStep]) -> SealFigures:
    """Compute a round's figures from the state ``before`` its first step and all of its steps, in order."""
    states = [before, *(step.state for step in steps)]
    shown = [() if state.interface is None else state.interface.guidelines for state in states]
    gone = [() if state.interface is None else state.interface.retired for state in states]
    labels: Counter[TurnLabel] = Counter()
    for step in steps:
        labels.update({label: found.count for label, found in step.profile.labels.items()})
    guidelines = Counter(label for read in shown[:-1] for label in read)
    retired = Counter(
        label for read, mastered in zip(shown[:-1], gone[1:], strict=True) for label in read if label in mastered
    )
    return SealFigures(
        steps=len(steps),
        labels={label: labels[label] for label in TurnLabel if labels[label]},
        guidelines={label: guidelines[label] for label in TurnLabel if guidelines[label]},
        retired={label: retired[label] for label in TurnLabel if retired[label]},
    )


class Seal:
    """SEAL in one round, step by step. ``keep`` is called with each finished step."""

    def __init__(
        self, settings: SealSettings, environment: Environment, state: SealState, keep: Callable[[SealStep], object]
    ) -> None:
        self.settings = settings
        self.state = state
        self._bare = environment
        self._keep = keep

    @property
    def environment(self) -> Environment:
        """The environment of the next step's rollouts, with the interface around it if there is one."""
        if self.settings.interface is None:
            return self._bare
        return learning_interface(self._bare, self.settings.interface, self.state.interface)

    def take_in(self, step: int, trajectories: Sequence[Trajectory]) -> list[float] | None:
        """Diagnose the rollouts of global ``step``, all of them, and update the state.

        Returns the factors of their advantages, one per trajectory; None where the settings turn them off.
        """
        diagnoses = [diagnose(one) for one in trajectories]
        profile = failure_profile(diagnoses)
        self.state = next_state(self.state, profile, self.settings)
        self._keep(SealStep(step=step, profile=profile, state=self.state))
        rho = self.state.rho
        return None if rho is None else [trajectory_weight(one, rho) for one in diagnoses]
