"""The records that an evaluation writes, one outcome per task and one score per group of tasks, and the printed table.

``Score`` is the one record of a score: the command prints it, a run keeps it, summaries and studies read it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from pydantic import Field, model_validator

from environments.base import Record
from environments.command import print_table, printable
from environments.metrics import SUCCESS, Attempted, Made, Metric, Ratio, success
from evaluation.statistics import (
    Counts,
    Shape,
    macro_mean,
    numbered,
    rarest_functions,
    shared_interval,
    wilson_interval,
)
from memory.records import Measured, StopReason

Interval = tuple[float, float]
GREEDY = "greedy, one attempt a task"


def _is_none(value: object) -> bool:
    return value is None


class TaskOutcome(Record):
    """One attempt at one task.

    ``group`` is the evaluation set or file, ``cluster`` the group of tasks that share a start state or source path,
    ``strata`` the set's labels of the task, ``shape`` the functions that the reference calls, in order (empty where
    unknown). All that is said of calls, and of the reference's, is of the agent's own turns (``TaskSpec.played``).
    ``calls_made`` and ``calls_wanted`` are the agent's calls, refused ones included, and the reference's, their
    arguments hashed: no value of a held-out task can be read there. None, and not written, where they are unknown.
    ``partial`` is ``Outcome.partial``. ``sample`` is the attempt's number where a task is attempted several times.
    ``extra_calls`` counts calls beyond the reference's number on a success; both numbers are None where the
    reference's is unknown. ``failure`` is the official error type. ``stop_reasons`` counts the attempt's user turns by
    why they stopped; empty, and not written, for a baseline without a model, whose name is ``baseline`` (empty, and not
    written, for a model). An attempt with ``infrastructure_error`` counts in no rate.
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
    stop_reasons: dict[StopReason, int] = Field({}, exclude_if=operator.not_)
    infrastructure_error: str | None = None
    calls_made: tuple[Made, ...] | None = Field(None, exclude_if=_is_none)
    calls_wanted: tuple[Made, ...] | None = Field(None, exclude_if=_is_none)
    partial: float | None = Field(None, ge=0.0, le=1.0, exclude_if=_is_none)
    sample: int = Field(0, ge=0, exclude_if=operator.not_)
    baseline: str = Field("", exclude_if=operator.not_)


class Score(Record):
    """The metrics of a group of tasks, and 95 % intervals of its success rate, in [0, 1].

    ``metrics`` always holds ``success``, the share of the ``n`` evaluated attempts that succeeded; and the benchmark's
    own metrics in its units, where they are defined for the attempts. ``intervals`` are those of the latter, by the
    method of ``shared_interval`` (``metric_interval``); it has none for a metric that is a plain function.
    ``interval`` is Wilson's, as if tasks were independent; ``shared_interval`` covers other start states and functions,
    and is at least as wide at each end (None for a single task). ``macro`` is the mean over the ``shapes`` call shapes,
    with an interval that covers the same.
    """

    group: str
    n: int
    successes: int
    metrics: dict[str, float]
    intervals: dict[str, Interval] = Field({}, exclude_if=operator.not_)
    interval: Interval
    clusters: int
    infrastructure_errors: int
    shared_interval: Interval | None = None
    macro: float | None = None
    macro_interval: Interval | None = None
    shapes: int = 0

    @model_validator(mode="after")
    def _success_is_there(self) -> Score:
        if SUCCESS not in self.metrics:
            raise ValueError(f"a score has the metric {SUCCESS}, these are {', '.join(self.metrics) or 'none'}")
        return self

    @property
    def success(self) -> float:
        """The success rate."""
        return self.metrics[SUCCESS]

    @property
    def widest(self) -> Interval:
        """The interval to quote: the one that covers other start states and functions, where there is one."""
        return self.shared_interval or self.interval


class ScoreChange(Record):
    """The scores of the same tasks by the policy that a round began with and by the one that it made."""

    before: Score
    after: Score

    def words(self, separator: str = ", ") -> str:
        """Return one line for a table: each metric before and after, the interval of the last success, the tasks."""
        before, after = self.before, self.after
        others = [
            f"{name} {_number(before.metrics.get(name)) or '-'} -> {_number(value)}"
            for name, value in after.metrics.items()
            if name != SUCCESS
        ]
        rates = (f"{before.success:.3f} -> {after.success:.3f}", f"95 %: {after.widest[0]:.2f}-{after.widest[1]:.2f}")
        return separator.join((*rates, *others, f"{after.group}, n={after.n}"))


