"""SEAL in a round of training: each step's failure profile updates the advantage weights and the interface.

The rollouts of a step use the current interface. Their profile then moves rho, which weights the advantages of the same
step, and updates the interface for the next step (SEAL's order). The result is a function of the settings, the state
before the step and the step's trajectories. Free of torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from environments.base import Environment, Record, TaskSpec, ToolSpec
from environments.registry import benchmark_of
from memory.records import Trajectory
from training.seal.advantage_weights import (
    RhoState,
    WeighedRollout,
    first_rho,
    group_weights,
    moved_rho,
    token_weights,
    turn_tokens,
)
from training.seal.diagnosis import Diagnosis, diagnose
from training.seal.failure_profile import ErrorStatistics, FailureProfile, SealFigures, failure_profile
from training.seal.interface import InterfaceState, learning_interface, update
from training.seal.labels import TurnCause, TurnLabel
from training.seal.settings import SealSettings

__all__ = ["Seal", "SealHandover", "SealState", "SealStep", "TurnsOfTokens", "figures", "first_state", "next_state"]


RULES = 2
"""The number of the rules of labels, rho and guidelines. A run keeps to those that it began with."""


class SealState(Record):
    """SEAL's state between steps, by the rules of number ``rules``; a part is None where the settings turn it off."""

    rules: int = 1
    rho: RhoState | None = None
    interface: InterfaceState | None = None


class SealStep(Record):
    """One global step: the failure profile of its rollouts, and the state after it."""

    step: int
    profile: FailureProfile
    state: SealState


class TurnsOfTokens(NamedTuple):
    """A row of tokens: ``mask`` is 1 on those that the policy sampled, turn ``i`` begins at ``begins[i]``."""

    mask: Sequence[int]
    begins: Sequence[int]


class SealHandover(NamedTuple):
    """What the process that took in a step gives the others: the state after it, and a diagnosis per trajectory."""

    state: SealState
    diagnoses: tuple[Diagnosis | None, ...]


def first_state(settings: SealSettings) -> SealState:
    """Return the state of a run before its first step."""
    return SealState(
        rules=RULES,
        rho=None if settings.weights is None else first_rho(settings.weights),
        interface=None if settings.interface is None else InterfaceState(),
    )


def next_state(state: SealState, profile: FailureProfile, settings: SealSettings) -> SealState:
    """Return the state after one more profile. Raises ValueError for a state that other settings made."""
    made = [state.rho is not None, state.interface is not None]
    if made != [settings.weights is not None, settings.interface is not None]:
        raise ValueError("the state and the settings of SEAL differ in what is on: go on with the settings of the run")
    return SealState(
        rules=state.rules,
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
    causes: Counter[TurnCause] = Counter()
    for step in steps:
        labels.update({label: found.count for label, found in step.profile.labels.items()})
        causes.update(step.profile.causes)
    guidelines = Counter(label for read in shown[:-1] for label in read)
    retired = Counter(
        label for read, mastered in zip(shown[:-1], gone[1:], strict=True) for label in read if label in mastered
    )
    return SealFigures(
        steps=len(steps),
        labels={label: labels[label] for label in TurnLabel if labels[label]},
        causes={cause: causes[cause] for cause in TurnCause if causes[cause]},
        errors=ErrorStatistics.total(step.profile.errors for step in steps),
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
        self._diagnoses: tuple[Diagnosis | None, ...] = ()
        self._tools: dict[tuple[str, ...], Mapping[str, ToolSpec]] = {}

    @property
    def environment(self) -> Environment:
        """The environment of the next step's rollouts, with the interface around it if there is one."""
        if self.settings.interface is None:
            return self._bare
        return learning_interface(self._bare, self.settings.interface, self.state.interface)

    def take_in(self, step: int, trajectories: Sequence[Trajectory], tasks: Mapping[str, TaskSpec]) -> None:
        """Diagnose the rollouts of global ``step`` and update the state. ``tasks`` holds their tasks by id."""
        benchmark = benchmark_of(self._bare)
        self._diagnoses = tuple(
            diagnose(
                one,
                tasks[one.task_id],
                self._documented(tasks[one.task_id]),
                benchmark,
                unreached=self.settings.unreached,
            )
            for one in trajectories
        )
        profile = failure_profile(self._diagnoses, trajectories)
        self.state = next_state(self.state, profile, self.settings)
        self._keep(SealStep(step=step, profile=profile, state=self.state))

    def handover(self) -> SealHandover:
        """Return what the last ``take_in`` came to, for other processes of the round."""
        return SealHandover(self.state, self._diagnoses)

    def go_on(self, given: SealHandover, rows: Sequence[int]) -> None:
        """Take over a step that another process took in; ``rows`` are the trajectories that this one weighs."""
        self.state = given.state
        self._diagnoses = tuple(given.diagnoses[row] for row in rows)

    def weigh(
        self,
        advantages: Sequence[float],
        rows: Sequence[TurnsOfTokens],
        size: int,
        width: int,
    ) -> list[list[float]]:
        """Return the factors of the step's advantages, one per token, in rows of ``width``.

        Rows are those of the trajectories of the last ``take_in``, in groups of ``size``. Raises
        ValueError if the numbers of advantages, rows and trajectories differ, and if the weights are off.
        """
        if self.settings.weights is None or self.state.rho is None:
            raise ValueError("SEAL's weights are off: do not ask for them")
        rollouts = [
            WeighedRollout(diagnosis, advantage, turn_tokens(*row))
            for diagnosis, advantage, row in zip(self._diagnoses, advantages, rows, strict=True)
        ]
        groups = (rollouts[start : start + size] for start in range(0, len(rollouts), size))
        weights = [own for group in groups for own in group_weights(group, self.state.rho, self.settings.weights)]
        return token_weights(weights, [row.begins for row in rows], width)

    def _documented(self, task: TaskSpec) -> Mapping[str, ToolSpec]:
        names = tuple(dict.fromkeys((*task.tools, *(name for later in task.withheld.values() for name in later))))
        if names not in self._tools:
            self._tools[names] = {tool.name: tool for tool in self._bare.tools(names)}
        return self._tools[names]
