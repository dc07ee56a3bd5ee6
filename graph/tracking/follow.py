"""Sends each iteration of a run to its experiment trackers when it ends, from the command that evolves."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pydantic import JsonValue

from graph.settings import RunSettings, dotted
from graph.tracking.figures import by_iteration, by_step, shown_rollouts
from graph.tracking.trackers import TrackedRun, Tracker, open_tracker
from memory.run import RunDirectory
from training.settings import ExperimentTracker

__all__ = ["Tracking", "follow_run"]

_ID = "id"
"""The file of a run's trackers with the id by which they know the run, however many commands work on it."""

Opener = Callable[[ExperimentTracker, TrackedRun], Tracker]


class Tracking:
    """The trackers of a run, opened when its first iteration is sent.

    ``say`` gets one line for each tracker that opens, and one for each that fails; a tracker that failed gets nothing
    more in this process. ``shown``: rollouts are sent too.
    """

    def __init__(
        self,
        run: RunDirectory,
        names: Sequence[ExperimentTracker],
        settings: Mapping[str, JsonValue],
        say: Callable[[str], None],
        *,
        shown: bool = True,
        opener: Opener = open_tracker,
    ) -> None:
        self._run = run
        self._settings = dict(settings)
        self._say = say
        self._shown = shown
        self._opener = opener
        self._open: dict[ExperimentTracker, Tracker | None] = dict.fromkeys(names)

    def send(self, iteration: int) -> None:
        """Send a finished iteration: the numbers of its steps, its own, and some rollouts."""
        for name in tuple(self._open):
            with self._reported(name):
                self._send(self._opened(name), iteration)

    def close(self) -> None:
        """Close the trackers, which write what they have not written yet."""
        for name, tracker in tuple(self._open.items()):
            with self._reported(name):
                if tracker is not None:
                    tracker.close()

    def _send(self, tracker: Tracker, iteration: int) -> None:
        folder = self._run.iteration(iteration)
        for step, numbers in (*by_step(folder), *by_iteration(self._run, iteration)):
            tracker.numbers(step, numbers)
        if self._shown and (rollouts := shown_rollouts(folder)):
            tracker.rollouts(rollouts[0].step, rollouts)

    def _opened(self, name: ExperimentTracker) -> Tracker:
        if (tracker := self._open[name]) is None:
            path = self._run.trackers_path / _ID
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                path.write_text(uuid.uuid4().hex[:8])
            run = TrackedRun(path.read_text(), self._run.root.resolve().name, self._run.trackers_path, self._settings)
            tracker = self._open[name] = self._opener(name, run)
            self._say(f"{name}: {tracker.where}")
        return tracker

    @contextmanager
    def _reported(self, name: ExperimentTracker) -> Iterator[None]:
        """Report an error of a tracker, whatever it is: it must not end the run."""
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001 - packages of others exit, too
            self._open.pop(name)
            cause = " ".join(str(error).split())[:300] or "without a word"
            self._say(
                f"training.report_to: {name} failed ({type(error).__name__}: {cause}): the run goes on without it, "
                "--resume sends later iterations"
            )


@contextmanager
def follow_run(run: RunDirectory, settings: RunSettings, say: Callable[[str], None]) -> Iterator[Tracking]:
    """Give the trackers of ``training.report_to`` for the block, and close them at its end.

    Rollouts of an environment whose content must not be published are not sent: a tracker may be shared later.
    """
    names = settings.training.report_to
    shown = not names or settings.environment.benchmark.unpublishable is None
    if not shown:
        say("training.report_to: numbers only, the environment's content must not be published")
    tracking = Tracking(run, names, dotted(settings), say, shown=shown)
    try:
        yield tracking
    finally:
        tracking.close()
