"""The costs of the chat roles: the ledger RUN/spending.jsonl, hard budgets, and a breaker for repeated failures."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, ValidationError

from agents.settings import BudgetSettings
from environments.base import InputError, Record
from memory.files import mend, read_lines
from memory.jsonl import append_jsonl, complaint
from memory.records import Measured


def encodable(text: str) -> str:
    """Escape what UTF-8 cannot encode (lone surrogates)."""
    return text.encode(errors="backslashreplace").decode()


_Text = Annotated[str, BeforeValidator(encodable)]
"""A text in a ledger's line: always encodable, because the line of a paid request must never be lost."""


class Request(Record):
    """One ``ask`` of a role: all retries and the repair turn together.

    ``subject`` is the id of the signal, context or draft in question; ``iteration`` is None for D_0. ``outcome``:
    ``answered``; ``refused``, the model's reply is unusable, or a budget was spent; ``failed``, the endpoint gave no
    readable answer, or the ask was cancelled. ``faults`` has the cause of every failed request in order, also if a
    retry was answered. ``model`` is the name sent to the endpoint. ``measured.calls`` counts
    HTTP requests, ``measured.seconds`` covers them without the pauses between; a request that was given
    up counts no tokens, because their number is unknown.
    """

    role: str
    subject: _Text
    iteration: int | None
    outcome: Literal["answered", "refused", "failed"]
    faults: tuple[_Text, ...] = ()
    model: _Text = ""
    measured: Measured = Measured()


class RoleRefused(RuntimeError):
    """A role could not produce usable output (a malformed or refused reply after one repair); its branch ends."""


class BudgetReached(RoleRefused):
    """A hard budget of the run is spent. The message names its key."""


def added(one: Measured, other: Measured) -> Measured:
    """Add two costs."""
    return Measured(**{name: getattr(one, name) + getattr(other, name) for name in Measured.model_fields})


def read_requests(path: Path) -> list[Request]:
    """Read the complete lines of a ledger; none if there is no file.

    A killed process may have left half a line at the end, which is left out: no record depends on it. Raises InputError
    that names file, line and key for any other invalid line.
    """
    requests = []
    for number, line in read_lines(path, whole=True) if path.exists() else ():
        try:
            requests.append(Request.model_validate_json(line))
        except ValidationError as error:
            raise InputError(f"{path}, line {number}: {complaint(error)}") from None
    return requests


class Ledger:
    """Counts a run's spending against its budgets. Threads and coroutines may share one.

    Args:
        path: the run's file, which is read now, so that a resumed run continues the count; the first ``add`` creates
            it, and cuts off half a line that a killed process left. None: nothing is written.
        budget: the limits of the whole run.
        prefix: of a budget's name where the user sets it, for messages.

    Raises InputError for a file with an invalid line.
    """

    def __init__(self, path: Path | None, budget: BudgetSettings, prefix: str = "roles.budget.") -> None:
        self._prefix = prefix
        self._path = path
        self._budget = budget
        self._lock = threading.Lock()
        self._spent = Measured()
        self._mended = False
        for request in read_requests(path) if path is not None else ():
            self._spent = added(self._spent, request.measured)

    @property
    def counts_tokens(self) -> bool:
        """Return whether a budget depends on the tokens that an endpoint reports."""
        return self._budget.tokens is not None or self._budget.money is not None

    def budget_key(self, name: str) -> str:
        """Return where a user sets the budget ``name``."""
        return self._prefix + name

    def check(self) -> None:
        """Raise BudgetReached when a budget is spent: no further request may be sent."""
        key = self.reached()
        if key is not None:
            limit = getattr(self._budget, key.removeprefix(self._prefix))
            raise BudgetReached(f"{key} ({limit}) is spent: raise it and go on with --resume")

    def reached(self) -> str | None:
        """Return the dotted key of the first budget that is spent; None if there is none."""
        spent = self.spent()
        used = {
            "tokens": spent.prompt_tokens + spent.completion_tokens,
            "calls": spent.calls,
            "money": spent.money,
        }
        for name, amount in used.items():
            limit = getattr(self._budget, name)
            if limit is not None and amount >= limit:
                return self.budget_key(name)
        return None

    def pay(self, cost: Measured) -> None:
        """Count the cost of a request of an unfinished ask, so that the budgets see it before its ``add``."""
        with self._lock:
            self._spent = added(self._spent, cost)

    def add(self, request: Request) -> None:
        """Append the request, which ``pay`` has counted, to the file.

        Raises OSError, which names the file, when it cannot be written.
        """
        with self._lock:
            if self._path is None:
                return
            if not self._mended:
                mend(self._path)
                self._mended = True
            append_jsonl(self._path, [request])

    def spent(self) -> Measured:
        """Return the run's total, over this process and those before it."""
        with self._lock:
            return self._spent


FAILURES_IN_A_ROW = 5
"""Consecutive failures that stop work which never succeeded (ours)."""

AFTER_SUCCESS = 5
"""Factor on the consecutive failures that stop work which has succeeded before (ours): work that never succeeded is
probably set up wrongly. A model with every second reply unusable has 25 unusable ones in a row once in 10 million."""


class RepeatedFailure(RuntimeError):
    """Work was stopped because it failed alike several times in a row. The message has the last cause.

    Results so far are kept: once the cause is gone, the run can be resumed.
    """


class Breaker:
    """Stops work that fails repeatedly, before it spends its budget; threads and coroutines may share one.

    ``FAILURES_IN_A_ROW`` consecutive failures stop work which never succeeded, ``AFTER_SUCCESS`` times as many other
    work.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kind = ""
        self._row = 0
        self._succeeded = False
        self._stopped: Exception | None = None

    def stop(self, why: Exception) -> None:
        """Let nothing more begin: ``why`` would make all other work fail too."""
        self._stopped = why

    def check(self) -> None:
        """Raise the exception for which the work was stopped, if it was."""
        if self._stopped is not None:
            raise type(self._stopped)(str(self._stopped))

    def succeeded(self) -> None:
        """Count a success."""
        with self._lock:
            self._row, self._succeeded = 0, True

    def failed(self, kind: str = "") -> int | None:
        """Count a failure; return the number of consecutive ones if it is too many, else None.

        A failure of another ``kind`` starts the count anew.
        """
        with self._lock:
            self._row = self._row + 1 if kind == self._kind else 1
            self._kind = kind
            limit = FAILURES_IN_A_ROW * (AFTER_SUCCESS if self._succeeded else 1)
            return self._row if self._row >= limit else None
