"""What an evaluation writes: one outcome a task, and the score of each group of tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from environments.base import Record
from environments.metrics import Attempted, Metric
from evaluation.call_shapes import FunctionScore, Shape, by_function, macro_mean, numbered, rarest_functions
from evaluation.statistics import shared_interval, wilson_interval

GREEDY = "greedy, one attempt a task"
_REPLICATES = 2_000  # of a score's intervals: their ends move by less than a point


class TaskOutcome(Record):
    """One greedy attempt at one task.

    ``group`` is the panel or category, ``cluster`` the group of tasks that share a start state or source path,
    ``strata`` the panel's labels, ``shape`` the functions that the reference calls, in order (empty where unknown).
    ``extra_calls`` counts calls beyond the reference's number on a success; both numbers are None where the
    reference's is unknown. ``failure`` is the official error type. An attempt with ``infrastructure_error`` counts in
    no rate.
    """

    task_id: str
    group: str
    cluster: str
    split: str
    strata: dict[str, str] = {}
    shape: Shape = ()
    success: bool
    failure: str | None = None
    failed_turn: int | None = None
    calls: int = 0
    reference_calls: int | None = 0
    malformed: int = 0
    extra_calls: int | None = 0
    sampled_tokens: int = 0
    infrastructure_error: str | None = None


class Score(Record):
    """Success of a group of tasks: the rate and its 95 % intervals, in [0, 1].

    ``interval`` is Wilson's, as if tasks were independent; ``shared_interval`` resamples start states and functions,
    and is at least as wide at each end (None for a single task). ``macro`` is the mean over the ``shapes`` call shapes,
    with an interval that resamples the same; ``functions`` has the score of each function that references call.
    ``metrics`` are the benchmark's own, in its units; those that are not defined for the attempts are left out.
    """

    group: str
    n: int
    successes: int
    success: float
    interval: tuple[float, float]
    clusters: int
    infrastructure_errors: int
    shared_interval: tuple[float, float] | None = None
    macro: float | None = None
    macro_interval: tuple[float, float] | None = None
    shapes: int = 0
    functions: dict[str, FunctionScore] = {}
    metrics: dict[str, float] = {}


class Report(Record):
    """The scores of one evaluation; ``mean`` is the unweighted mean of the groups' rates (the leaderboard's rule)."""

    environment: str
    model: str
    rendering: str
    decoding: str = GREEDY
    notes: tuple[str, ...] = ()
    scores: tuple[Score, ...]
    mean: float
    seconds: float


def score(group: str, outcomes: Sequence[TaskOutcome], metrics: Mapping[str, Metric] | None = None) -> Score:
    """Return the score of the outcomes that belong to ``group``, with the benchmark's ``metrics`` by name.

    Attempts with an infrastructure error count in no metric; a metric that is not defined (nan) is left out.
    """
    members = [o for o in outcomes if o.group == group]
    judged = [o for o in members if o.infrastructure_error is None]
    successes = sum(o.success for o in judged)
    attempts = [(o.shape, o.success) for o in judged]
    wilson = wilson_interval(successes, len(judged))
    shared, macro = _intervals(judged)
    return Score(
        group=group,
        n=len(judged),
        successes=successes,
        success=successes / len(judged) if judged else 0.0,
        interval=wilson,
        clusters=len({o.cluster for o in judged}),
        infrastructure_errors=len(members) - len(judged),
        shared_interval=None if shared is None else (min(shared[0], wilson[0]), max(shared[1], wilson[1])),
        macro=macro_mean(attempts),
        macro_interval=macro,
        shapes=len({o.shape for o in judged if o.shape}),
        functions=by_function(attempts),
        metrics=_metrics(members, metrics or {}),
    )


def _metrics(members: Sequence[TaskOutcome], metrics: Mapping[str, Metric]) -> dict[str, float]:
    broken = {o.cluster for o in members if o.infrastructure_error is not None}
    attempts = [
        Attempted(id=o.task_id, group=o.cluster, success=o.success, group_judged=o.cluster not in broken)
        for o in members
        if o.infrastructure_error is None
    ]
    found = {name: metric(attempts) for name, metric in metrics.items()} if attempts else {}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def _intervals(judged: Sequence[TaskOutcome]) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
    """Of the mean over tasks and of the mean over call shapes, both with start states and functions resampled."""
    if len(judged) < 2:
        return None, None
    successes = np.array([[int(o.success) for o in judged]])
    clusters = numbered([o.cluster for o in judged])
    functions = numbered(rarest_functions([o.shape for o in judged]))
    shapes = numbered([o.shape for o in judged])
    counts = successes, np.ones_like(successes), clusters, functions
    known = any(o.shape for o in judged)
    told = known and 0 < successes.sum() < successes.size  # else every replicate is equal
    macro = shared_interval(*counts, shapes=shapes, replicates=_REPLICATES) if told else None
    return shared_interval(*counts, replicates=_REPLICATES), macro


def score_strata(outcomes: Sequence[TaskOutcome], metrics: Mapping[str, Metric] | None = None) -> tuple[Score, ...]:
    """Return a score for each value of each stratum, named ``stratum=value``, in order of name."""
    labels = sorted({(key, value) for o in outcomes for key, value in o.strata.items()})
    return tuple(
        score(
            f"{key}={value}",
            [o.model_copy(update={"group": f"{key}={value}"}) for o in outcomes if o.strata.get(key) == value],
            metrics,
        )
        for key, value in labels
    )


# Prints a report as a table.

CAPTION = (
    "by shape: mean over call shapes, the references' calls in order without values; 95 %: start states and functions "
    "resampled, success no narrower than Wilson's"
)
FUNCTIONS = 40  # printed of a group at most; --json has all


def print_report(report: Report, strata: Sequence[Score]) -> None:
    """The report as a table on stdout, with the benchmark's metrics, and success by function below it."""
    from rich.console import Console
    from rich.table import Table

    rows = (*report.scores, *strata)
    names = tuple(dict.fromkeys(name for row in rows for name in row.metrics))
    table = Table(title=f"{report.model} on {report.environment} ({report.decoding})", caption=CAPTION)
    columns = ("group", "n", "success", "95 %", "by shape", "95 %")
    for column in (*columns, *names):
        table.add_column(column, justify="left" if column == "group" else "right", no_wrap=True)
    for row in rows:
        metrics = [_number(row.metrics.get(name)) for name in names]
        success = (f"{row.success:.1%}", _interval(row.shared_interval or row.interval))
        macro = ("" if row.macro is None else f"{row.macro:.1%}", _interval(row.macro_interval))
        table.add_row(row.group, str(row.n), *success, *macro, *metrics)
    if len(report.scores) > 1:
        table.add_row("mean of groups", "", f"{report.mean:.1%}", *([""] * (3 + len(names))))
    console = Console()
    console.print(table)
    for score in report.scores:
        shown = ", ".join(f"{name} {one.successes}/{one.n}" for name, one in list(score.functions.items())[:FUNCTIONS])
        more = ", ..." if len(score.functions) > FUNCTIONS else ""
        shared = f"{score.clusters} start states, {score.shapes} call shapes"
        if shown:
            console.print(f"{score.group} ({shared}), solved by function: {shown}{more}", highlight=False)
    for note in report.notes:
        console.print(f"note: {note}", highlight=False)


def _number(value: float | None) -> str:
    """Return a metric in its own unit, with three decimals at most."""
    return "" if value is None else str(round(value, 3))


def _interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{100 * interval[0]:.1f}-{100 * interval[1]:.1f}"
