"""Writes the report of a study: summary.json and tables in Markdown, from the results that exist.

The tables have hypotheses and what came of them, success by evaluation set, differences by seed, and each arm's
budgets. Their words are those of the committed reports, which a report of the committed results reproduces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from evaluation.study.comparisons import Cell, Comparison, Interval, MetricBySeed
from evaluation.study.figures import ArmFacts
from evaluation.study.gates import gate_table, void
from evaluation.study.hypotheses import Findings, hypothesis_table, points, rule
from evaluation.study.plan import Place
from evaluation.study.recipe import BASELINE, Mode, Study
from evaluation.study.summary import StudySummary, summarise
from memory.jsonl import write_atomically
from memory.records import PAPER_SHARES, SignalKind

READING_FILE = "reading.md"
"""A person's reading of the study's results; it is put above the tables."""


def study_table(summary: StudySummary, reading: str = "") -> str:
    """Return all tables with their notes. Rates and differences are in percent points.

    ``reading`` is put above the tables.
    """
    facts = summary.facts
    lines = [f"<!-- made by python -m evaluation.study, mode {facts.mode}, recipe {facts.recipe[:12]} -->", ""]
    lines += [line for sentence in void(facts.gates) for line in (sentence, "")]
    lines += [reading.strip(), ""] if reading.strip() else []
    if facts.missing:
        sentence = f"{len(facts.missing)} arms and seeds of the recipe are not there yet"
        lines += [f"**Partial**: {sentence}; n in each row is what is.", ""]
    if facts.limit is not None:
        lines += [f"Of each evaluation set its first {facts.limit} tasks only.", ""]
    if facts.gates:
        lines += ["**Gates** (percent; means over seeds)", "", *_table(*gate_table(facts.gates)), ""]
    if facts.hypotheses is not None:
        lines += _hypotheses(facts.hypotheses)
    for set_name in dict.fromkeys(name for cells in summary.cells.values() for name in cells):
        lines += _success(summary, set_name)
    lines += _course(facts.arms)
    lines += _signals(facts.arms)
    lines += _spending(facts.arms)
    lines += _notes(summary)
    return "\n".join(lines).rstrip() + "\n"


def _hypotheses(found: Findings) -> list[str]:
    score = "mean over call shapes" if found.by_shape else "success"
    lines = [f"**Hypotheses** ({found.panel}, {score}; percent points)", ""]
    lines += [*_table(*hypothesis_table(found.findings)), ""]
    return lines + [line for sentence in rule(found) for line in (sentence, "")]


def _success(summary: StudySummary, set_name: str) -> list[str]:
    rows = []
    there = {name: cells[set_name] for name, cells in summary.cells.items() if set_name in cells}
    broken = any(one.macro is not None for one in there.values())
    metrics = list(
        dict.fromkeys(n for cells in summary.cells.values() if set_name in cells for n in cells[set_name].metrics)
    )
    for name, cells in summary.cells.items():
        found = cells.get(set_name)
        if found is None:
            continue
        own = [_metric(found.metrics.get(one)) for one in metrics]
        versus = found.differences.get(BASELINE)
        own += _macro(found) + _macro(versus) if broken else []
        rows.append(
            (
                name,
                str(found.seeds),
                _percent(found.mean),
                _interval(found.interval),
                _points(versus),
                _interval(versus.interval if versus else None),
                _interval(versus.t_interval if versus else None),
                _by_seed(versus),
                "" if found.extra_calls is None else f"{found.extra_calls:.2f}",
                *own,
            )
        )
    if not rows:
        return []
    head = ("arm", "n seeds", "success", "95 %", f"minus {BASELINE}", "95 %", "t")
    sizes = _sizes(summary, set_name)
    by_shape = ("by shape", "95 %", f"minus {BASELINE}, by shape", "95 %") if broken else ()
    table = _table((*head, "by seed", "extra calls per solved task", *metrics, *by_shape), rows)
    lines = [f"**{set_name}** ({sizes})", "", *table, ""]
    for name, cells in summary.cells.items():
        for other, one in cells[set_name].differences.items() if set_name in cells else ():
            if other == BASELINE:
                continue  # in the table
            sentence = (
                f"{_points(one)} (95 % {_interval(one.interval)}, t {_interval(one.t_interval)}; n = {one.seeds};"
            )
            macro = f" by shape {' ('.join(_macro(one))});" if one.macro else ""
            lines += [f"{name} minus {other}: {sentence}{macro} {_by_seed(one)})", ""]
    return lines


def _metric(one: MetricBySeed | None) -> str:
    """Return a metric in its own unit and, where it is known, its interval."""
    if one is None:
        return ""
    ends = "" if one.interval is None else f" ({one.interval[0]:.3g} to {one.interval[1]:.3g})"
    return f"{one.mean:.3g}{ends}"


def _macro(one: Comparison | None) -> list[str]:
    """Return the mean over call shapes and its interval."""
    if one is None or one.macro is None:
        return ["", ""]
    found = one.macro
    sign = "" if isinstance(one, Cell) else "+"
    return [f"{round(100 * found.mean, 1) + 0.0:{sign}.1f}", _interval(found.interval)]


def _sizes(summary: StudySummary, set_name: str) -> str:
    cells: list[Cell] = [cells[set_name] for cells in summary.cells.values() if set_name in cells]
    errors = sum(one.infrastructure_errors for one in cells)
    sentence = f"{max(one.tasks for one in cells)} tasks, {max(one.clusters for one in cells)} clusters"
    return sentence + (f", {errors} attempts with an infrastructure error left out" if errors else "")


def _course(arms: dict[str, ArmFacts]) -> list[str]:
    rows = []
    for name, facts in arms.items():
        if not facts.curve:
            continue
        last = facts.curve[-1]
        accepted = [point.acceptance for point in facts.curve if point.acceptance is not None]
        successes = [facts.start, *(point.success for point in facts.curve)]
        rows.append(
            (
                name,
                " ".join("-" if success is None else _percent(success) for success in successes),
                " ".join(f"{sum(point.signals.values()):.0f}" for point in facts.curve),
                " ".join(f"{point.admitted:.0f}" for point in facts.curve),
                _percent(sum(accepted) / len(accepted)) if accepted else "",
                _percent(last.coverage_tasks),
                _percent(last.coverage_trained),
                "" if facts.evolution_share is None else _percent(facts.evolution_share),
            )
        )
    if not rows:
        return []
    head = (
        "arm",
        "dev set by round",
        "signals by round",
        "admitted by round",
        "acceptance",
        "functions in D_t",
        "functions trained on",
        "evolution's share (scripted roles)",
    )
    return ["**Course** (means over seeds; percent where not counts)", "", *_table(head, rows), ""]


def _signals(arms: dict[str, ArmFacts]) -> list[str]:
    """Return the shares of the kinds among an arm's marks, beside those of the paper."""
    rows = []
    for name, facts in arms.items():
        counts = [facts.signals.get(kind, 0) for kind in SignalKind]
        if sum(counts):
            shares = (_percent(count / sum(counts)) for count in counts)
            rows.append((name, f"{sum(counts):,}", *shares))
    if not rows:
        return []
    for which, paper in zip(("first", "second"), PAPER_SHARES, strict=True):
        rows.append((f"CoEvolve's figure 4, {which} benchmark", "", *(f"{share:.1f}" for share in paper)))
    head = ("arm", "marks", *(f"{kind} %" for kind in SignalKind))
    sentence = "**Signals** (marks on trajectories, in all rounds of all seeds)"
    return [sentence, "", *_table(head, rows), ""]


