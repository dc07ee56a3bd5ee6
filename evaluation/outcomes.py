"""What an evaluation writes: one outcome a task, and the score of each group of tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import Field

from environments.base import Record
from evaluation.statistics import wilson_interval


class TaskOutcome(Record):
    """One greedy attempt at one task.

    ``group`` is the panel or category, ``cluster`` the group of tasks that share a source path, ``strata`` the
    panel's labels. ``extra_calls`` counts calls beyond the reference's number on a success; both numbers are None where
    the reference's is unknown. ``failure`` is the official error type. An attempt with ``infrastructure_error`` counts
    in no rate.
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
    reference_calls: int | None = 0
    malformed: int = 0
    extra_calls: int | None = 0
    sampled_tokens: int = 0
    infrastructure_error: str | None = None


def _is_none(value: object) -> bool:
    return value is None


class Score(Record):
    """Success of a group of tasks: the rate and its 95 % Wilson interval, in [0, 1].

    ``tgc`` and ``sgc`` are AppWorld's figures, percentages; None, and not written, for other benchmarks.
    """

    group: str
    n: int
    successes: int
    success: float
    interval: tuple[float, float]
    clusters: int
    infrastructure_errors: int
    tgc: float | None = Field(None, exclude_if=_is_none)
    sgc: float | None = Field(None, exclude_if=_is_none)


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


Scoring = Callable[[str, Sequence[TaskOutcome]], Score]
"""How the outcomes of a group are scored: ``score``, or ``appworld_panels.score_goals``."""


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


def score_strata(outcomes: Sequence[TaskOutcome], scored: Scoring = score) -> tuple[Score, ...]:
    """A score for each value of each stratum, named ``stratum=value``, in order of name."""
    labels = sorted({(key, value) for o in outcomes for key, value in o.strata.items()})
    return tuple(
        scored(
            f"{key}={value}",
            [o.model_copy(update={"group": f"{key}={value}"}) for o in outcomes if o.strata.get(key) == value],
        )
        for key, value in labels
    )