class PairedChange(NamedTuple):
    """A metric of two evaluations over the tasks that both evaluated, and the 95 % interval of the difference."""

    tasks: int
    before: float
    after: float
    interval: Interval | None

    def words(self) -> str:
        """Return the difference in points of a hundred, with its interval."""
        points = f"{100 * (self.after - self.before):+.1f} points"
        if self.interval is None:
            return points
        return f"{points} (95 %: {100 * self.interval[0]:+.1f} to {100 * self.interval[1]:+.1f})"


def paired_change(
    before: Sequence[TaskOutcome], after: Sequence[TaskOutcome], metric: Ratio = success
) -> PairedChange | None:
    """Return how a metric changed from one evaluation to another, over the tasks that both evaluated.

    None without such a task, and where the metric is not defined for one of the two. The interval is
    ``metric_interval``'s.
    """
    both = {one.task_id for one in evaluated(before)} & {one.task_id for one in evaluated(after)}
    sides = [[one for one in side if one.task_id in both] for side in (before, after)]
    values = [metric(attempted(side)) for side in sides]
    if any(math.isnan(value) for value in values):
        return None
    return PairedChange(len(both), values[0], values[1], metric_interval(metric, sides[1:], sides[:1]))


def metric_interval(
    metric: Ratio,
    attempts: Sequence[Sequence[TaskOutcome]],
    minus: Sequence[Sequence[TaskOutcome]] | None = None,
    *,
    by_shape: bool = False,
) -> Interval | None:
    """Return the 95 % interval of a metric, in its unit, for other start states and functions, and for other seeds.

    ``attempts`` are by seed. With ``minus``, an arm's attempts at the same tasks for the same seeds, it is that of the
    paired difference; ``by_shape``, that of the mean over call shapes. Samples of a task are summed first: they are one
    task, not several. ``statistics.shared_interval`` is the method, each task with what it adds to the metric's two
    sums. None for a single task, and where the metric is not defined for a seed.
    """
    tasks = {one.task_id: one for outcomes in attempts for one in evaluated(outcomes)}
    sides = [_sums(metric, side, list(tasks)) for side in (attempts, minus) if side is not None]
    counting = np.stack([whole for _, whole in sides]).sum(axis=(0, 1)) > 0
    sides = [(parts[:, counting], whole[:, counting]) for parts, whole in sides]
    if counting.sum() < 2 or any((whole.sum(axis=1) == 0).any() for _, whole in sides):
        return None
    members = [one for one, counts in zip(tasks.values(), counting, strict=True) if counts]
    shapes = [one.shape for one in members]
    interval = shared_interval(
        *sides[0],
        numbered([one.cluster for one in members]),
        numbered(rarest_functions(shapes)),
        sides[1] if minus is not None else None,
        shapes=numbered(shapes) if by_shape else None,
    )
    return interval and (metric.unit(interval[0]), metric.unit(interval[1]))


def _sums(metric: Ratio, attempts: Sequence[Sequence[TaskOutcome]], names: Sequence[str]) -> tuple[Counts, Counts]:
    """Sum what the attempts add to the metric's quotient, by seed and task."""
    columns = {name: column for column, name in enumerate(names)}
    parts, whole = np.zeros((2, len(attempts), len(names)))
    for row, outcomes in enumerate(attempts):
        tried = attempted(outcomes)
        for one, (part, counted) in zip(tried, metric.shares(tried), strict=True):
            parts[row, columns[one.id]] += part
            whole[row, columns[one.id]] += counted
    return parts, whole


class Report(Record):
    """The scores of one evaluation; ``mean`` is the unweighted mean of the groups' rates (the leaderboard's rule).

    ``stop_reasons`` counts the user turns of all attempts by why they stopped; empty, and not written, without a model.
    ``spent`` is what an endpoint's model cost, earlier commands with the same outcomes included; None, and not written,
    for any other.
    """

    environment: str
    model: str
    rendering: str
    decoding: str = GREEDY
    notes: tuple[str, ...] = ()
    scores: tuple[Score, ...]
    mean: float
    seconds: float
    stop_reasons: dict[StopReason, int] = Field({}, exclude_if=operator.not_)
    spent: Measured | None = Field(None, exclude_if=operator.not_)


