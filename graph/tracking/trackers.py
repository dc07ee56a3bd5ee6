"""Experiment trackers: Trackio, TensorBoard and Weights & Biases, each as two functions of its own package.

All of them write to this machine, unless the tracker's own environment variables (WANDB_MODE, TRACKIO_SPACE_ID) say
otherwise. Those of transformers and accelerate are not used: each round, a process of its own, would open a run of its
own, and this process does without torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import JsonValue

from environments.base import InputError
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
        settings=wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True),
    )
    # Its own count of calls is not the training step, and starts afresh with each process.
    opened.define_metric("step")
    opened.define_metric("*", step_metric="step")
    sent = f"wandb sync --append {run.folder / 'wandb' / f'offline-run-*-{run.id}'}"
    where = sent if mode == "offline" else f"project {PROJECT}, run {run.id}"
    return Tracker(where, lambda values, step: opened.log({"step": step, **values}), opened.finish)
