"""Writes the report of a study: tables in Markdown, from the results that exist.

The tables have hypotheses and what came of them, success by evaluation set, differences by seed, and each arm's
budgets. Their words are those of the committed reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from environments.command import markdown_table
from evaluation.outcomes import Interval
from evaluation.study.findings import LEVEL, Cell, Comparison, Estimate, Findings
from evaluation.study.recipe import BASELINE, Mode
from evaluation.study.study import Place, Study
from evaluation.study.summary import BUDGETS, ArmFacts, GateFinding, StudySummary, summarise, unequal_budgets
from memory.files import read_text, write_atomically
from memory.records import KINDS, SignalKind

READING_FILE = "reading.md"
"""A person's reading of the study's results; it is put above the tables."""

STATISTICS = (
    "greedy decoding, one attempt per task; differences are paired by seed and task; 95 %: from standard errors that "
    "are robust to what tasks of a start state or of a function share, and from those over seeds (a task belongs to "
    "the rarest function of its reference), by the method of benchmarks/intervals.md; t: Student's t over seeds alone"
)


def write_report(study: Study, mode: Mode, place: Place) -> str:
    """Write the tables of all results of a mode, with their notes, to summary.md; return them.

    Rates and differences are in percent points. Development has a file of its own (``development.md``). Raises
    InputError like ``summarise``.
    """
    summary, said = summarise(study, mode, place), place.output / READING_FILE
    lines = [f"<!-- made by python -m evaluation.study, mode {mode}, recipe {study.sha256[:12]} -->", ""]
    lines += [line for sentence in void(summary.gates) for line in (sentence, "")]
    if mode == "test" and said.exists() and (reading := read_text(said).strip()):
        lines += [reading, ""]
    if summary.missing:
        sentence = f"{len(summary.missing)} arms and seeds of the recipe are not there yet"
        lines += [f"**Partial**: {sentence}; n in each row is what is.", ""]
    if study.recipe.scoring.limit is not None:
        lines += [f"Of each evaluation set its first {study.recipe.scoring.limit} tasks only.", ""]
    lines += _gates(summary.gates)
    if summary.hypotheses is not None:
        lines += _hypotheses(summary.hypotheses)
    for set_name in dict.fromkeys(name for cells in summary.cells.values() for name in cells):
        lines += _success(summary, set_name)
    lines += _course(summary.arms)
    lines += _signals(summary.arms)
    lines += _spending(summary.arms)
    lines += [f"- {note}" for note in _notes(mode, summary)]
    table = "\n".join(lines).rstrip() + "\n"
    write_atomically(place.output / ("summary.md" if mode == "test" else "development.md"), [table.encode()])
    return table


def void(findings: Sequence[GateFinding]) -> list[str]:
    """Return the sentences that a report begins with: of failed gates, and of those that are not measured yet."""
    failed = [f"{one.gate.sentence}, found {_of_gate(one.value)}" for one in findings if one.state == "failed"]
    waiting = sum(one.state == "not run yet" for one in findings)
    sentences = []
    if failed:
        sentences.append(f"**The trial is void**: {len(failed)} of {len(findings)} gates failed ({'; '.join(failed)}).")
    if waiting:
        sentences.append(f"**{waiting} of {len(findings)} gates are not measured yet**: nothing below is a result.")
    return sentences


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table with its title; nothing where it has no row."""
    return [title, "", *markdown_table(head, rows), ""] if rows else []


def _gates(findings: Sequence[GateFinding]) -> list[str]:
    rows = [
        (
            one.gate.sentence,
            _of_gate(one.value),
            str(one.seeds) if one.seeds >= one.planned else f"{one.seeds} of {one.planned}",
            one.state,
            one.gate.why,
        )
        for one in findings
    ]
    return _section("**Gates** (percent; means over seeds)", ("gate", "found", "n seeds", "state", "why"), rows)


def _hypotheses(found: Findings) -> list[str]:
    rows = []
    for one in found.findings:
        stated, expected = one.stated, one.stated.expected / 100
        interval = None if one.score is None else one.score.interval
        rows.append(
            (
                f"{stated.arm} minus {stated.against}",
                points(expected) if stated.margin is None else f"within {stated.margin:g}",
                "" if one.score is None else points(one.score.mean),
                _interval(interval),
                "" if interval is None else "yes" if interval[0] <= expected <= interval[1] else "no",
                *("" if p is None else f"{p:.4f}" if p >= 0.0001 else "<0.0001" for p in (one.p, one.holm)),
                f"{one.seeds} of {one.planned}" if one.seeds < one.planned else str(one.seeds),
                one.verdict,
                stated.why,
            )
        )
    first = ("hypothesis", "expected", "found", "95 %", "expected in it")
    score = "mean over call shapes" if found.by_shape else "success"
    title = f"**Hypotheses** ({found.set_name}, {score}; percent points)"
    lines = _section(title, (*first, "p", "Holm's p", "n seeds", "conclusion", "why"), rows)
    return lines + [line for sentence in rule(found) for line in (sentence, "")]


