"""The records that only the graph writes: known tasks, failures, signals in numbers, an iteration's changes, forks."""

from __future__ import annotations

import operator
from typing import Any

from pydantic import BaseModel, Field

from environments.base import Record
from memory.records import SignalKind


class KnownTasks(Record):
    """Fingerprints of the tasks that existed when a stage began; an equal draft is a duplicate."""

    fingerprints: tuple[str, ...]


class Failure(Record):
    """One reflection or one branch that gave up.

    ``id`` is the signal's or the context's, ``node`` where it failed, ``cause`` the class of the error.
    """

    id: str
    node: str
    cause: str
    detail: str


class ExtractionRecord(Record):
    """The signals of a round in numbers, by kind, and the ids of the chosen ones.

    ``signal_tasks``: tasks with a signal of the kind. ``marked``: trajectories that carry a signal.
    ``repeated``: further signals of a task and kind that has one already. ``left_out``: beyond the
    limit of contexts. ``pattern_occurrences`` and ``different_patterns`` count the run's action patterns;
    trajectories with an ``infrastructure_error`` were not read. ``functions``: different functions that references of
    D_t call, of the ``functions_offered`` that its tasks offer.
    """

    signals: dict[SignalKind, int]
    signal_tasks: dict[SignalKind, int]
    marked: int
    chosen: tuple[str, ...]
    repeated: dict[SignalKind, int]
    left_out: dict[SignalKind, int]
    pattern_occurrences: int
    different_patterns: int
    infrastructure_errors: int
    functions: int
    functions_offered: int


class Evolution(Record):
    """The result of the graph for one round's trajectories, beside the ``ExtractionRecord`` of its signals.

    ``new`` and ``known``: contexts by what the failure memory says. ``refused``: drafts by reason. ``failures``:
    reflections and branches that gave up, by cause. ``stopped``: the key of the budget that was spent by then, None
    while there is some left. ``shortfall``: tasks that a quota (``tasks.admissions``) lacks; None, and not written,
    without a quota.
    """

    iteration: int
    new: int
    known: int
    drafts: int
    admitted: tuple[str, ...]
    refused: dict[str, int]
    failures: dict[str, int]
    stopped: str | None = None
    shortfall: int | None = Field(None, exclude_if=lambda lacks: lacks is None)


class PrintedProgress(BaseModel):
    """A line that ``evaluation.run --progress`` prints after each task: so many ``of`` all, and how many solved."""

    evaluated: int
    of: int
    successes: int


class StageSeconds(Record):
    """Wall seconds of each stage of an iteration; for a killed stage, those of its last attempt."""

    seconds: dict[str, float] = {}


class Fork(Record):
    """The run that a copy was made of, the thread that it is for, and the iteration whose graph works in it.

    ``edits`` are the fields of contexts and drafts that were changed in it, by id; not written without any.
    """

    of: str
    thread: str
    iteration: int
    edits: dict[str, dict[str, Any]] = Field({}, exclude_if=operator.not_)
