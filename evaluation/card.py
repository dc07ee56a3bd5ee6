"""The card of a served model's evaluation: what was scored, by which software, data and limits, and at what cost.

It lies beside the outcomes as FILE.card.md. The endpoint's address is not in it: what is, may be published wherever the
scores may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from environments.checkout import ROOT
from environments.command import check_output
from environments.terminal import markdown_table, table_cell
from evaluation.attempts import episode_limits
from evaluation.outcomes import Interval, Report, Score, TaskOutcome, score_strata
from evaluation.test_access import commit_changed, current_commit
from memory.jsonl import write_atomically
from memory.records import Measured, StopReason

if TYPE_CHECKING:
    from evaluation.selection import Selected
    from evaluation.settings import ScoringSettings

NO_SEED = "no seed is sent: a repeated evaluation gives equal outcomes as far as the endpoint gives equal replies"
_UNKNOWN = "not stated"


def _path(output: Path) -> Path:
    return output.with_suffix(".card.md")


def check_card(output: Path) -> None:
    """Raise InputError where a card lies beside the outcomes' file, or none can."""
    check_output("--output", _path(output))


def write_card(
    output: Path, settings: ScoringSettings, selected: Selected, report: Report, outcomes: Sequence[TaskOutcome]
) -> None:
    """Write the card of ``outcomes``, the attempts that ``report`` is of; one of a resumed evaluation replaces it."""
    scores = (*report.scores, *score_strata(outcomes))
    lines = [
        f"# {table_cell(report.model)} on {table_cell(report.environment)}",
        "",
        *markdown_table(("", ""), list(_facts(settings, selected, report, outcomes).items())),
        "",
        *markdown_table(("set", "attempted", "held out", "SHA-256 of its tasks"), _sets(settings, selected, outcomes)),
        "",
        *markdown_table(
            ("group", "n", "success", "95 % (Wilson)", "95 % (other states, functions)", "faults", "failures"),
            [_group(one, outcomes) for one in scores],
        ),
        "",
        "Faults are attempts that the endpoint or the environment failed: they count in no rate.",
        *(f"\n- {table_cell(note)}" for note in report.notes),
        "",
    ]
    write_atomically(_path(output), ["\n".join(lines).encode()])


def _facts(
    settings: ScoringSettings, selected: Selected, report: Report, outcomes: Sequence[TaskOutcome]
) -> dict[str, object]:
    """Return what the scores are of: software, data, verdict, limits of one attempt, costs."""
    benchmark, budget, spent = selected.benchmark, selected.benchmark.limits, report.spent or Measured()
    limits = episode_limits(settings, budget, budget.new_tokens, budget.tokens, 1).model_dump(exclude={"batch"})
    commit = current_commit(ROOT)
    state = ", with changed files" if commit is not None and commit_changed(ROOT) else ""
    return {
        "model": report.model,
        "software": f"coevolve {version('coevolve')}, commit {commit or 'unknown'}{state}",
        "data": benchmark.data or _UNKNOWN,
        "verdict": benchmark.verdict or _UNKNOWN,
        "decoding": report.decoding,
        "seed": NO_SEED,
        "limits of an attempt": ", ".join(
            f"{one.removeprefix('max_').replace('_', ' ')} {limits[one]}" for one in limits
        ),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cost": f"{spent.calls:,} requests, {spent.prompt_tokens:,} prompt and {spent.completion_tokens:,} completion "
        f"tokens, {spent.seconds:,.0f} s in requests",
        "malformed calls": sum(one.malformed for one in outcomes),
        "user turns by why they stopped": _counts(report.stop_reasons),
        "mean of the sets": f"{report.mean:.1%}",
    }


def _sets(
    settings: ScoringSettings, selected: Selected, outcomes: Sequence[TaskOutcome]
) -> Iterator[tuple[object, ...]]:
    for name, number in Counter(one.group for one in outcomes).items():
        if settings.tasks is None:
            one = selected.benchmark.evaluation_set(name)
            yield name, f"{number} of {one.tasks}", one.held_out, one.sha256
        else:
            yield name, f"{number} of {number}", False, "-"


def _group(one: Score, outcomes: Sequence[TaskOutcome]) -> tuple[object, ...]:
    """Return the row of a set or stratum, with its failures by official error type."""
    key, stratum, value = one.group.partition("=")
    members = [o for o in outcomes if o.group == one.group or (stratum and o.strata.get(key) == value)]
    failures = dict(Counter(o.failure for o in members if o.failure is not None).most_common())
    intervals = _interval(one.interval), _interval(one.widest)
    return one.group, one.n, f"{one.success:.1%}", *intervals, one.infrastructure_errors, _counts(failures)


def _counts(counts: Mapping[StopReason, int] | Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.items()) or "none"


def _interval(interval: Interval) -> str:
    return f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"