def rule(findings: Findings) -> list[str]:
    """Return the sentences of a report that say how its conclusions were reached, and what they do not cover."""
    each = findings.findings
    drawn = "seeds, start states and functions"
    sentences = [
        f"{len(each)} {'hypothesis was' if len(each) == 1 else 'hypotheses were'} written down; Holm's correction is "
        "for all of them, run or not. p is two-sided, of the paired t test over seeds: it covers other seeds, not "
        f"other tasks. 95 % covers other {drawn}, so other tasks; it is not corrected for the number of hypotheses. "
        f"A difference is shown where Holm's p is below {LEVEL} and the interval excludes zero on the expected side; "
        "opposite shown: on the other side; difference shown: none was expected. There is no conclusion before all "
        "seeds are there."
    ]
    if any(one.stated.margin is not None for one in each):
        sentences.append("Equality is shown where the whole of 95 % is within the margin, whatever p is.")
    plain = [one.stated for one in each if one.score and one.score.interval and not one.functions_drawn]
    if plain:
        names = ", ".join(f"{one.arm} minus {one.against}" for one in plain)
        sentences.append(f"95 % without functions, as call shapes are not known: {names}.")
    if findings.other_results or findings.other_openings:
        sentences.append(
            f"**Written down before?** {findings.other_results} results were made, and the held-out sets accessed "
            f"{findings.other_openings} times, by another text of the recipe than this one: its history says what was "
            "expected then."
        )
    return sentences


def _success(summary: StudySummary, set_name: str) -> list[str]:
    there = {name: cells[set_name] for name, cells in summary.cells.items() if set_name in cells}
    by_shape = any(one.macro is not None for one in there.values())
    metrics = list(dict.fromkeys(name for one in there.values() for name in one.metrics))
    rows = []
    for name, found in there.items():
        versus = found.differences.get(BASELINE)
        rows.append(
            (
                name,
                str(len(found.success.by_seed)),
                _percent(found.success.mean),
                _interval(found.success.interval),
                *_difference(versus),
                "" if found.extra_calls is None else f"{found.extra_calls:.2f}",
                *(_metric(found.metrics.get(one)) for one in metrics),
                *((*_macro(found), *_macro(versus)) if by_shape else ()),
            )
        )
    head = ("arm", "n seeds", "success", "95 %", f"minus {BASELINE}", "95 %", "t", "by seed")
    shaped = ("by shape", "95 %", f"minus {BASELINE}, by shape", "95 %") if by_shape else ()
    head = (*head, "extra calls per solved task", *metrics, *shaped)
    tasks, clusters = max(one.tasks for one in there.values()), max(one.clusters for one in there.values())
    errors = sum(one.infrastructure_errors for one in there.values())
    left_out = f", {errors} attempts with an infrastructure error left out" if errors else ""
    lines = _section(f"**{set_name}** ({tasks} tasks, {clusters} clusters{left_out})", head, rows)
    for name, found in there.items():
        for other, one in found.differences.items():
            if other == BASELINE:
                continue  # in the table
            mean, interval, t, by_seed = _difference(one)
            sentence = f"{mean} (95 % {interval}, t {t}; n = {len(one.success.by_seed)};"
            macro = f" by shape {' ('.join(_macro(one))});" if one.macro else ""
            lines += [f"{name} minus {other}: {sentence}{macro} {by_seed})", ""]
    return lines


def _difference(one: Comparison | None) -> tuple[str, str, str, str]:
    """Return a difference with its two intervals, and by seed."""
    if one is None:
        return "", "", "", ""
    rate = one.success
    by_seed = ", ".join(f"{seed}: {points(value)}" for seed, value in rate.by_seed.items())
    return points(rate.mean), _interval(rate.interval), _interval(rate.t_interval), by_seed


def _metric(one: Estimate | None) -> str:
    """Return a metric in its own unit and, where it is known, its interval."""
    if one is None:
        return ""
    ends = "" if one.interval is None else f" ({one.interval[0]:.3g} to {one.interval[1]:.3g})"
    return f"{one.mean:.3g}{ends}"


def _macro(one: Comparison | None) -> tuple[str, str]:
    """Return the mean over call shapes, of a difference with its sign, and its interval."""
    if one is None or one.macro is None:
        return "", ""
    mean = points(one.macro.mean)
    return mean.removeprefix("+") if isinstance(one, Cell) else mean, _interval(one.macro.interval)


