"""Sends each iteration of a run to its experiment trackers when it ends, from the command that evolves.

The x axis is the global training step everywhere; an iteration's numbers are at the last step of its round. Trackio,
TensorBoard and Weights & Biases are two functions each of their own packages. All write to this machine, unless the
tracker's own environment variables (WANDB_MODE, TRACKIO_SPACE_ID) say otherwise. Those of transformers and accelerate
are not used: each round, a process of its own, would open a run of its own, and this process does without torch.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import JsonValue

from environments.base import InputError
from evaluation.outcomes import Score
from graph.report.summary import Summary
from graph.settings import RunSettings, dotted
from memory.files import read_whole, write_atomically
from memory.run import IterationDirectory, RunDirectory, read_existing, read_json, read_jsonl
from training.grpo.record import RoundRecord, StepMetrics, plain_numbers
from training.seal.seal import SealStep
from training.settings import ExperimentTracker

PROJECT = "coevolve"
"""The project that runs belong to in Trackio and Weights & Biases."""


class TrackedRun(NamedTuple):
    """A run as trackers know it: an id that no other run has, a name, its settings, and a folder for their files."""

    id: str
    name: str
    folder: Path
    settings: Mapping[str, JsonValue]


class Tracker(NamedTuple):
    """One run in one tracker; the functions may raise whatever the tracker's package raises.

    ``where`` says in a sentence where the run is to be seen. ``log`` sends numbers by name, and the global training
    step that they are of. ``close`` writes what is not written yet.
    """

    where: str
    log: Callable[[Mapping[str, float], int], object]
    close: Callable[[], object]


def check_trackers(names: Sequence[ExperimentTracker]) -> None:
    """Raise InputError that names the first tracker whose package is not installed, with the line that installs it."""
    for name in names:
        if find_spec(name) is None:
            raise InputError(
                f"training.report_to: the package {name} is not installed: run pip install -c constraints.txt -e "
                f"'.[{name}]', or leave it out"
            )


def open_tracker(name: ExperimentTracker, run: TrackedRun) -> Tracker:
    """Open ``run`` in the tracker ``name``, or go on with it where an earlier process opened it."""
    return {"trackio": _trackio, "tensorboard": _tensorboard, "wandb": _wandb}[name](run)


def _trackio(run: TrackedRun) -> Tracker:
    """Open a database in Trackio's own folder (TRACKIO_DIR, else the hub's cache), which ``trackio show`` reads."""
    import trackio

    name = f"{run.name}-{run.id}"
    opened: Any = trackio.init(
        project=PROJECT,
        name=name,
        resume="allow",
        config=dict(run.settings),
        embed=False,
        # It would log the machine's load every ten seconds, in steps of its own.
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    where = f"trackio show --project {PROJECT}, run {name}"
    return Tracker(where, lambda values, step: opened.log(dict(values), step=step), opened.finish)


def _tensorboard(run: TrackedRun) -> Tracker:
    """Open an event file below the run; without torch's writer, whose import takes seconds."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = run.folder / "tensorboard"
    folder.mkdir(parents=True, exist_ok=True)
    writer: Any = EventFileWriter(str(folder))

    def log(values: Mapping[str, float], step: int) -> None:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    return Tracker(f"tensorboard --logdir {folder}", log, writer.close)


def _wandb(run: TrackedRun) -> Tracker:
    """Open a run of Weights & Biases: offline, files below the run, unless WANDB_MODE says online."""
    import wandb

    run.folder.mkdir(parents=True, exist_ok=True)
    mode: Any = os.environ.get("WANDB_MODE", "offline")
    opened: Any = wandb.init(
        project=PROJECT,
        id=run.id,
        name=run.name,
        dir=str(run.folder),
        config=dict(run.settings),
        # A run that is offline cannot be asked for: its files carry the same id, and are joined when they are sent.
        resume=None if mode == "offline" else "allow",
        mode=mode,
        settings=wandb.Settings(
            symlink=False, console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True
        ),
    )
    # Its own count of calls is not the training step, and starts afresh with each process.
    opened.define_metric("step")
    opened.define_metric("*", step_metric="step")
    sent = f"wandb sync --append {run.folder / 'wandb' / f'offline-run-*-{run.id}'}"
    where = sent if mode == "offline" else f"project {PROJECT}, run {run.id}"
    return Tracker(where, lambda values, step: opened.log({"step": step, **values}), opened.finish)


