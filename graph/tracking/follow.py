"""Sends a run to experiment trackers while it goes on, from its records.

One process, the command that evolves, sends everything, in a thread beside the work: a round writes its numbers to the
run, and this reads them. So a tracker that is slow, fails or hangs does not touch training, several rounds are one run
of the tracker, and a resumed command goes on where the last one ended, whichever tracker it names.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import JsonValue

from environments.base import Record
from graph.settings import RunSettings, dotted
from graph.tracking.figures import by_iteration, by_step, shown_rollouts
from graph.tracking.trackers import TrackedRun, Tracker, open_tracker
from memory.run import RunDirectory, read_json, write_json
from training.settings import ExperimentTracker

__all__ = ["SentTo", "Tracking", "follow_run"]

CLOSING = 30.0
"""Seconds that a command which is done waits for its trackers (ours)."""

Opener = Callable[[ExperimentTracker, TrackedRun], Tracker]


class SentTo(Record):
    """The progress of one tracker: everything up to a global ``step``, and so many ``iterations``."""

    step: int = 0
    iterations: int = 0


class TrackingRecord(Record):
    """``tracking.json``: the id by which trackers know the run, and what each was sent."""

    id: str
    sent: dict[str, SentTo] = {}


class _Feed:
    """The updates of one tracker, each point at most once.

    The record is written before a point is sent: of a process that is killed in between, a point can be missing, and
    none is there twice. A step that a resumed round plays again has the same numbers, and is not sent again.
    """

    def __init__(
        self, name: ExperimentTracker, run: RunDirectory, tracker: Tracker, sent: Callable[[SentTo], None]
    ) -> None:
        self.name = name
        self.tracker = tracker
        self._run = run
        self._keep = sent

    def catch_up(self, sent: SentTo, shown: bool) -> SentTo:
        """Send what the records have beyond ``sent``, and return what was sent then."""
        for iteration in self._begun(sent.iterations):
            folder = self._run.iteration(iteration)
            for step, numbers in by_step(folder, sent.step):
                sent = self._note(sent.model_copy(update={"step": step}))
                self.tracker.numbers(step, numbers)
            if iteration == sent.iterations and folder.summary.exists():
                sent = self._note(sent.model_copy(update={"iterations": iteration + 1}))
                for step, numbers in by_iteration(self._run, iteration):
                    self.tracker.numbers(step, numbers)
                if shown and (rollouts := shown_rollouts(folder)):
                    self.tracker.rollouts(step, rollouts)
        return sent

    def _begun(self, iteration: int) -> Iterator[int]:
        """Yield ``iteration`` and those after it that have begun; with exploration beside training two are open."""
        while self._run.iteration(iteration).root.exists():
            yield iteration
            iteration += 1

    def _note(self, sent: SentTo) -> SentTo:
        self._keep(sent)
        return sent


class Tracking:
    """Sends a run to its trackers from a thread of its own, whenever ``wake`` is called.

    ``say`` gets one line for each tracker that opens, and one for each that fails; a tracker that failed gets nothing
    more in this process. ``shown``: rollouts are sent too. Raises InputError for a damaged record of what was sent.
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
        self._names = tuple(names)
        self._settings = dict(settings)
        self._say = say
        self._shown = shown
        self._opener = opener
        self._news = threading.Event()
        self._over = False
        self._busy = ""
        if self._names:
            record = self._record()  # not in the thread: the write would meet the removal of a run that is unmade
            self._thread = threading.Thread(target=self._follow, args=(record,), name="trackers", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Say that the records have more than before; returns at once."""
        self._news.set()

    def close(self, timeout: float = CLOSING) -> None:
        """Send what is left, and close the trackers. Waits ``timeout`` seconds, and reports what is not done then."""
        if not self._names:
            return
        self._over = True
        self._news.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._say(f"training.report_to: {self._busy or 'a tracker'} did not take everything within {timeout:g} s")
        if not self._run.settings_path.exists():
            self._forget()

    def _forget(self) -> None:
        """Remove what was written of a run that was unmade: the corrected command must find its folder empty."""
        shutil.rmtree(self._run.trackers_path, ignore_errors=True)
        self._run.tracking_path.unlink(missing_ok=True)
        with suppress(OSError):
            self._run.root.rmdir()

    def _follow(self, record: TrackingRecord) -> None:
        feeds: list[_Feed] = []
        for name in self._names:
            with self._reported(name):
                feeds.append(self._open(name, record))
        while True:
            self._news.wait()
            self._news.clear()
            over = self._over
            for feed in tuple(feeds) if self._run.settings_path.exists() else ():
                feeds.remove(feed)
                with self._reported(feed.name):
                    feed.catch_up(self._record().sent.get(feed.name, SentTo()), self._shown)
                    feeds.append(feed)
            if over:
                break
        for feed in feeds:
            with self._reported(feed.name):
                feed.tracker.close()

    def _open(self, name: ExperimentTracker, record: TrackingRecord) -> _Feed:
        tracked = TrackedRun(record.id, self._run.root.resolve().name, self._run.trackers_path, self._settings)
        tracker = self._opener(name, tracked)
        self._say(f"{name}: {tracker.where}")

        def keep(sent: SentTo) -> None:
            now = self._record()
            write_json(self._run.tracking_path, now.model_copy(update={"sent": now.sent | {name: sent}}))

        return _Feed(name, self._run, tracker, keep)

    def _record(self) -> TrackingRecord:
        path: Path = self._run.tracking_path
        if path.exists():
            return read_json(path, TrackingRecord)
        record = TrackingRecord(id=uuid.uuid4().hex[:8])
        write_json(path, record)
        return record

    @contextmanager
    def _reported(self, name: ExperimentTracker) -> Iterator[None]:
        """Report an error of a tracker, whatever it is: it must not end the run."""
        self._busy = name
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - packages of others exit, too
            cause = " ".join(str(error).split())[:300] or "without a word"
            self._say(
                f"training.report_to: {name} failed ({type(error).__name__}: {cause}): the run goes on without it, "
                "--resume tries again"
            )
        self._busy = ""


@contextmanager
def follow_run(run: RunDirectory, settings: RunSettings, say: Callable[[str], None]) -> Iterator[Tracking]:
    """Send the run to the trackers of ``training.report_to`` while the block runs, and what is left at its end.

    Rollouts of an environment whose content must not be published are not sent: a tracker may be shared later.
    """
    names = settings.training.report_to
    shown = not names or settings.environment.benchmark.unpublishable is None
    if not shown:
        say("training.report_to: numbers only, the environment's content must not be published")
    tracking = Tracking(run, names, dotted(settings) if names else {}, say, shown=shown)
    try:
        tracking.wake()
        yield tracking
    finally:
        tracking.close()