def _course(arms: Mapping[str, ArmFacts]) -> list[str]:
    rows = [
        (
            name,
            " ".join("-" if success is None else _percent(success) for success in facts.successes),
            " ".join(f"{sum(sum(one.signals.values()) for one in each) / len(each):.0f}" for each in facts.rounds),
            " ".join(f"{sum(one.admitted for one in each) / len(each):.0f}" for each in facts.rounds),
            *map(_share, (facts.acceptance, facts.in_tasks, facts.in_training, facts.evolution_share)),
        )
        for name, facts in arms.items()
        if facts.rounds
    ]
    counts = ("arm", "dev set by round", "signals by round", "admitted by round")
    shares = ("acceptance", "functions in D_t", "functions trained on", "evolution's share (scripted roles)")
    return _section("**Course** (means over seeds; percent where not counts)", (*counts, *shares), rows)


def _signals(arms: Mapping[str, ArmFacts]) -> list[str]:
    """Return the shares of the kinds among an arm's marks, beside those of the paper."""
    rows = []
    for name, facts in arms.items():
        counts = [facts.marks[kind] for kind in SignalKind]
        if sum(counts):
            rows.append((name, f"{sum(counts):,}", *(_percent(count / sum(counts)) for count in counts)))
    for place, which in enumerate(("first", "second") if rows else ()):
        shares = (KINDS[kind].paper for kind in SignalKind)
        rows.append(
            (f"CoEvolve's figure 4, {which} benchmark", "", *(f"{one[place]:.1f}" if one else "" for one in shares))
        )
    head = ("arm", "marks", *(f"{kind} %" for kind in SignalKind))
    return _section("**Signals** (marks on trajectories, in all rounds of all seeds)", head, rows)


def _spending(arms: Mapping[str, ArmFacts]) -> list[str]:
    """Return the costs of each arm, without a column of which no arm has any."""
    spent = {
        words: {name: [count(one) for one in facts.trained] for name, facts in arms.items()}
        for words, count in BUDGETS.items()
    }
    columns = {words: by_arm for words, by_arm in spent.items() if any(map(any, by_arm.values()))}
    rows = [
        (
            name,
            facts.description,
            f"{len(facts.headers)} of {facts.planned}",
            *(_range(by_arm[name]) for by_arm in columns.values()),
            f"{max(one.measured.wall_seconds for one in facts.headers):.0f}",
        )
        for name, facts in arms.items()
    ]
    sentence = "**Budgets** (of each seed; seconds of a run that was stopped are of its last attempt)"
    return _section(sentence, ("arm", "what it is", "seeds", *columns, "wall s, most"), rows)


def _notes(mode: Mode, summary: StudySummary) -> list[str]:
    notes = [STATISTICS, *_labels(summary.arms)]
    notes += [f"unequal budget: {sentence}" for sentence in unequal_budgets(summary.arms, BASELINE)]
    if mode == "test":
        commits = len({one.commit for one in summary.openings})
        notes.append(f"the held-out sets were accessed {len(summary.openings)} times ({commits} commits)")
    else:
        notes.append("development sets and seeds: settings were chosen on them, so they prove nothing")
    if summary.outdated:
        notes.append(f"left out, because they are of another recipe: {', '.join(summary.outdated)}")
    if summary.missing:
        notes.append(f"not there: {', '.join(summary.missing)}")
    return notes


def _labels(arms: Mapping[str, ArmFacts]) -> list[str]:
    """Return the labels of the figures, each with its arms unless all trained arms have it."""
    trained = [name for name, facts in arms.items() if facts.rounds]
    sentence = []
    found = {name: [label for one in facts.headers for label in one.labels] for name, facts in arms.items()}
    for label in dict.fromkeys(label for labels in found.values() for label in labels):
        names = [name for name in trained if label in found[name]]
        sentence.append(label if names == trained else f"{', '.join(names)}: {label}")
    return sentence


def points(rate: float) -> str:
    """Return a difference of two rates in percent points, with its sign."""
    return f"{round(100 * rate, 1) + 0.0:+.1f}"  # never -0.0


def _of_gate(value: float | None) -> str:
    return _share(None if value is None else value / 100)


def _share(rate: float | None) -> str:
    return "" if rate is None else _percent(rate)


def _percent(rate: float) -> str:
    return points(rate).removeprefix("+")


def _interval(interval: Interval | None) -> str:
    return "" if interval is None else f"{_percent(interval[0])} to {_percent(interval[1])}"


def _range(values: Sequence[int]) -> str:
    """Return the smallest and the largest value, one where they are equal."""
    ends = (min(values), max(values)) if values else ()
    return "-".join(dict.fromkeys(f"{value:,}" for value in ends))
