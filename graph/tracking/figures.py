"""The figures of a run for a tracker, read from its records: numbers by step, numbers by iteration, some rollouts.

The x axis is the global training step everywhere; an iteration's numbers are at the last step of its round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from environments.base import Record
from evaluation.outcomes import Score
from graph.export.messages import chat_messages
from graph.report.summary import Summary
from graph.tracking.trackers import ShownRollout
from memory.jsonl import complaint, read_lines
from memory.records import Trajectory
from memory.run import IterationDirectory, RunDirectory, read_json
from training.grpo.record import RoundRecord, StepMetrics, plain_numbers, step_metrics
from training.seal.seal import SealStep

__all__ = ["by_iteration", "by_step", "shown_rollouts"]

Model = TypeVar("Model", bound=BaseModel)

SHOWN = 4
"""Rollouts of each iteration that trackers are sent (ours): failures first, of different tasks."""

LONGEST = 2000
"""Characters of one text of these (ours)."""


def by_step(folder: IterationDirectory, after: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the numbers of each step of a round later than step ``after``, in order.

    A round that runs has whole lines only up to its last step; a round of an earlier version has its record alone.
    """
    steps = [one for one in _steps(folder) if one.step > after]
    seal = {one.step: one for one in _whole_lines(folder.seal, SealStep)} if steps and folder.seal.exists() else {}
    for one in steps:
        yield one.step, _step_numbers(one, seal.get(one.step))


def _steps(folder: IterationDirectory) -> Iterator[StepMetrics]:
    if folder.metrics.exists():
        yield from _whole_lines(folder.metrics, StepMetrics)
    elif folder.round.exists():
        for step in read_json(folder.round, RoundRecord).steps:
            log = {name: getattr(step, name) for name in ("kl", "loss", "grad_norm")}
            yield step_metrics(step, {name: value for name, value in log.items() if value is not None})


def _step_numbers(step: StepMetrics, seal: SealStep | None) -> dict[str, float]:
    rollouts = {f"rollouts/{name}": value for name, value in step.rollouts.items()}
    if "mixed_groups" in step.rollouts:
        rollouts["rollouts/groups_without_signal"] = 1.0 - step.rollouts["mixed_groups"]
    trainer = {f"train/{name}": value for name, value in (step.trainer | step.measured).items()}
    return trainer | rollouts | (_seal_numbers(seal) if seal is not None else {})


def _seal_numbers(step: SealStep) -> dict[str, float]:
    """Return SEAL's rho, the labels of the step's turns by count, and how many guidelines are shown next."""
    rho = {} if step.state.rho is None else plain_numbers(step.state.rho, without=("window", "total"))
    labels = {f"seal/labels/{label}": float(one.count) for label, one in step.profile.labels.items()}
    shown = {} if step.state.interface is None else {"seal/guidelines": float(len(step.state.interface.guidelines))}
    return {f"seal/{name}": value for name, value in rho.items()} | labels | shown


def by_iteration(run: RunDirectory, iteration: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the numbers of a finished iteration: its score before the first step of all, the rest after its round."""
    folder = run.iteration(iteration)
    summary, record = read_json(folder.summary, Summary), read_json(folder.round, RoundRecord)
    if iteration == 0 and summary.evaluation is not None:
        yield record.first_step - 1, _scored(summary.evaluation.before)
    numbers = {f"tasks/{name}": float(getattr(summary, name)) for name in ("tasks", "admitted")}
    for section, record_or_counts in (
        ("refused", summary.refused),
        ("signals", summary.signals),
        ("signal_tasks", summary.signal_tasks),
        ("failed", summary.failed),
        ("contexts", summary.contexts),
        ("stops", summary.stop_reasons),
        ("seconds", summary.seconds),
        ("cost", summary.cost),
        ("verification", summary.agreement),
        ("round", record),
    ):
        numbers |= {f"{section}/{name}": value for name, value in _plain(record_or_counts).items()}
    if summary.marked is not None:
        numbers["signals/marked_trajectories"] = float(summary.marked)
    numbers["round/groups_without_signal"] = 1.0 - record.mixed_groups
    if summary.evaluation is not None:
        numbers |= _scored(summary.evaluation.after)
    yield record.last_step, numbers


def _plain(counted: Record | Mapping[Any, float] | None) -> dict[str, float]:
    if counted is None:
        return {}
    if isinstance(counted, Record):
        return plain_numbers(counted, without=("steps", "stop_reasons", "iteration", "first_step", "last_step"))
    return {str(name): float(value) for name, value in counted.items()}


def _scored(score: Score) -> dict[str, float]:
    low, high = score.widest
    metrics = {f"evaluation/{name}": value for name, value in score.metrics.items()}
    return metrics | {"evaluation/low": low, "evaluation/high": high, "evaluation/tasks": float(score.n)}


def shown_rollouts(folder: IterationDirectory, most: int = SHOWN) -> list[ShownRollout]:
    """Return rollouts of the last step of a finished round to read, of different tasks where there are as many."""
    last = read_json(folder.round, RoundRecord).last_step
    played = [
        one
        for one in _whole_lines(folder.trajectories, Trajectory)
        if one.step == last and one.infrastructure_error is None
    ]
    firsts: dict[tuple[str, bool], Trajectory] = {}
    for one in played:
        firsts.setdefault((one.task_id, one.success), one)
    half = most // 2
    failed = [one for one in firsts.values() if not one.success]
    solved = [one for one in firsts.values() if one.success]
    chosen = [*failed[: max(half, most - len(solved))], *solved[: max(most - half, most - len(failed))]]
    return [
        ShownRollout(one.id, one.task_id, one.step, one.success, one.reward, chat_messages(one, longest=LONGEST))
        for one in chosen
    ]


def _whole_lines(path: Path, model: type[Model]) -> Iterator[Model]:
    """Yield the records of a file that its writer may be appending to: half a line at its end is left for later."""
    for number, line in read_lines(path):
        if not line.endswith(b"\n"):
            return
        try:
            yield model.model_validate_json(line)
        except ValidationError as error:
            raise ValueError(f"{path}, line {number}: {complaint(error)}") from None
