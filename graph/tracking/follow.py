"""Sends each iteration of a run to its experiment trackers when it ends, from the command that evolves."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from graph.settings import RunSettings, dotted
from graph.tracking.figures import by_iteration, by_step
from graph.tracking.trackers import TrackedRun, Tracker, open_tracker
from memory.run import RunDirectory
from training.settings import ExperimentTracker

__all__ = ["follow_run"]

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