def _spending(arms: dict[str, ArmFacts]) -> list[str]:
    rows = []
    spent = [one for facts in arms.values() for one in facts.budgets.values()]
    columns = {"supervised tokens": "supervised_tokens", "through the model": "processed_tokens"}
    columns = {name: key for name, key in columns.items() if any(getattr(one, key) for one in spent)}
    for name, facts in arms.items():
        budgets = list(facts.budgets.values())
        rows.append(
            (
                name,
                facts.description,
                f"{len(facts.seeds)} of {facts.planned}",
                _range(one.rollouts for one in budgets),
                _range(one.optimizer_steps for one in budgets),
                _range(one.environment_calls for one in budgets),
                *(_range(getattr(one, key) for one in budgets) for key in columns.values()),
                f"{max(facts.wall_seconds.values()):.0f}",
            )
        )
    head = ("arm", "what it is", "seeds", "rollouts", "optimizer steps", "environment calls")
    table = _table((*head, *columns, "wall s, most"), rows)
    sentence = "**Budgets** (of each seed; seconds of a run that was stopped are of its last attempt)"
    return [sentence, "", *table, ""] if rows else []


def _notes(summary: StudySummary) -> list[str]:
    facts = summary.facts
    notes = [facts.statistics, *_labels(facts.arms)]
    notes += [f"unequal budget: {sentence}" for sentence in facts.unequal_budgets]
    held = [access for access in facts.openings if facts.mode == "test"]
    if facts.mode == "test":
        notes.append(f"the held-out sets were accessed {len(held)} times ({len({one.commit for one in held})} commits)")
    else:
        notes.append("development sets and seeds: settings were chosen on them, so they prove nothing")
    if facts.outdated:
        notes.append(f"left out, because they are of another recipe: {', '.join(facts.outdated)}")
    if facts.missing:
        notes.append(f"not there: {', '.join(facts.missing)}")
    return [f"- {note}" for note in notes]


def _labels(arms: dict[str, ArmFacts]) -> list[str]:
    """Return the labels of the figures, each with its arms unless all trained arms have it."""
    trained = [name for name, facts in arms.items() if facts.curve]
    sentence = []
    for label in dict.fromkeys(label for one in arms.values() for label in one.labels):
        names = [name for name in trained if label in arms[name].labels]
        sentence.append(label if names == trained else f"{', '.join(names)}: {label}")
    return sentence


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]


def _percent(rate: float) -> str:
    return f"{round(rate * 100, 1) + 0.0:.1f}"  # never -0.0


def _points(one: Comparison | None) -> str:
    return "" if one is None else points(one.mean)


def _interval(interval: Interval | None) -> str:
    return "" if interval is None else f"{_percent(interval[0])} to {_percent(interval[1])}"


def _by_seed(one: Comparison | None) -> str:
    return "" if one is None else ", ".join(f"{seed}: {points(value)}" for seed, value in one.by_seed.items())


def _range(values: Iterable[float], form: str = "{:,.0f}") -> str:
    numbers = list(values)
    if not numbers:
        return ""
    low, high = form.format(min(numbers)), form.format(max(numbers))
    return low if low == high else f"{low}-{high}"


def write_report(study: Study, mode: Mode, place: Place) -> str:
    """Write summary and tables of all results of a mode; return the tables.

    Development has separate files (``development.json``, ...). Raises UnequalStart, and InputError for a corrupt
    result.
    """
    summary = summarise(study, mode, place)
    said = place.output / READING_FILE
    reading = said.read_text(encoding="utf-8") if mode == "test" and said.exists() else ""
    stem = "summary" if mode == "test" else "development"
    text = json.dumps(summary.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(place.output / f"{stem}.json", [text.encode()])
    table = study_table(summary, reading)
    write_atomically(place.output / f"{stem}.md", [table.encode()])
    return table
