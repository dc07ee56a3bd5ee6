"""Sends each iteration of a run to its experiment trackers when it ends, from the command that evolves.

The x axis is the global training step everywhere; an iteration's numbers are at the last step of its round.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from environments.base import Record
from evaluation.outcomes import Score
from graph.report.summary import Summary
from graph.settings import RunSettings, dotted
from graph.tracking.trackers import TrackedRun, Tracker, open_tracker
from memory.run import IterationDirectory, RunDirectory, read_existing, read_json, read_jsonl
from training.grpo.record import RoundRecord, StepMetrics, plain_numbers
from training.seal.seal import SealStep
from training.settings import ExperimentTracker

_ID = "id"
"""The file of a run's trackers with the id by which they know the run, however many commands work on it."""

PATIENCE = 60.0
"""Seconds that a tracker has for an iteration, and to close; a run does not wait longer for one (ours)."""

Send = Callable[[int], None]


@contextmanager
def follow_run(run: RunDirectory, settings: RunSettings, say: Callable[[str], None]) -> Iterator[Send]:
    """Give the function that sends a finished iteration to ``training.report_to``; close the trackers after the block.

    ``say`` gets one line for each tracker that opens, and one for each that fails or takes longer than ``PATIENCE``,
    which gets nothing more in this process.
    """
    names = list(settings.training.report_to)
    opened: dict[ExperimentTracker, Tracker] = {}

    def send(iteration: int) -> None:
        def log(name: ExperimentTracker) -> None:
            if name not in opened:
                opened[name] = open_tracker(name, _tracked(run, settings))
                say(f"{name}: {opened[name].where}")
            for step, values in (*by_step(run.iteration(iteration)), *by_iteration(run, iteration)):
                opened[name].log(values, step)

        for name in _failed(names, log, say):
            names.remove(name)

    try:
        yield send
    finally:
        _failed([name for name in names if name in opened], lambda name: opened[name].close(), say)


def _tracked(run: RunDirectory, settings: RunSettings) -> TrackedRun:
    path = run.trackers_path / _ID
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(uuid.uuid4().hex[:8])
    return TrackedRun(path.read_text(), run.root.resolve().name, run.trackers_path, dotted(settings))


def _failed(
    names: Sequence[ExperimentTracker], work: Callable[[ExperimentTracker], object], say: Callable[[str], None]
) -> list[ExperimentTracker]:
    """Do ``work`` for each tracker, and return those that failed: whatever a package does must not end the run."""
    failed = []
    for name in names:
        causes: list[str] = [f"it took longer than {PATIENCE:g} s"]

        def guarded(name: ExperimentTracker = name, causes: list[str] = causes) -> None:
            try:
                work(name)
                causes.clear()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - packages of others exit, too
                words = " ".join(str(error).split())[:300] or "without a word"
                causes[:] = [f"{type(error).__name__}: {words}"]

        thread = threading.Thread(target=guarded, name=f"tracker {name}", daemon=True)
        thread.start()
        thread.join(PATIENCE)
        if causes:
            failed.append(name)
            say(
                f"training.report_to: {name} failed ({causes[0]}): the run goes on without it, --resume sends later "
                "iterations"
            )
    return failed


def by_step(folder: IterationDirectory) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the numbers of each step of a finished round, in order."""
    seal = {one.step: one for one in read_existing(folder.seal, SealStep)}
    for one in read_jsonl(folder.metrics, StepMetrics):
        yield one.step, _step_numbers(one, seal.get(one.step))


def _step_numbers(step: StepMetrics, seal: SealStep | None) -> dict[str, float]:
    rollouts = {f"rollouts/{name}": value for name, value in step.rollouts.items()}
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
        ("round", record),
    ):
        numbers |= {f"{section}/{name}": value for name, value in _plain(record_or_counts).items()}
    if summary.marked is not None:
        numbers["signals/marked_trajectories"] = float(summary.marked)
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