def score(group: str, outcomes: Sequence[TaskOutcome], metrics: Mapping[str, Metric] | None = None) -> Score:
    """Return the score of the outcomes that belong to ``group``: ``success``, and ``metrics`` by their names.

    Attempts with an infrastructure error count in no metric; a metric that is not defined (nan) is left out.
    """
    members = [o for o in outcomes if o.group == group]
    tried, attempts = evaluated(members), attempted(members)
    tasks, successes = len({o.task_id for o in tried}), sum(o.success for o in tried)
    known = any(o.shape for o in tried)
    values = {name: metric(attempts) if attempts else math.nan for name, metric in (metrics or {}).items()}
    defined = {name: value for name, value in values.items() if not math.isnan(value)}
    quotients = {name: metric for name, metric in (metrics or {}).items() if isinstance(metric, Ratio)}
    intervals = {name: metric_interval(quotients[name], [members]) for name in defined if name in quotients}
    return Score(
        group=group,
        n=len(tried),
        successes=successes,
        metrics={SUCCESS: successes / len(tried) if tried else 0.0} | defined,
        intervals={name: interval for name, interval in intervals.items() if interval is not None},
        interval=wilson_interval(successes * tasks / len(tried) if tried else 0, tasks),
        clusters=len({o.cluster for o in tried}),
        infrastructure_errors=len(members) - len(tried),
        shared_interval=metric_interval(success, [members]),
        macro=macro_mean([(o.shape, o.success) for o in tried]),
        macro_interval=metric_interval(success, [members], by_shape=True) if known else None,
        shapes=len({o.shape for o in tried if o.shape}),
    )


def evaluated(outcomes: Sequence[TaskOutcome]) -> list[TaskOutcome]:
    """Return the attempts that no infrastructure error ended."""
    return [one for one in outcomes if one.infrastructure_error is None]


def attempted(members: Sequence[TaskOutcome]) -> list[Attempted]:
    """Return the attempts that could be evaluated, as metrics take them."""
    broken = {o.cluster for o in members if o.infrastructure_error is not None}
    return [
        Attempted(
            id=o.task_id,
            group=o.cluster,
            success=o.success,
            group_evaluated=o.cluster not in broken,
            calls=o.calls_made,
            malformed=o.malformed,
            reference=o.calls_wanted,
            partial=o.partial,
        )
        for o in evaluated(members)
    ]


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


CAPTION = (
    "by shape: mean over call shapes, the references' calls in order without values; 95 %: for other start states and "
    "functions, at least as wide as Wilson's"
)


def print_scores(title: str, scores: Sequence[Score], mean: float | None = None) -> None:
    """Print the table of success, a row per score and ``mean`` as the last one, and that of the other metrics."""
    rows = [
        (
            *(one.group, str(one.n), f"{one.success:.1%}", _interval(one.widest)),
            *("" if one.macro is None else f"{one.macro:.1%}", _interval(one.macro_interval)),
        )
        for one in scores
    ]
    if mean is not None:
        rows.append(("mean of groups", "", f"{mean:.1%}", "", "", ""))
    print_table(title, ("group", "n", SUCCESS, "95 %", "by shape", "95 %"), rows, CAPTION)
    names = list(dict.fromkeys(name for one in scores for name in one.metrics if name != SUCCESS))
    if names:
        cells = ((_with_interval(one.metrics.get(name), one.intervals.get(name)) for name in names) for one in scores)
        others = [(one.group, *row) for one, row in zip(scores, cells, strict=True)]
        caption = "below a metric, 95 %: for other start states and functions"
        print_table("metrics, each in its own unit", ("group", *names), others, caption)


def print_report(report: Report, strata: Sequence[Score]) -> None:
    """Print the report on stdout: the tables of scores, why user turns stopped, and the notes."""
    title = f"{report.model} on {report.environment} ({report.decoding})"
    print_scores(title, (*report.scores, *strata), report.mean if len(report.scores) > 1 else None)
    if report.stop_reasons:
        print("user turns stopped by:", ", ".join(f"{count} {reason}" for reason, count in report.stop_reasons.items()))
    _print_notes(report.notes)


def print_rows(reports: Sequence[Report]) -> None:
    """Print several models' reports of the same tasks on stdout: a row for each in every table, and the notes."""
    several = len(reports[0].scores) > 1
    rows = [
        one.model_copy(update={"group": f"{report.model}, {one.group}" if several else report.model})
        for report in reports
        for one in report.scores
    ]
    what = reports[0].environment if several else f"{reports[0].scores[0].group} of {reports[0].environment}"
    print_scores(what, rows)
    _print_notes(note for report in reports for note in report.notes)


def _print_notes(notes: Iterable[str]) -> None:
    for note in dict.fromkeys(notes):
        print(printable(f"note: {note}"))


def _number(value: float | None) -> str:
    """Return a metric in its own unit, with three decimals at most."""
    return "" if value is None else str(round(value, 3))


def _with_interval(value: float | None, interval: Interval | None) -> str:
    ends = "" if interval is None else f"\n{round(interval[0], 2)}-{round(interval[1], 2)}"
    return _number(value) + ends


def _interval(interval: Interval | None) -> str:
    return "" if interval is None else f"{100 * interval[0]:.1f}-{100 * interval[1]:.1f}"