_AN_ID = re.compile(rb"[0-9a-f]{8}")
_ID = "id"
"""The file of a run's trackers with the id by which they know the run, however many commands work on it."""


@contextmanager
def follow_run(run: RunDirectory, settings: RunSettings, say: Callable[[str], None]) -> Iterator[Callable[[int], None]]:
    """Give the function that sends a finished iteration to ``training.report_to``; close the trackers after the block.

    ``say`` gets one line for each tracker that opens, and one for each that fails, which gets nothing more in this
    process: whatever a package does must not end the run.
    """
    names = list(settings.training.report_to)
    opened: dict[ExperimentTracker, Tracker] = {}

    def log(name: ExperimentTracker, iteration: int) -> None:
        if name not in opened:
            opened[name] = open_tracker(name, _tracked(run, settings))
            say(f"{name}: {opened[name].where}")
        for step, values in (*by_step(run.iteration(iteration)), *by_iteration(run, iteration)):
            opened[name].log(values, step)

    def kept_going(name: ExperimentTracker, work: Callable[[], object]) -> None:
        try:
            work()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - packages of others exit, too
            names.remove(name)
            words = " ".join(str(error).split())[:300] or "without a word"
            say(
                f"training.report_to: {name} failed ({type(error).__name__}: {words}): the run goes on without it, "
                "--resume sends later iterations"
            )

    def send(iteration: int) -> None:
        for name in tuple(names):
            kept_going(name, partial(log, name, iteration))

    try:
        yield send
    finally:
        for name in [name for name in names if name in opened]:
            kept_going(name, opened[name].close)


def _tracked(run: RunDirectory, settings: RunSettings) -> TrackedRun:
    path = run.trackers_path / _ID
    if not path.exists():
        write_atomically(path, [uuid.uuid4().hex[:8].encode()])
    if not _AN_ID.fullmatch(name := read_whole(path, 100)):
        raise InputError(f"{path} holds no id of a run: remove it, and trackers know the run by a new one")
    return TrackedRun(name.decode(), run.root.resolve().name, run.trackers_path, dotted(settings))


def by_step(folder: IterationDirectory) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the numbers of each step of a finished round, in order: TRL's log, the rollouts, SEAL's figures."""
    seal = {one.step: one for one in read_existing(folder.seal, SealStep)}
    for one in read_jsonl(folder.metrics, StepMetrics):
        numbers = {f"train/{name}": value for name, value in (one.trainer | one.measured).items()}
        numbers |= {f"rollouts/{name}": value for name, value in one.rollouts.items()}
        of_seal = plain_numbers(seal[one.step], without=("step",)) if one.step in seal else {}
        yield one.step, numbers | {f"seal/{name}": value for name, value in of_seal.items()}


def by_iteration(run: RunDirectory, iteration: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the numbers of a finished iteration: its score before the first step of all, the rest after its round."""
    folder = run.iteration(iteration)
    summary, record = read_json(folder.summary, Summary), read_json(folder.round, RoundRecord)
    if iteration == 0 and summary.evaluation is not None:
        yield record.first_step - 1, _scored(summary.evaluation.before)
    numbers = plain_numbers(summary, without=("iteration", "evaluation", "measured", "seal"))
    of_round = plain_numbers(record, without=("steps", "stop_reasons", "iteration", "first_step", "last_step"))
    numbers |= {f"round/{name}": value for name, value in of_round.items()}
    yield record.last_step, numbers | ({} if summary.evaluation is None else _scored(summary.evaluation.after))


def _scored(score: Score) -> dict[str, float]:
    low, high = score.widest
    metrics = {f"evaluation/{name}": value for name, value in score.metrics.items()}
    return metrics | {"evaluation/low": low, "evaluation/high": high, "evaluation/tasks": float(score.n)}
