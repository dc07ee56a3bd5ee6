"""The card of a served model's evaluation: what was scored, by which software, data and limits, and at what cost.

It lies beside the outcomes as FILE.card.json and FILE.card.md. The endpoint's address is not in it: what is, may be
published wherever the scores may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from environments.base import Record
from environments.checkout import ROOT
from environments.command import check_output
from environments.terminal import table_cell
from evaluation.attempts import episode_limits
from evaluation.outcomes import Interval, Report, Score, TaskOutcome, score_strata
from evaluation.test_access import commit_changed, current_commit
from memory.jsonl import write_atomically, write_json
from memory.records import Measured, StopReason

if TYPE_CHECKING:
    from evaluation.selection import Selected
    from evaluation.settings import ScoringSettings

NO_SEED = "no seed is sent: a repeated evaluation gives equal outcomes as far as the endpoint gives equal replies"
_UNKNOWN = "not stated"
_INTERVALS = ("95 % (Wilson)", "95 % (other states, functions)")


class ScoredSet(Record):
    """An evaluation set or file; ``attempted`` of ``tasks``, whose ids ``sha256`` identifies (None for a file)."""

    name: str
    sha256: str | None
    held_out: bool
    attempted: int
    tasks: int


class ScoredGroup(Record):
    """Success of a set or stratum with its 95 % intervals, and why the other attempts failed.

    ``interval`` is Wilson's, as if tasks were independent; ``widest`` covers other start states and functions.
    ``failures`` are by official error type; ``faults`` count in no rate.
    """

    name: str
    n: int
    successes: int
    success: float
    interval: Interval
    widest: Interval
    faults: int
    failures: dict[str, int]


class EvaluationCard(Record):
    """Everything that a reader needs to judge or repeat the evaluation, but the endpoint and its key.

    ``commit`` is that of the software, None outside a repository; ``changed``: files of it differ. ``data`` and
    ``verdict`` are the benchmark's (``environments.benchmark.Benchmark``). ``limits`` are those of one attempt.
    ``mean`` is the unweighted mean of the sets' rates. ``spent``: requests, tokens, money in the unit of the prices.
    """

    software: str
    commit: str | None
    changed: bool | None
    date: str
    environment: str
    data: str
    verdict: str
    sets: tuple[ScoredSet, ...]
    model: str
    decoding: str
    seed: str = NO_SEED
    limits: dict[str, int | bool | None]
    scores: tuple[ScoredGroup, ...]
    mean: float
    malformed: int
    stop_reasons: dict[StopReason, int]
    spent: Measured
    notes: tuple[str, ...]


def _paths(output: Path) -> tuple[Path, Path]:
    """Return the paths of the card beside the outcomes' file: JSON, Markdown."""
    return output.with_suffix(".card.json"), output.with_suffix(".card.md")


def check_card(output: Path) -> None:
    """Raise InputError where a card lies beside the outcomes' file, or none can."""
    for path in _paths(output):
        check_output("--output", path)


def write_card(
    output: Path, settings: ScoringSettings, selected: Selected, report: Report, outcomes: Sequence[TaskOutcome]
) -> None:
    """Write the card of ``outcomes``, the attempts that ``report`` is of; one of a resumed evaluation replaces it."""
    card = _card(settings, selected, report, outcomes)
    as_json, as_text = _paths(output)
    write_json(as_json, card)
    write_atomically(as_text, ["\n".join([*_lines(card), ""]).encode()])


def _card(
    settings: ScoringSettings, selected: Selected, report: Report, outcomes: Sequence[TaskOutcome]
) -> EvaluationCard:
    benchmark, budget = selected.benchmark, selected.benchmark.limits
    limits = episode_limits(settings, budget, budget.new_tokens, budget.tokens, 1)
    attempted = Counter(one.group for one in outcomes)
    sets = []
    for name, number in attempted.items():
        if settings.tasks is None:
            one = benchmark.evaluation_set(name)
            sets.append(ScoredSet(**one.model_dump(exclude={"tasks"}), attempted=number, tasks=one.tasks))
        else:
            sets.append(ScoredSet(name=name, sha256=None, held_out=False, attempted=number, tasks=number))
    commit = current_commit(ROOT)
    return EvaluationCard(
        software=f"coevolve {version('coevolve')}",
        commit=commit,
        changed=None if commit is None else commit_changed(ROOT),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=report.environment,
        data=benchmark.data or _UNKNOWN,
        verdict=benchmark.verdict or _UNKNOWN,
        sets=tuple(sets),
        model=report.model,
        decoding=report.decoding,
        limits=limits.model_dump(exclude={"batch"}),
        scores=tuple(_group(one, outcomes) for one in (*report.scores, *score_strata(outcomes))),
        mean=report.mean,
        malformed=sum(one.malformed for one in outcomes),
        stop_reasons=report.stop_reasons,
        spent=report.spent or Measured(),
        notes=report.notes,
    )


def _group(one: Score, outcomes: Sequence[TaskOutcome]) -> ScoredGroup:
    key, stratum, value = one.group.partition("=")
    members = [o for o in outcomes if o.group == one.group or (stratum and o.strata.get(key) == value)]
    return ScoredGroup(
        name=one.group,
        n=one.n,
        successes=one.successes,
        success=one.success,
        interval=one.interval,
        widest=one.widest,
        faults=one.infrastructure_errors,
        failures=dict(Counter(o.failure for o in members if o.failure is not None).most_common()),
    )


def _lines(card: EvaluationCard) -> list[str]:
    state = {True: ", with changed files", False: "", None: ""}[card.changed]
    limits = (f"{name.removeprefix('max_').replace('_', ' ')} {value}" for name, value in card.limits.items())
    facts = {
        "model": card.model,
        "software": f"{card.software}, commit {card.commit or 'unknown'}{state}",
        "data": card.data,
        "verdict": card.verdict,
        "decoding": card.decoding,
        "seed": card.seed,
        "limits of an attempt": ", ".join(limits),
        "date": card.date,
        "cost": f"{card.spent.calls:,} requests, {card.spent.prompt_tokens:,} prompt and "
        f"{card.spent.completion_tokens:,} completion tokens, money {card.spent.money:.4f}, "
        f"{card.spent.seconds:,.0f} s in requests",
        "malformed calls": card.malformed,
        "user turns by why they stopped": _counts(card.stop_reasons),
        "mean of the sets": f"{card.mean:.1%}",
    }
    sets = [(one.name, f"{one.attempted} of {one.tasks}", one.held_out, one.sha256 or "-") for one in card.sets]
    scores = [
        (
            *(one.name, one.n, f"{one.success:.1%}", _interval(one.interval), _interval(one.widest)),
            *(one.faults, _counts(one.failures)),
        )
        for one in card.scores
    ]
    return [
        f"# {table_cell(card.model)} on {table_cell(card.environment)}",
        "",
        *_table(("", ""), list(facts.items())),
        "",
        *_table(("set", "attempted", "held out", "SHA-256 of its tasks"), sets),
        "",
        *_table(("group", "n", "success", *_INTERVALS, "faults", "failures"), scores),
        "",
        "Faults are attempts that the endpoint or the environment failed: they count in no rate.",
        *(f"\n- {table_cell(note)}" for note in card.notes),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(table_cell(value) for value in line)} |" for line in lines]


def _counts(counts: dict[StopReason, int] | dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.items()) or "none"


def _interval(interval: Interval) -> str:
    return f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"
