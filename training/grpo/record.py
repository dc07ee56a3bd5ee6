"""One round of training as data, free of torch: its plan, its record, its times, and how it may fail.

The record is computed from the round's trajectories and the trainer's log.
"""

from __future__ import annotations

import math
import operator
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from environments.base import Record
from environments.settings import EnvironmentSettings
from memory.jsonl import leaves
from memory.records import Measured, StopReason, Task, Trajectory, count_stops
from memory.tasks import TaskSettings
from training.rollout.sampling import EngineFigures
from training.seal.diagnosis import SealFigures
from training.settings import PolicySettings, SamplingSettings, TrainingSettings


class RoundFailure(RuntimeError):
    """The round cannot continue: out of memory, a loss that is not finite, an environment that fails every rollout."""


class RoundSettings(BaseModel):
    """The sections of a run's settings that a round reads; it ignores the others."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    seed: int = Field(ge=0)
    environment: EnvironmentSettings
    policy: PolicySettings
    training: TrainingSettings
    sampling: SamplingSettings = SamplingSettings()
    tasks: TaskSettings


@dataclass(frozen=True)
class RoundPlan:
    """The tasks of each remaining step of a round; ``first_step`` is the global number (from 1) of the next one."""

    run_seed: int
    iteration: int
    first_step: int
    steps: tuple[tuple[Task, ...], ...]

    @property
    def last_step(self) -> int:
        """Return the global step that ends the round."""
        return self.first_step + len(self.steps) - 1


class SamplingGap(Record):
    """Differences in nats of the sampler's log-probabilities to the trainer's, over the written tokens of one step.

    Both are of the policy before the step's updates; they differ by rounding, that of bfloat16 above all.
    """

    mean: float
    largest: float


class StepRecord(Record):
    """One GRPO step. ``step`` is global, from 1; means are over rollouts without an infrastructure error.

    ``mixed_groups`` is the share of groups that hold both a success and a failure: only these carry a success signal.
    ``kl`` is TRL's per-token estimate to the initial policy before the step's update, None when the KL weight is 0.
    With several updates per step, ``kl`` and ``loss`` are means over them, ``grad_norm`` is that of the last, and
    ``clipped`` is the mean share of tokens whose ratio is beyond the clip: only the KL term has a gradient there. With
    one update per step nothing is clipped, and the key is not written. ``stop_reasons`` counts the user turns of all
    rollouts by why they stopped. ``measured``: how far the sampler was from the trainer.
    """

    step: int
    rollouts: int
    infrastructure_errors: int
    success: float
    reward: float
    mixed_groups: float
    sampled_tokens: int
    kl: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    clipped: float | None = Field(default=None, exclude_if=lambda share: share is None)
    stop_reasons: dict[StopReason, int] = Field(default={}, exclude_if=operator.not_)
    measured: SamplingGap | None = Field(default=None, exclude_if=operator.not_)


class RoundSeconds(Record):
    """Wall seconds by stage: imports and model loading, rollouts, everything else of a step, saving checkpoints.

    ``seal``: SEAL's diagnosis of the rollouts, its next state, and the weights of advantages; in no other stage, and
    written where there is any. ``engine``: what an engine beside the trainer did; its seconds are part of the rollouts.
    """

    load: float = 0.0
    rollouts: float = 0.0
    optimisation: float = 0.0
    save: float = 0.0
    seal: float = Field(default=0.0, exclude_if=operator.not_)
    engine: EngineFigures | None = Field(default=None, exclude_if=operator.not_)


@dataclass
class Stopwatch:
    """Measures seconds by stage; ``before`` is what earlier processes of the same round spent."""

    before: RoundSeconds = field(default_factory=RoundSeconds)
    load: float = 0.0
    rollouts: float = 0.0
    save: float = 0.0
    seal: float = 0.0
    engine: EngineFigures | None = None
    started: float = field(default_factory=time.perf_counter)

    def loaded(self) -> None:
        """Count everything until now as loading."""
        self.load = time.perf_counter() - self.started

    def seconds(self) -> RoundSeconds:
        """Return everything so far; what is not loading, rollouts, saving or SEAL's is optimisation."""
        elapsed = time.perf_counter() - self.started
        before, engine = self.before.engine, self.engine
        return RoundSeconds(
            load=self.before.load + self.load,
            rollouts=self.before.rollouts + self.rollouts,
            optimisation=self.before.optimisation + elapsed - self.load - self.rollouts - self.save - self.seal,
            save=self.before.save + self.save,
            seal=self.before.seal + self.seal,
            engine=engine if before is None else before if engine is None else before.plus(engine),
        )


