"""One round of training as a stage of a run: where it starts or resumes, and the files that it writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from environments.base import Environment, InputError, recorded
from environments.checkout import heavy_imports
from memory.files import cut, mend
from memory.processes import exclusive
from memory.records import Trajectory
from memory.run import RunDirectory, append_jsonl, read_existing, read_json, read_jsonl, write_json, write_jsonl
from memory.tasks import load_tasks, tasks_at
from training.embedded.compact import CompactRendering
from training.grpo.checkpoints import (
    RoundCheckpoint,
    check_written_by,
    checkpoint_folder,
    complete_checkpoint,
    discard_after,
    discard_superseded,
    newest_checkpoint,
)
from training.grpo.ranks import ALONE, Ranks
from training.grpo.record import (
    ExpertRecord,
    RoundPlan,
    RoundProgress,
    RoundRecord,
    RoundSeconds,
    RoundSettings,
    StepMetrics,
    Stopwatch,
    round_record,
    step_metrics,
    step_record,
)
from training.grpo.task_sampler import round_tasks
from training.rendering.base import Rendering
from training.rollout.policy import check_policy_path
from training.rollout.sampling import EngineFigures
from training.seal.seal import Seal, SealSettings, SealState, SealStep, figures, first_state

if TYPE_CHECKING:
    from training.grpo.expert import ExpertStep
    from training.grpo.group_rollouts import GroupRollouts
    from training.rollout.policy import PolicyCard

Stepped = TypeVar("Stepped", SealStep, StepMetrics)

CHECKPOINT_STEPS = 10
"""Global steps between checkpoints inside a round, whose end is always one: a killed round loses no more than these."""


class RoundStart(NamedTuple):
    """Where training starts: global steps done before the round, those done in all, and the checkpoint to load."""

    before: int
    done: int
    checkpoint: Path | None
    seconds: RoundSeconds = RoundSeconds()


def run_round(
    root: Path, iteration: int, resume: bool, report: Callable[[RoundProgress], None], ranks: Ranks = ALONE
) -> tuple[RoundRecord, bool]:
    """Train the round of ``iteration`` in the run directory ``root``; return its record, and whether it existed before.

    ``report`` is called after every step. ``resume`` continues a killed round from its newest checkpoint, else from its
    beginning, with the trajectory log cut back to that point. Every one of several ``ranks`` calls this: the first
    holds the lock and writes, and all return its record. Raises InputError for a user's mistake, RoundFailure when
    training cannot continue, EnvironmentFault.
    """
    run = RunDirectory.open(root)
    with ExitStack() as held:
        if ranks.first:
            held.enter_context(exclusive(run.round_lock_path, f"the training of {run.root}", end_orphan=resume))
        record_path = run.iteration(iteration).round

        def begin() -> RoundRecord | None:
            if not record_path.exists():
                return None
            if not resume:
                raise InputError(f"{record_path} exists, iteration {iteration} has its round: use --resume or the next")
            return read_json(record_path, RoundRecord)

        if (finished := ranks.by_first(begin)) is not None:
            return finished, True
        record = _Round(run, iteration, resume, report, ranks).finish()
        ranks.by_first(lambda: write_json(record_path, record))
        return record, False


class _Round:
    """The unfinished round of one iteration; the run's lock is held."""

    def __init__(
        self, run: RunDirectory, iteration: int, resume: bool, report: Callable[[RoundProgress], None], ranks: Ranks
    ) -> None:
        self.run = run
        self.ranks = ranks
        self.iteration = iteration
        self.report = report
        self.files = run.iteration(iteration)
        self.log = self.files.trajectories
        if ranks.by_first(self.log.exists) and not resume:
            raise InputError(f"{self.log} is of a round that did not finish: add --resume to continue it")
        self.settings = run.settings(RoundSettings)
        self.bfloat16 = self.settings.policy.known_dtype == "bfloat16"
        self.latest: Sequence[Trajectory] = ()
        check_policy_path(self.settings.policy.path)
        self.tasks = tasks_at(load_tasks(run), iteration)
        if not self.tasks:
            raise InputError(
                f"{run.tasks_path} holds no task for iteration {iteration}: make D_0 with python -m graph.seed_tasks"
            )

    def finish(self) -> RoundRecord:
        """Train the steps that are left, and compute the round's record from the files on disk."""
        start = self.ranks.by_first(self._start)
        if left := round_tasks(self.tasks, self.settings, self.iteration)[start.done - start.before :]:
            self._train(RoundPlan(self.settings.seed, self.iteration, start.done + 1, left), start)
        return self.ranks.by_first(self._record)

    def _record(self) -> RoundRecord:
        settings = self.settings.training
        mark = newest_checkpoint(self.run.policy_path, self.iteration)
        assert mark is not None
        assert mark.step == mark.last_step
        checkpoint = checkpoint_folder(self.run.policy_path, mark.step)
        return round_record(
            iteration=self.iteration,
            policy=str(checkpoint.relative_to(self.run.root)),
            tasks=len(self.tasks),
            trajectories=read_jsonl(self.log, Trajectory),
            metrics=read_jsonl(self.files.metrics, StepMetrics),
            updates=settings.updates_per_step,
            measured=mark.seconds,
            seal=None
            if settings.seal is None
            else figures(self._seal_state_before(settings.seal), read_jsonl(self.files.seal, SealStep)),
            expert=read_json(self.files.expert, ExpertRecord) if self.files.expert.exists() else None,
        )

    def _start(self) -> RoundStart:
        """Find where to start or resume, and remove what was written after that point."""
        before, checkpoint = 0, None
        if self.iteration > 0:
            previous = self.run.iteration(self.iteration - 1).round
            if not previous.exists():
                raise InputError(f"{previous} is missing: do the round of iteration {self.iteration - 1} first")
            record = read_json(previous, RoundRecord)
            before, checkpoint = record.last_step, self.run.root / record.policy
        start = RoundStart(before=before, done=before, checkpoint=checkpoint)
        mark = newest_checkpoint(self.run.policy_path, self.iteration)
        if mark is not None and self.log.exists() and self.log.stat().st_size >= mark.log_bytes:
            cut(self.log, mark.log_bytes)
            folder = checkpoint_folder(self.run.policy_path, mark.step)
            start = RoundStart(before=before, done=mark.step, checkpoint=folder, seconds=mark.seconds)
        else:
            self.log.unlink(missing_ok=True)
            self.files.expert.unlink(missing_ok=True)
        if start.checkpoint is not None:
            if not start.checkpoint.is_dir():
                raise InputError(f"{start.checkpoint}, the policy of the round before, is missing: restore it")
            check_written_by(start.checkpoint, self.ranks)
        self._cut(self.files.seal, SealStep, start.done)
        self._cut(self.files.metrics, StepMetrics, start.done)
        discard_after(self.run.policy_path, start.done)
        return start

    def _train(self, plan: RoundPlan, start: RoundStart) -> None:
        stopwatch = Stopwatch(before=start.seconds)
        os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
        with heavy_imports():
            import torch
            from transformers.utils import logging

            from training.grpo.group_rollouts import GroupRollouts
            from training.grpo.trl_run import RoundCallback, train, trainer_config
            from training.rollout.engines import open_sampler
            from training.rollout.policy import load_initial_policy

        settings = self.settings
        torch.set_num_threads(settings.training.threads)
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        environment = recorded(settings.environment.open())
        # Weights that are divided go from the CPU to their devices in parts: no device could hold them all.
        device = "cpu" if self.ranks.sharded else settings.policy.device
        policy = load_initial_policy(settings.policy.model_copy(update={"device": device}))
        seal = self._seal(environment, policy.rendering)
        sampler = open_sampler(
            settings.sampling,
            policy,
            self.run.served_path,
            bfloat16=self.bfloat16,
            adapter=settings.policy.lora is not None,
            ranks=self.ranks,
        )
        rollouts = GroupRollouts(
            plan, policy, sampler, environment, settings.training, self._keep, stopwatch, seal, self.ranks
        )

        config = trainer_config(
            settings.training,
            plan,
            self.run.policy_path,
            CHECKPOINT_STEPS,
            on_cpu=policy.model.device.type == "cpu" and not self.ranks.sharded,
            bfloat16=self.bfloat16,
            corrected=settings.sampling.corrected(self.bfloat16),
        )

        def on_checkpoint(step: int) -> None:
            stopwatch.engine = _of_processes(self.ranks.gather(sampler.figures()))
            self.ranks.by_first(lambda: self._complete(step, plan.last_step, stopwatch, policy.card))

        callback = RoundCallback(plan, stopwatch, partial(self._step_done, start.before), on_checkpoint)
        with closing(sampler):
            train(config, rollouts, callback, start.checkpoint, settings.policy.lora, self._expert(rollouts, start))

    def _keep(self, trajectories: Sequence[Trajectory]) -> None:
        append_jsonl(self.log, trajectories)
        self.latest = trajectories

    def _step_done(self, before: int, step: int, numbers: Mapping[str, float]) -> None:
        if not self.ranks.first:
            return
        done = step_record(step, self.latest, numbers, self.settings.training.updates_per_step)
        append_jsonl(self.files.metrics, [step_metrics(done, numbers)])
        self.report(
            RoundProgress(
                step=step - before,
                of=self.settings.training.steps,
                success=done.success,
                reward=done.reward,
                infrastructure_errors=done.infrastructure_errors,
            )
        )

    def _complete(self, step: int, last_step: int, stopwatch: Stopwatch, card: PolicyCard | None) -> None:
        mark = RoundCheckpoint(
            iteration=self.iteration,
            step=step,
            last_step=last_step,
            log_bytes=self.log.stat().st_size,
            seconds=stopwatch.seconds(),
        )
        complete_checkpoint(checkpoint_folder(self.run.policy_path, step), mark, card)
        discard_superseded(self.run.policy_path, step)

    def _expert(self, rollouts: GroupRollouts, start: RoundStart) -> ExpertStep | None:
        if self.settings.training.expert is None or start.done > start.before:
            return None
        from training.grpo.expert import expert_step

        evolved = self.settings.tasks.uses_evolved
        return expert_step(
            rollouts, self.settings.training.expert, self.tasks, evolved, lambda one: write_json(self.files.expert, one)
        )

    def _seal(self, environment: Environment, rendering: Rendering) -> Seal | None:
        settings = self.settings.training.seal
        if settings is None:
            return None
        if settings.interface is not None and isinstance(rendering, CompactRendering):
            rendering.check_interface(settings.interface)
        keep = partial(append_jsonl, self.files.seal) if self.ranks.first else lambda steps: None
        return Seal(settings, environment, self._seal_state(settings), lambda step: keep([step]))

    def _seal_state(self, settings: SealSettings) -> SealState:
        """Return SEAL's state after the last step that is kept, of this round or of the one before."""
        done = read_existing(self.files.seal, SealStep)
        return done[-1].state if done else self._seal_state_before(settings)

    def _seal_state_before(self, settings: SealSettings) -> SealState:
        """Return SEAL's state before the round's first step."""
        if self.iteration == 0:
            return first_state(settings)
        earlier = self.run.iteration(self.iteration - 1).seal
        if not earlier.exists():
            raise InputError(f"{earlier}, which SEAL continues from, is missing: restore it")
        return read_jsonl(earlier, SealStep)[-1].state

    def _cut(self, path: Path, model: type[Stepped], step: int) -> None:
        """Drop the records of ``path`` after global step ``step``, and a half-written last line."""
        mend(path)
        if kept := [one for one in read_existing(path, model) if one.step <= step]:
            write_jsonl(path, kept)
        else:
            path.unlink(missing_ok=True)


def _of_processes(figures: Sequence[EngineFigures | None]) -> EngineFigures | None:
    """Return what the engines of all processes did; None where none has one beside the trainer."""
    there = [one for one in figures if one is not None]
    return reduce(partial(EngineFigures.plus, at_once=True), there) if there else None
