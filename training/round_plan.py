"""What a round is about to do, what its time goes to, and how it may fail: the torch-free part of training."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from memory.records import Task
from training.round_record import RoundSeconds


class RoundFailure(RuntimeError):
    """The round cannot go on: out of memory, a loss that is not a number, an environment that answers nothing."""


@dataclass(frozen=True)
class RoundPlan:
    """The tasks of each step that a round has left; ``first_step`` is the global number (from 1) of the next one."""

    run_seed: int
    iteration: int
    first_step: int
    steps: tuple[tuple[Task, ...], ...]

    @property
    def last_step(self) -> int:
        """The global step that ends the round."""
        return self.first_step + len(self.steps) - 1


@dataclass
class Stopwatch:
    """Seconds by stage; ``before`` is what earlier processes of the same round spent."""

    before: RoundSeconds = field(default_factory=RoundSeconds)
    load: float = 0.0
    rollouts: float = 0.0
    save: float = 0.0
    seal: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    def loaded(self) -> None:
        """Everything until now was loading."""
        self.load = time.perf_counter() - self.started

    def seconds(self) -> RoundSeconds:
        """Everything so far; what is neither loading, rollouts, saving nor SEAL's is optimisation."""
        elapsed = time.perf_counter() - self.started
        return RoundSeconds(
            load=self.before.load + self.load,
            rollouts=self.before.rollouts + self.rollouts,
            optimisation=self.before.optimisation + elapsed - self.load - self.rollouts - self.save - self.seal,
            save=self.before.save + self.save,
            seal=self.before.seal + self.seal,
        )