class ExpertRecord(Record):
    """An expert step: ``references`` of new tasks were learnt from in ``updates`` of ``tokens`` written tokens in all.

    ``processed`` tokens went through the model, prompts included. Where no task was new and ``tokens`` of the settings
    is a number, ``references`` are of older tasks.

    ``replayed`` is the number of different references of older tasks that were learnt from too. ``left_out`` references
    did not succeed under the limits of an episode: of new tasks, and of older ones that were drawn. Losses are nats per
    token, means over the first and the last tenth of the updates; None where no task was new. ``measured`` is the time
    of the updates; playing the references is part of the round's loading.
    """

    references: int
    left_out: int
    replayed: int
    updates: int
    tokens: int
    processed: int = 0
    first_loss: float | None
    last_loss: float | None
    measured: Measured = Measured()


def _in_the_run(policy: str) -> str:
    if policy.startswith("/") or ".." in policy.split("/"):
        raise ValueError("it leads out of the run")
    return policy


class RoundRecord(Record):
    """The result of a finished round; ``policy`` is the checkpoint's folder relative to the run directory.

    ``first_step`` and ``last_step`` are the global steps of the round, both included. ``success``, ``reward``, ``kl``
    and ``mixed_groups`` are means over its steps, ``stop_reasons`` are sums. ``seal``: SEAL's labels and guidelines in
    numbers, None where it is off. ``expert``: the expert step before the first of them, written where there is one.
    Equality of runs ignores ``measured``.
    """

    iteration: int
    policy: Annotated[str, AfterValidator(_in_the_run)]
    first_step: int
    last_step: int
    tasks: int
    steps: tuple[StepRecord, ...]
    success: float
    reward: float
    mixed_groups: float
    kl: float | None
    sampled_tokens: int
    infrastructure_errors: int
    stop_reasons: dict[StopReason, int] = Field(default={}, exclude_if=operator.not_)
    seal: SealFigures | None = Field(default=None, exclude_if=operator.not_)
    expert: ExpertRecord | None = Field(default=None, exclude_if=operator.not_)
    measured: RoundSeconds

    @property
    def gap(self) -> SamplingGap | None:
        """Return the differences of the sampler over the round's steps: the mean of their means, and the largest."""
        gaps = [step.measured for step in self.steps if step.measured is not None]
        if not gaps:
            return None
        return SamplingGap(mean=_mean(one.mean for one in gaps), largest=max(one.largest for one in gaps))


class StepMetrics(Record):
    """One global step in plain numbers, for experiment trackers: a line of ``metrics.jsonl``.

    ``trainer`` is TRL's own log of the step, by TRL's names. ``rollouts`` are the numbers of
    the step's ``StepRecord`` that do not come from the trainer, by ``plain_numbers``. ``measured`` are those of TRL's
    numbers that may differ between equal runs: times, and how far the sampler was from the trainer.
    """

    step: int
    trainer: dict[str, float]
    rollouts: dict[str, float]
    measured: dict[str, float] = {}


_OF_THE_TRAINER = frozenset({"step", "kl", "loss", "grad_norm", "clipped", "measured"})
_WITHOUT_MEANING = frozenset({"epoch"})  # of a data set; a round draws tasks
_MEASURED = ("step_time", "sampling/", "profiling/")


def step_metrics(record: StepRecord, log: Mapping[str, float]) -> StepMetrics:
    """Return the numbers of one step: its record, and TRL's log of it. Numbers that are not finite are left out."""
    kept = {name: value for name, value in log.items() if math.isfinite(value) and name not in _WITHOUT_MEANING}
    measured = {name for name in kept if name.startswith(_MEASURED)}
    return StepMetrics(
        step=record.step,
        trainer={name: value for name, value in kept.items() if name not in measured},
        rollouts=plain_numbers(record, without=_OF_THE_TRAINER),
        measured={name: kept[name] for name in kept if name in measured},
    )


