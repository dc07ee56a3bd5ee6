"""Stops work that fails alike again and again, before it has spent what it may spend."""

from __future__ import annotations

import threading

AFTER_SUCCESS = 5
"""How many times as many failures in a row stop work that succeeded before (ours): what never worked is set up wrongly,
what did may be unlucky. A model half of whose replies are unusable has 25 of them in a row once in 10 million."""


class RepeatedFailure(RuntimeError):
    """Work was stopped because it failed alike several times in a row. The message holds the last cause.

    What was done is kept: once the cause is gone, the run goes on.
    """


class Breaker:
    """Counts failures in a row of one kind of work; threads and coroutines may share one.

    Args:
        limit: failures in a row that stop work which never succeeded; ``AFTER_SUCCESS`` times as many stop other work.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._kind = ""
        self._row = 0
        self._succeeded = False
        self._stopped: Exception | None = None

    def stop(self, why: Exception) -> None:
        """Nothing more may begin: one failure said that all others would only fail."""
        self._stopped = why

    def check(self) -> None:
        """Raises what the work was stopped for, where it was."""
        if self._stopped is not None:
            raise type(self._stopped)(str(self._stopped))

    def succeeded(self) -> None:
        """One piece of work succeeded."""
        with self._lock:
            self._row, self._succeeded = 0, True

    def failed(self, kind: str = "") -> int | None:
        """One piece of work failed; how many in a row did when that is too many, else None.

        A failure of another ``kind`` begins a row of its own.
        """
        with self._lock:
            self._row = self._row + 1 if kind == self._kind else 1
            self._kind = kind
            limit = self._limit * (AFTER_SUCCESS if self._succeeded else 1)
            return self._row if self._row >= limit else None
