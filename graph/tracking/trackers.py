"""Experiment trackers behind one protocol: Trackio, TensorBoard and Weights & Biases.

All of them write to this machine, unless the tracker's own environment variables (WANDB_MODE, TRACKIO_SPACE_ID) say
something else.

transformers has callbacks for these trackers, and they are not used: a round is a process of its own, so that each
would open a run of its own; they count optimizer updates; some publish the model; and an error in one ends training.
``training.grpo.trl_run.RoundCallback`` takes the same numbers where they would, and writes them to the run (ours).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import JsonValue

from environments.base import InputError
from graph.export.messages import ChatMessage
from training.settings import ExperimentTracker

__all__ = ["PROJECT", "ShownRollout", "TrackedRun", "Tracker", "check_trackers", "open_tracker"]

PROJECT = "coevolve"
"""The project that runs belong to in Trackio and Weights & Biases."""

ROLLOUTS = "rollouts"
_COLUMNS = ("step", "task", "rollout", "success", "reward", "text")


class TrackedRun(NamedTuple):
    """A run as trackers know it: an id that no other run has, a name, its settings, and a folder for their files."""

    id: str
    name: str
    folder: Path
    settings: Mapping[str, JsonValue]


class ShownRollout(NamedTuple):
    """One rollout for people to read: its ids, its result, and what was said, as messages."""

    id: str
    task_id: str
    step: int
    success: bool
    reward: float | None
    messages: Sequence[ChatMessage]

    def row(self) -> tuple[int, str, str, bool, float | None, str]:
        """Return the rollout as a row of a table, its messages as one text."""
        return (self.step, self.task_id, self.id, self.success, self.reward, transcript(self.messages))


class Tracker(Protocol):
    """One run in one tracker. Any method may raise whatever the tracker's package raises."""

    where: str
    """One sentence: where the run is to be seen."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Send numbers of a global training step, each at most once per step."""
        ...

    def rollouts(self, step: int, shown: Sequence[ShownRollout]) -> None:
        """Send rollouts to read."""
        ...

    def close(self) -> None:
        """Write what is not written yet."""
        ...


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
    return _OPEN[name](run)


def transcript(messages: Sequence[ChatMessage]) -> str:
    """Return messages as plain text, one paragraph each."""
    return "\n\n".join(f"{message['role']}: {_said(message)}" for message in messages)


def _said(message: ChatMessage) -> str:
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls", ())]
    return "\n".join([*filter(None, (str(message["content"]),)), *calls])


class TrackioTracker:
    """Trackio: a database in its own folder (TRACKIO_DIR, else the hub's cache), which ``trackio show`` reads."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._package: Any = trackio
        # It would log the machine's load every ten seconds, in steps of its own.
        self._run: Any = trackio.init(
            project=PROJECT,
            name=f"{run.name}-{run.id}",
            resume="allow",
            config=dict(run.settings),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.where = f"trackio show --project {PROJECT}, run {run.name}-{run.id}"

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Send numbers of a global training step."""
        self._run.log(dict(values), step=step)

    def rollouts(self, step: int, shown: Sequence[ShownRollout]) -> None:
        """Send each rollout as a trace."""
        for place, one in enumerate(shown):
            metadata = {
                "rollout": one.id,
                "task": one.task_id,
                "step": one.step,
                "success": one.success,
                "reward": one.reward,
            }
            trace = self._package.Trace(messages=list(one.messages), metadata=metadata)
            self._run.log({f"{ROLLOUTS}/{place}": trace}, step=step)

    def close(self) -> None:
        """Wait until the database has everything."""
        self._run.finish()


class TensorBoardTracker:
    """TensorBoard's event files, below the run; without torch's writer, whose import takes seconds."""

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = run.folder / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        self._event: Any = event_pb2.Event
        self._summary: Any = summary_pb2.Summary
        self._text: Any = text_pb
        self._writer: Any = EventFileWriter(str(folder))
        self.where = f"tensorboard --logdir {folder}"

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Send numbers of a global training step."""
        self._add(
            step, self._summary(value=[self._summary.Value(tag=tag, simple_value=n) for tag, n in values.items()])
        )

    def rollouts(self, step: int, shown: Sequence[ShownRollout]) -> None:
        """Send rollouts as one table of text."""
        rows = ["| " + " | ".join(map(_cell, one.row())) + " |" for one in shown]
        head = [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
        self._add(step, self._text(ROLLOUTS, "\n".join([*head, *rows])))

    def close(self) -> None:
        """Flush the file."""
        self._writer.close()

    def _add(self, step: int, summary: object) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()


class WandbTracker:
    """Weights & Biases: offline, files below the run, unless WANDB_MODE says online."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        run.folder.mkdir(parents=True, exist_ok=True)
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._package: Any = wandb
        self._run: Any = wandb.init(
            project=PROJECT,
            id=run.id,
            name=run.name,
            dir=str(run.folder),
            config=dict(run.settings),
            # A run that is offline cannot be asked for: its files carry the same id, and are joined when they are sent.
            resume=None if mode == "offline" else "allow",
            mode=mode,
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True
            ),
        )
        # Its own count of calls is not the training step, and starts afresh with each process.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        sent = f"wandb sync --append {run.folder / 'wandb' / f'offline-run-*-{run.id}'}"
        self.where = sent if mode == "offline" else f"project {PROJECT}, run {run.id}"

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Send numbers of a global training step."""
        self._run.log({"step": step, **values})

    def rollouts(self, step: int, shown: Sequence[ShownRollout]) -> None:
        """Send rollouts as one table."""
        table = self._package.Table(columns=list(_COLUMNS), data=[list(one.row()) for one in shown])
        self._run.log({"step": step, ROLLOUTS: table})

    def close(self) -> None:
        """End the run, which waits for its files."""
        self._run.finish()


_OPEN: Mapping[ExperimentTracker, Callable[[TrackedRun], Tracker]] = {
    "trackio": TrackioTracker,
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
}


def _cell(value: object) -> str:
    """Return a value as a cell of a Markdown table, which foreign text must not leave, nor format."""
    text = value if isinstance(value, str) else json.dumps(value)
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;").replace("`", "&#96;")
    return plain.replace("\r", "").replace("\n", "<br>")
