"""The records that only the graph writes: what a stage knew, which branches failed, what an iteration changed."""

from __future__ import annotations

import operator
from typing import Any

from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, model_serializer

from environments.base import Record
from memory.records import SignalKind

FAILURE_FILE = "failure.json"
"""Stands in a branch's folder exactly when the branch failed."""


class KnownTasks(Record):
    """Fingerprints of the tasks that were there when a stage began; a draft among them is a duplicate."""

    fingerprints: tuple[str, ...]


class Failure(Record):
    """One reflection or one branch that gave up, its siblings untouched.

    ``id`` is the signal's or the context's, ``node`` where it failed, ``cause`` the class of the error.
    """

    id: str
    node: str
    cause: str
    detail: str


class ExtractionRecord(Record):
    """The signals of a round in numbers, by kind, and the ids of those that were chosen.

    ``repeated``: further signals of a task and kind that has one already. ``left_out``: beyond the budget of contexts.
    ``pattern_occurrences`` is N of the rare signal; trajectories with an ``infrastructure_error`` were not read.
    """

    signals: dict[SignalKind, int]
    chosen: tuple[str, ...]
    repeated: dict[SignalKind, int]
    left_out: dict[SignalKind, int]
    pattern_occurrences: int
    infrastructure_errors: int


class Evolution(Record):
    """What the graph made of one round's trajectories.

    ``signals``: found, by kind. ``left_out``: signals that the budget of contexts did not follow up. ``refused``:
    drafts by reason. ``failures``: reflections and branches that gave up, by cause. ``stopped``: the key of the
    budget that was spent by then, None while there is some left. ``shortfall``: tasks that a quota
    (``tasks.admissions``) asked for and that were not there; None, and not written, without a quota.
    """

    iteration: int
    signals: dict[SignalKind, int]
    new: int
    known: int
    left_out: int
    drafts: int
    admitted: tuple[str, ...]
    refused: dict[str, int]
    failures: dict[str, int]
    stopped: str | None = None
    shortfall: int | None = None

    @model_serializer(mode="wrap")
    def _plain(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = handler(self)
        if self.shortfall is None:
            plain.pop("shortfall", None)
        return plain


class PanelScore(Record):
    """Success of one policy on the fixed panel, in [0, 1], with its 95 % intervals.

    ``interval`` is Wilson's, ``shared_interval`` resamples start states and functions (``evaluation.outcomes.Score``);
    None, and not written, where the evaluation told none.
    """

    name: str
    n: int
    successes: int
    success: float
    interval: tuple[float, float]
    shared_interval: tuple[float, float] | None = Field(None, exclude_if=operator.not_)


class PrintedScore(BaseModel):
    """The part of a score in evaluation.run's JSON that the loop reads."""

    n: int
    successes: int
    success: float
    interval: tuple[float, float]
    shared_interval: tuple[float, float] | None = None


class PrintedReport(BaseModel):
    """The part of the line that ``evaluation.run --json`` prints that the loop reads; one score a panel."""

    scores: tuple[PrintedScore]


class PrintedProgress(BaseModel):
    """A line that ``evaluation.run --progress`` prints after each task: so many ``of`` all, and how many solved."""

    evaluated: int
    of: int
    successes: int


class StageSeconds(Record):
    """Wall seconds of each stage of an iteration; of a stage that was killed, only its last attempt counts."""

    seconds: dict[str, float] = {}
