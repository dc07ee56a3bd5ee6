"""Evaluates a model that an OpenAI-compatible endpoint serves: its limits, its costs, going on after a stop, its card.

The card says what was scored, by which software, data and limits, and at what cost; it lies beside the outcomes as
FILE.card.md. The endpoint's address is not in it: what is, may be published wherever the scores may.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from agents.spending import Ledger
from environments.base import Environment, InputError
from environments.checkout import ROOT
from environments.command import check_output, markdown_table, say, table_cell
from evaluation.attempts import Attempts, check_items, episode_limits
from evaluation.outcomes import Report, Score, TaskOutcome, score_strata
from evaluation.sets import Selected, written
from evaluation.settings import EndpointSettings, ScoringSettings
from evaluation.test_access import commit_changed, current_commit
from memory.files import keep, mend, write_atomically
from memory.jsonl import append_jsonl, read_json, read_jsonl, write_json, write_jsonl
from memory.records import Measured, StopReason

NO_SEED = "no seed is sent: a repeated evaluation gives equal outcomes as far as the endpoint gives equal replies"
_UNKNOWN = "not stated"
RENDERING = "endpoint"
"""The rendering in a report."""
EVERY = 10
"""Attempts between two lines of progress on stderr."""


def evaluate_served(
    settings: ScoringSettings,
    selected: Selected,
    environment: Environment,
    output: Path | None,
    resume: bool,
    report: Callable[[int, int], None] = lambda done, successes: None,
) -> Attempts:
    """Attempt the selected tasks, without those that ``output`` has of an evaluation that ``resume`` continues.

    ``report`` gets the counts of attempts and successes after each. Raises InputError like ``attempt_served`` and for
    files that do not fit; BudgetReached and RepeatedFailure, after which the outcomes so far are in ``output``.
    """
    from agents.chat.models import ToolCallingModel
    from evaluation.served import attempt_served

    check_items(selected.items, environment)
    endpoint = settings.endpoint()
    stated = settings.model_copy(update={"model": endpoint.model, "base_url": endpoint.base_url})
    kept = [] if output is None else _kept(output, stated, resume)
    wanted = [(item.group, item.task.id) for item in selected.items]
    done = {key: one for one in kept if (key := (one.group, one.task_id)) in wanted}
    ledger = Ledger(output and _requests(output), settings.budget, prefix="--budget-")
    model = ToolCallingModel(endpoint, ledger, settings.concurrency)
    missing = [item for item, key in zip(selected.items, wanted, strict=True) if key not in done]

    def over(outcome: TaskOutcome) -> None:
        done[outcome.group, outcome.task_id] = outcome
        if output is not None:
            append_jsonl(output, written([outcome], selected.benchmark))
        report(len(done), sum(one.success for one in done.values()))
        if len(done) % EVERY == 0 or len(done) == len(wanted):
            say(f"evaluated {len(done)} of {len(wanted)}")

    budget = selected.benchmark.limits
    batch = settings.batch or min(budget.batch, settings.concurrency)
    limits = episode_limits(settings, budget, budget.new_tokens, budget.tokens, batch)
    seen = asyncio.run(attempt_served(missing, model, environment, limits, over))
    notes = [_costs(ledger.spent())]
    notes += [f"{seen.refusals} replies were refusals, which end the user turn"] if seen.refusals else []
    if seen.uncounted:
        notes.append(f"{seen.uncounted} replies did not report their tokens: --max-tokens was not kept there")
    own = model.changes.omits("temperature")
    temperature = "the endpoint's temperature" if own else f"temperature {settings.temperature:g}"
    decoding = "; ".join((f"{temperature}, one attempt a task", *model.changes.notes))
    return Attempts(tuple(done[key] for key in wanted), RENDERING, decoding, tuple(notes), ledger.spent())


def _costs(spent: Measured) -> str:
    tokens = f"{spent.prompt_tokens:,} prompt and {spent.completion_tokens:,} completion tokens"
    return f"{spent.calls:,} requests, {tokens}"


_FREE = (set(EndpointSettings.model_fields) - {"base_url", "temperature"}) | {"limit", "batch", "access_log"}
"""Settings that a resumed evaluation may change: they decide no outcome."""


def _kept(output: Path, settings: ScoringSettings, resume: bool) -> list[TaskOutcome]:
    """Return the outcomes that a stopped evaluation does not pay for again; begin the files of a new one.

    Beside the outcomes' file FILE.jsonl lie FILE.settings.json, with everything that decides an outcome (``settings``,
    with the endpoint's model and base URL as they were resolved), and FILE.requests.jsonl, with one line per request;
    in the end the card (``write_card``). Attempts that an infrastructure error ended are made again, and half a line at
    the end, of a killed evaluation, is left out. Raises InputError for files that exist or are missing, that another
    evaluation wrote, or that are corrupt.
    """
    stated = output.with_suffix(".settings.json")
    for path in (output, _requests(output), stated, card_path(output)):
        keep(path)
    if not (resume and stated.exists()):
        if resume and output.exists():
            raise InputError(f"--resume: {stated} is missing, so that {output} cannot be gone on with: choose another")
        if not resume and stated.exists():
            raise InputError(f"{output}: an evaluation began here: go on with --resume, or choose another --output")
        for path in (output, _requests(output), stated, card_path(output)):
            check_output("--output", path)
        write_json(stated, settings)
        return []
    before = read_json(stated, ScoringSettings)
    for name in ScoringSettings.model_fields:
        if name not in _FREE and getattr(before, name) != getattr(settings, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"--resume: {stated} has {option} {getattr(before, name)}, this command {getattr(settings, name)}: "
                "give the same, or choose another --output"
            )
    if not output.exists():
        return []
    mend(output)
    evaluated = [one for one in read_jsonl(output, TaskOutcome) if one.infrastructure_error is None]
    write_jsonl(output, evaluated)
    return evaluated


def _requests(output: Path) -> Path:
    return output.with_suffix(".requests.jsonl")


def lock_path(output: Path) -> Path:
    """Return the lock of an evaluation, which one process at a time makes or goes on with."""
    return output.with_name(f".{output.name}.lock")


def card_path(output: Path) -> Path:
    """Return the file of the card beside the outcomes' file."""
    return output.with_suffix(".card.md")


