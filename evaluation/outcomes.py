"""What an evaluation writes: one outcome a task, and the score of each group of tasks."""

from __future__ import annotations

from collections.abc import Sequence

from environments.base import Record
from evaluation.statistics import wilson_interval


class TaskOutcome(Record):
    """One greedy attempt at one task.

    ``group`` is the panel or category, ``cluster`` the group of tasks that share a source path, ``strata`` the
    panel's labels. ``extra_calls`` counts calls beyond the reference's number on a success. ``failure`` is the
    official error type. An attempt with ``infrastructure_error`` counts in no rate.
    """

    task_id: str
    group: str
    cluster: str
    split: str
    strata: dict[str, str] = {}
    success: bool
    failure: str | None = None
    failed_turn: int | None = None
    calls: int = 0
    reference_calls: int = 0
    malformed: int = 0
    extra_calls: int = 0
    sampled_tokens: int = 0
    infrastructure_error: str | None = None


class Score(Record):
    """Success of a group of tasks: the rate and its 95 % Wilson interval, in [0, 1]."""

    group: str
    n: int
    successes: int
    success: float
    interval: tuple[float, float]
    clusters: int
    infrastructure_errors: int


class Report(Record):
    """The scores of one evaluation; ``mean`` is the unweighted mean of the groups' rates (the leaderboard's rule)."""

    environment: str
    model: str
    rendering: str
    decoding: str = "greedy, one attempt a task"
    notes: tuple[str, ...] = ()
    scores: tuple[Score, ...]
    mean: float
    seconds: float


def score(group: str, outcomes: Sequence[TaskOutcome]) -> Score:
    """The score of the outcomes that belong to ``group``."""
    members = [o for o in outcomes if o.group == group]
    judged = [o for o in members if o.infrastructure_error is None]
    successes = sum(o.success for o in judged)
    return Score(
        group=group,
        n=len(judged),
        successes=successes,
        success=successes / len(judged) if judged else 0.0,
        interval=wilson_interval(successes, len(judged)),
        clusters=len({o.cluster for o in judged}),
        infrastructure_errors=len(members) - len(judged),
    )


def score_strata(outcomes: Sequence[TaskOutcome]) -> tuple[Score, ...]:
    """A score for each value of each stratum, named ``stratum=value``, in order of name."""
    labels = sorted({(key, value) for o in outcomes for key, value in o.strata.items()})
    return tuple(
        score(
            f"{key}={value}",
            [o.model_copy(update={"group": f"{key}={value}"}) for o in outcomes if o.strata.get(key) == value],
        )
        for key, value in labels
    )
