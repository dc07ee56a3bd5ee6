"""What the chat roles spend: a line a request in RUN/spending.jsonl, and the hard budgets."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, ValidationError

from agents.roles import RoleRefused
from agents.settings import BudgetSettings
from environments.base import InputError, Record
from memory.jsonl import append_jsonl, complaint
from memory.records import Measured

__all__ = ["BudgetReached", "Ledger", "Request", "added", "encodable", "read_requests"]


def encodable(text: str) -> str:
    """The text with what UTF-8 cannot hold (half of a surrogate pair) written out as an escape."""
    return text.encode(errors="backslashreplace").decode()


_Text = Annotated[str, BeforeValidator(encodable)]
"""A text of a ledger's line, which is written whatever a fault says: what was paid is never lost."""


class Request(Record):
    """One ``ask`` of a role: all attempts and the repair turn together.

    ``subject`` is the id of the signal, context or draft that it was for; ``iteration`` is None for D_0. ``outcome``:
    ``answered``; ``refused``, the model answered and its reply cannot be used, or a budget was spent; ``failed``, the
    endpoint gave no usable answer, or the asking side was cancelled. ``faults`` holds the cause of every attempt that
    failed, in order, also of an ask that was answered in the end. ``cached``: every reply came from the cache.
    ``model`` is the name that was sent to the endpoint. ``measured.calls`` counts HTTP requests, and
    ``measured.seconds`` is the time of requests and pauses; a request that was given up counts no tokens, because what
    it took is unknown.
    """

    role: str
    subject: _Text
    iteration: int | None
    outcome: Literal["answered", "refused", "failed"]
    faults: tuple[_Text, ...] = ()
    cached: bool = False
    model: _Text = ""
    measured: Measured = Measured()


class BudgetReached(RoleRefused):
    """A hard budget of the run is spent. The message names its key."""


def added(one: Measured, other: Measured) -> Measured:
    """The sum of two costs."""
    return Measured(
        seconds=one.seconds + other.seconds,
        calls=one.calls + other.calls,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
        money=one.money + other.money,
    )


def read_requests(path: Path) -> list[Request]:
    """The whole lines of a ledger; none where there is no file.

    A process that was killed may have left half a line at the end, which is left out: it says what was paid, and no
    record depends on it. Raises InputError that names the file, the line and the key for any other line.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    requests = []
    for number, line in enumerate(content[: _whole(content)].splitlines(), start=1):
        try:
            requests.append(Request.model_validate_json(line))
        except ValidationError as error:
            raise InputError(f"{path}, line {number}: {complaint(error)}") from None
    return requests


def _whole(content: bytes) -> int:
    """Length in bytes of the whole lines."""
    return content.rfind(b"\n") + 1


def _mend(path: Path) -> None:
    """Cut off half a line at the end, which a killed process left."""
    if path.exists():
        with path.open("rb+") as file:
            file.truncate(_whole(file.read()))


class Ledger:
    """Counts what a run has spent, against its budgets. Threads and coroutines may share one.

    Args:
        path: the run's file, which is read now, so that a resumed run goes on counting; the first ``add`` makes it,
            and cuts off half a line that a killed process left. None: nothing is written.
        budget: what may be spent in the whole run.

    Raises InputError for a file with a line that is no request.
    """

    def __init__(self, path: Path | None, budget: BudgetSettings) -> None:
        self._path = path
        self._budget = budget
        self._lock = threading.Lock()
        self._spent = Measured()
        self._mended = False
        for request in read_requests(path) if path is not None else ():
            self._spent = added(self._spent, request.measured)

    @property
    def counts_tokens(self) -> bool:
        """Whether a budget depends on the tokens that an endpoint reports."""
        return self._budget.tokens is not None or self._budget.money is not None

    def check(self) -> None:
        """Raises BudgetReached when a budget is spent: nothing more may be sent."""
        key = self.reached()
        if key is not None:
            limit = getattr(self._budget, key.rpartition(".")[2])
            raise BudgetReached(f"{key} ({limit}) is spent: raise it and go on with --resume")

    def reached(self) -> str | None:
        """The dotted key of the first budget that is spent; None while there is something left of each."""
        spent = self.spent()
        used = {
            "tokens": spent.prompt_tokens + spent.completion_tokens,
            "calls": spent.calls,
            "money": spent.money,
        }
        for name, amount in used.items():
            limit = getattr(self._budget, name)
            if limit is not None and amount >= limit:
                return f"roles.budget.{name}"
        return None

    def pay(self, cost: Measured) -> None:
        """Count at once what a request of an unfinished ask costs, so that the budgets see it before its ``add``."""
        with self._lock:
            self._spent = added(self._spent, cost)

    def add(self, request: Request, paid: bool = False) -> None:
        """Append the request to the file. ``paid``: its calls, tokens and money were counted by ``pay``.

        Raises OSError, which names the file, when it cannot be written.
        """
        with self._lock:
            self._spent = added(self._spent, Measured(seconds=request.measured.seconds) if paid else request.measured)
            if self._path is None:
                return
            if not self._mended:
                _mend(self._path)
                self._mended = True
            append_jsonl(self._path, [request], durable=False)  # waiting for the disk would stop the event loop

    def spent(self) -> Measured:
        """Everything that was spent in the run, by this process and those before it."""
        with self._lock:
            return self._spent


# Stops work that fails alike again and again, before it has spent what it may spend.

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
