"""Shows a run's progress on stderr: bars with an ETA on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from environments.terminal import printable, say

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

PLAIN_INTERVAL = 5.0  # seconds between two plain lines of one stage


class Stage:
    """One piece of work in ``total`` parts (None: unknown)."""

    def __init__(
        self, label: str, total: int | None, bars: Bars | None, out: Callable[[str], None] | None = None
    ) -> None:
        self._label = label
        self._total = total
        self._done = 0
        self._first: tuple[int, float] | None = None
        self._bars = bars
        self._out = out
        self._task = bars.add_task(label, total=total, note="") if bars else None
        self._started = self._shown_at = time.monotonic()
        if bars is None:
            _say(f"{label} ...", out=out)

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Show that ``done`` parts of ``total`` are done; ``note`` is a few words more, such as a mean so far."""
        if self._first is None and done:
            self._first = (done, time.monotonic())
        self._done = done
        self._total = total if total is not None else self._total
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=done, total=self._total, note=note)
        elif time.monotonic() - self._shown_at >= PLAIN_INTERVAL:
            self._shown_at = time.monotonic()
            parts = [f"{self._label}: {done}{f' of {self._total}' if self._total else ''}", self._eta(), note]
            _say(", ".join(part for part in parts if part), out=self._out)

    def finish(self) -> None:
        """End the stage."""
        if self._bars is not None and self._task is not None:
            self._bars.remove_task(self._task)
        _say(f"{self._label}: done in {time.monotonic() - self._started:.1f} s", self._bars, self._out)

    def _eta(self) -> str:
        """Return the time left, from the pace since the first part: loading a process or model happens only once."""
        if not self._total or self._first is None or self._done <= self._first[0]:
            return ""
        begun, since = self._first
        left = (time.monotonic() - since) / (self._done - begun) * (self._total - self._done)
        return f"{left:.0f} s left"


class Progress:
    """The progress display of one command, a context manager; lines go to ``out`` where it is given."""

    def __init__(self, out: Callable[[str], None] | None = None) -> None:
        self._bars: Bars | None = None
        self._out = out

    def __enter__(self) -> Self:
        if self._out is None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self._bars = Bars(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    @contextmanager
    def stage(self, label: str, total: int | None = None) -> Iterator[Stage]:
        """Show one stage while the block runs."""
        stage = Stage(label, total, self._bars, self._out)
        yield stage
        stage.finish()

    def say(self, text: str) -> None:
        """Print one line above the bars."""
        _say(text, self._bars, self._out)


def _say(text: str, bars: Bars | None = None, out: Callable[[str], None] | None = None) -> None:
    if out is not None:
        out(text)
    elif bars is not None:
        bars.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)
    else:
        say(text)