def plain_numbers(record: Record, without: Collection[str] = ()) -> dict[str, float]:
    """Return the finite numbers of a record by name, those of its records and mappings as ``NAME/KEY``.

    Texts, truth values, lists and fields that are None are left out, and so are the fields named in ``without``.
    """
    return {
        "/".join(keys): float(value)
        for keys, value in leaves(record.model_dump(mode="json", exclude={*without}))
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


class RoundProgress(Record):
    """One line of a running round's stdout: ``step`` of the round's ``of`` steps are done."""

    step: int
    of: int
    success: float
    reward: float
    infrastructure_errors: int = 0


CLIPPED = "clip_ratio/region_mean"
GAP = "sampling/sampling_logp_difference/mean"
LARGEST_GAP = "sampling/sampling_logp_difference/max"
"""TRL's names of numbers that a step's record holds; ``RoundTrainer`` logs the last two with every sampler."""


def step_record(
    step: int, trajectories: Sequence[Trajectory], log: Mapping[str, float], updates: int = 1
) -> StepRecord:
    """Return the record of a global step from trajectories and TRL's log.

    Raises ValueError when no trajectory has an outcome.
    """
    scored = [trajectory for trajectory in trajectories if trajectory.infrastructure_error is None]
    if not scored:
        raise ValueError(f"step {step} has no rollout without an infrastructure error")
    groups: dict[str, set[bool]] = defaultdict(set)
    for trajectory in scored:
        groups[trajectory.task_id].add(trajectory.success)
    return StepRecord(
        step=step,
        rollouts=len(trajectories),
        infrastructure_errors=len(trajectories) - len(scored),
        success=_mean(float(trajectory.success) for trajectory in scored),
        reward=_mean(trajectory.reward for trajectory in scored if trajectory.reward is not None),
        mixed_groups=_mean(float(len(outcomes) == 2) for outcomes in groups.values()),
        sampled_tokens=sum(trajectory.sampled_tokens for trajectory in trajectories),
        kl=log.get("kl"),
        loss=log.get("loss"),
        grad_norm=log.get("grad_norm"),
        clipped=log.get(CLIPPED) if updates > 1 else None,
        stop_reasons=count_stops(turn for trajectory in trajectories for turn in trajectory.turns),
        measured=SamplingGap(mean=log[GAP], largest=log[LARGEST_GAP]) if GAP in log else None,
    )


def round_record(
    *,
    iteration: int,
    policy: str,
    tasks: int,
    trajectories: Sequence[Trajectory],
    metrics: Iterable[StepMetrics],
    updates: int,
    measured: RoundSeconds,
    seal: SealFigures | None = None,
    expert: ExpertRecord | None = None,
) -> RoundRecord:
    """Return the record of a round from all of its trajectories and the metrics of its steps."""
    by_step: dict[int, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_step[trajectory.step].append(trajectory)
    logs = {one.step: {**one.trainer, **one.measured} for one in metrics}
    steps = tuple(step_record(step, by_step[step], logs.get(step, {}), updates) for step in sorted(by_step))
    kls = [step.kl for step in steps if step.kl is not None]
    return RoundRecord(
        iteration=iteration,
        policy=policy,
        first_step=steps[0].step,
        last_step=steps[-1].step,
        tasks=tasks,
        steps=steps,
        success=_mean(step.success for step in steps),
        reward=_mean(step.reward for step in steps),
        mixed_groups=_mean(step.mixed_groups for step in steps),
        kl=_mean(kls) if kls else None,
        sampled_tokens=sum(step.sampled_tokens for step in steps),
        infrastructure_errors=sum(step.infrastructure_errors for step in steps),
        stop_reasons=count_stops(turn for trajectory in trajectories for turn in trajectory.turns),
        seal=seal,
        expert=expert,
        measured=measured,
    )


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)