def write_card(
    output: Path, settings: ScoringSettings, selected: Selected, report: Report, outcomes: Sequence[TaskOutcome]
) -> None:
    """Write the card of ``outcomes``, the attempts that ``report`` is of; one of a resumed evaluation replaces it."""
    benchmark, budget, spent = selected.benchmark, selected.benchmark.limits, report.spent or Measured()
    limits = episode_limits(settings, budget, budget.new_tokens, budget.tokens, 1).model_dump(exclude={"batch"})
    commit = current_commit(ROOT)
    state = ", with changed files" if commit is not None and commit_changed(ROOT) else ""
    facts = {
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
        "cost": f"{_costs(spent)}, {spent.seconds:,.0f} s in requests",
        "malformed calls": sum(one.malformed for one in outcomes),
        "user turns by why they stopped": _counts(report.stop_reasons),
        "mean of the sets": f"{report.mean:.1%}",
    }
    sets: list[tuple[object, ...]] = []
    for name, number in Counter(one.group for one in outcomes).items():
        if settings.tasks is None:
            one = benchmark.evaluation_set(name)
            sets.append((name, f"{number} of {one.tasks}", one.held_out, one.sha256))
        else:
            sets.append((name, f"{number} of {number}", False, "-"))
    lines = [
        f"# {table_cell(report.model)} on {table_cell(report.environment)}",
        "",
        *markdown_table(("", ""), list(facts.items())),
        "",
        *markdown_table(("set", "attempted", "held out", "SHA-256 of its tasks"), sets),
        "",
        *markdown_table(
            ("group", "n", "success", "95 % (Wilson)", "95 % (other states, functions)", "faults", "failures"),
            [_group(one, outcomes) for one in (*report.scores, *score_strata(outcomes))],
        ),
        "",
        "Faults are attempts that the endpoint or the environment failed: they count in no rate.",
        *(f"\n- {table_cell(note)}" for note in report.notes),
        "",
    ]
    write_atomically(card_path(output), ["\n".join(lines).encode()])


def _group(one: Score, outcomes: Sequence[TaskOutcome]) -> tuple[object, ...]:
    """Return the row of a set or stratum, with its failures by official error type."""
    key, stratum, value = one.group.partition("=")
    members = [o for o in outcomes if o.group == one.group or (stratum and o.strata.get(key) == value)]
    failures = dict(Counter(o.failure for o in members if o.failure is not None).most_common())
    intervals = (f"{100 * low:.1f} to {100 * high:.1f}" for low, high in (one.interval, one.widest))
    return one.group, one.n, f"{one.success:.1%}", *intervals, one.infrastructure_errors, _counts(failures)


def _counts(counts: Mapping[StopReason, int] | Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.items()) or "none"
