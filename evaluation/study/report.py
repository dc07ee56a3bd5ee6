"""The report of a study: summary.json, a table and plots, from the results that are there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from environments.base import Record
from evaluation.call_shapes import Shape, panel_shapes
from evaluation.study.comparisons import Cell, Comparison, Interval, Rest, cell, deciding_function, difference
from evaluation.study.figures import HEAD, ArmFacts, arm_facts, call_shares, seal_rows, unequal_budgets
from evaluation.study.plan import Place, check_start, current_result
from evaluation.study.recipe import BASELINE, FIRST_SEED, RESERVED, Arm, Mode, Study
from evaluation.study.records import ArmHeader, ArmResult
from evaluation.test_access import Opening, read_openings
from memory.jsonl import write_atomically

# MERGED evaluation.study_table: """The report of a study as Markdown: success by panel, differences by seed, and what each arm spent."""

LIMIT_SECONDS = 300.0
"""CPU seconds that one arm and seed is meant to take at most."""


def study_table(summary: StudySummary, reading: str = "") -> str:
    """All tables, with what a reader must know above and below them. Rates and differences are in percent points.

    ``reading`` is what a person says about the results.
    """
    facts = summary.facts
    lines = [f"<!-- made by python -m evaluation.study, mode {facts.mode}, recipe {facts.recipe[:12]} -->", ""]
    lines += [reading.strip(), ""] if reading.strip() else []
    if facts.missing:
        told = f"{len(facts.missing)} arms and seeds of the recipe are not there yet"
        lines += [f"**Partial**: {told}; n in each row is what is.", ""]
    if facts.limit is not None:
        lines += [f"Of each panel its first {facts.limit} tasks only.", ""]
    for panel in dict.fromkeys(name for cells in summary.cells.values() for name in cells):
        lines += _success(summary, panel)
    lines += _course(facts.arms)
    lines += _seal(facts.arms)
    lines += _spending(facts.arms, facts.environment_calls)
    lines += _notes(summary)
    return "\n".join(lines).rstrip() + "\n"


def _success(summary: StudySummary, panel: str) -> list[str]:
    rows = []
    for name, cells in summary.cells.items():
        found = cells.get(panel)
        if found is None:
            continue
        versus = found.difference_to_grpo
        rows.append(
            (
                name,
                str(found.seeds),
                _percent(found.mean),
                _interval(_widest(found)),
                _points(versus),
                _interval(_widest(versus) if versus else None),
                _interval(versus.t_interval if versus else None),
                _rest(found.without, "{:.1f}"),
                _rest(versus.without if versus else None, "{:+.1f}"),
                _by_seed(versus),
                "" if found.extra_calls is None else f"{found.extra_calls:.2f}",
            )
        )
    if not rows:
        return []
    function = summary.facts.deciding_functions.get(panel.partition("/")[0])
    left_out = f"success without {function}" if function else "success without one function"
    head = ("arm", "n seeds", "success", "95 %", f"minus {BASELINE}", "95 %", "t", left_out, f"minus {BASELINE}")
    sizes = _sizes(summary, panel)
    lines = [f"**{panel}** ({sizes})", "", *_table((*head, "by seed", "extra calls a solved task"), rows), ""]
    for name, cells in summary.cells.items():
        for other, one in cells[panel].differences.items() if panel in cells else ():
            rest = f"; without {one.without.function} {_rest(one.without, '{:+.1f}')}" if one.without else ""
            told = (
                f"{_points(one)} (95 % {_interval(_widest(one))}, t {_interval(one.t_interval)}; n = {one.seeds}{rest};"
            )
            lines += [f"{name} minus {other}: {told} {_by_seed(one)})", ""]
    return lines


def _sizes(summary: StudySummary, panel: str) -> str:
    cells: list[Cell] = [cells[panel] for cells in summary.cells.values() if panel in cells]
    errors = sum(one.infrastructure_errors for one in cells)
    told = f"{max(one.tasks for one in cells)} tasks, {max(one.clusters for one in cells)} clusters"
    return told + (f", {errors} attempts with an infrastructure error left out" if errors else "")


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
        "dev panel by round",
        "signals by round",
        "admitted by round",
        "acceptance",
        "functions in D_t",
        "functions trained on",
        "evolution's share (scripted roles)",
    )
    return ["**Course** (means over seeds; percent where not counts)", "", *_table(head, rows), ""]


def _seal(arms: dict[str, ArmFacts]) -> list[str]:
    rows = list(seal_rows({name: facts.seal for name, facts in arms.items()}))
    told = (
        "**SEAL** (all rounds and seeds of an arm together; an error is recovered from by a later call of its turn; "
        "hints answer some kinds of errors and not others, so that what they are worth is read between arms)"
    )
    return [told, "", *_table(HEAD, rows), ""] if rows else []


def _spending(arms: dict[str, ArmFacts], calls: dict[str, float]) -> list[str]:
    rows = []
    for name, facts in arms.items():
        budgets = list(facts.budgets.values())
        cpu = list(facts.cpu_seconds.values())
        rows.append(
            (
                name,
                facts.description,
                f"{len(facts.seeds)} of {facts.planned}",
                _range(one.rollouts for one in budgets),
                _range(one.optimizer_steps for one in budgets),
                _range(one.environment_calls for one in budgets),
                _percent(calls[name]) if name in calls else "",
                f"{min(cpu):.0f}-{max(cpu):.0f}" + (" (!)" if max(cpu) > LIMIT_SECONDS else ""),
                f"{max(facts.wall_seconds.values()):.0f}",
            )
        )
    head = ("arm", "what it is", "seeds", "rollouts", "optimizer steps", "environment calls", f"% of {BASELINE}'s")
    table = _table((*head, "CPU s", "wall s, most"), rows)
    return ["**Budgets** (a seed)", "", *table, ""] if rows else []


def _notes(summary: StudySummary) -> list[str]:
    facts = summary.facts
    notes = [facts.statistics, *_labels(facts.arms)]
    notes += [f"unequal budget: {told}" for told in facts.unequal_budgets]
    if facts.other_prompts:
        notes.append(f"first round with other prompts than {BASELINE}'s: {', '.join(facts.other_prompts)}")
    held = [opening for opening in facts.openings if facts.mode == "test"]
    if facts.mode == "test":
        notes.append(f"the test panels were opened {len(held)} times ({len({one.commit for one in held})} commits)")
    else:
        notes.append("development panels and seeds: settings were chosen on them, so they prove nothing")
    shares: dict[str, list[tuple[float, float]]] = {}
    for one in facts.arms.values():
        for panel in facts.panels:
            shares.setdefault(panel, []).extend([one.shared_sequences[panel]] if panel in one.shared_sequences else [])
    for panel, found in shares.items():
        if found:
            initial, final = (_range((pair[i] * 100 for pair in found), "{:.0f}") for i in (0, 1))
            told = f"{initial} % in D_0, {final} % in the last D_t, by arm"
            notes.append(f"value-free call sequences of {panel} that training tasks have too: {told}")
    if facts.outdated:
        notes.append(f"left out, because they are of another recipe: {', '.join(facts.outdated)}")
    if facts.missing:
        notes.append(f"not there: {', '.join(facts.missing)}")
    return [f"- {note}" for note in notes]


def _labels(arms: dict[str, ArmFacts]) -> list[str]:
    """What figures are figures of, with the arms that a label is of unless that is all that were trained."""
    trained = [name for name, facts in arms.items() if facts.curve]
    told = []
    for label in dict.fromkeys(label for one in arms.values() for label in one.labels):
        names = [name for name in trained if label in arms[name].labels]
        told.append(label if names == trained else f"{', '.join(names)}: {label}")
    return told


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]


def _percent(rate: float) -> str:
    return f"{round(rate * 100, 1) + 0.0:.1f}"  # never -0.0


def _points(one: Comparison | None) -> str:
    return "" if one is None else f"{one.mean * 100:+.1f}"


def _widest(one: Comparison) -> Interval | None:
    """The interval that resamples functions too; without it, the one that resamples start states for all seeds."""
    return one.function_interval or one.crossed_interval


def _rest(rest: Rest | None, form: str) -> str:
    """The mean without one function, and its t interval."""
    if rest is None:
        return ""
    ends = f" ({_interval(rest.t_interval)})" if rest.t_interval and "+" in form else ""
    return form.format(round(rest.mean * 100, 1) + 0.0) + ends


def _interval(interval: Interval | None) -> str:
    return "" if interval is None else f"{_percent(interval[0])} to {_percent(interval[1])}"


def _by_seed(one: Comparison | None) -> str:
    return "" if one is None else ", ".join(f"{seed}: {value * 100:+.1f}" for seed, value in one.by_seed.items())


def _range(values: Iterable[float], form: str = "{:,.0f}") -> str:
    numbers = list(values)
    if not numbers:
        return ""
    low, high = form.format(min(numbers)), form.format(max(numbers))
    return low if low == high else f"{low}-{high}"


STATISTICS = (
    "greedy decoding, one attempt a task; differences are paired by seed and task; 95 %: function_interval, a "
    "bootstrap that draws seeds, start states and functions with replacement, 10,000 replicates (a task belongs to the "
    "rarest function of its reference); interval (seeds outside, start states inside) and crossed_interval (one draw "
    "of start states for all seeds) do not resample functions; t: t_interval, Student's t over seeds"
)
READING_FILE = "reading.md"
"""What a person says about the results of the study itself: it goes above the tables."""
EVOLUTION_LABEL = "evolution's share, scripted roles"


class StudyFacts(Record):
    """What summary.json holds beside the arms.

    ``arms``: budgets, curves and costs. ``missing``: arms and seeds of the recipe without a result of the recipe as it
    is. ``outdated``: those of them with a result of another recipe. ``unequal_budgets`` and ``other_prompts``: where
    arms of a seed differ in what they should share. ``deciding_functions``: by panel the function whose tasks move the
    differences to the baseline most. ``environment_calls``: over the baseline's. ``openings``: of
    held-out panels, all that were ever noted.
    """

    mode: Mode
    recipe: str
    limit: int | None
    statistics: str
    panels: dict[str, str]
    deciding_functions: dict[str, str] = {}
    arms: dict[str, ArmFacts]
    missing: tuple[str, ...]
    outdated: tuple[str, ...]
    unequal_budgets: tuple[str, ...]
    environment_calls: dict[str, float]
    other_prompts: tuple[str, ...]
    openings: tuple[Opening, ...]
    evolution_share: dict[str, float]
    evolution_share_label: str = EVOLUTION_LABEL


class StudySummary(Record):
    """The whole report: cells by arm and panel, and the facts of the study."""

    cells: dict[str, dict[str, Cell]]
    facts: StudyFacts

    def as_json(self) -> dict[str, Any]:
        """``{arm: {panel: cell}}`` with the facts under "study"."""
        arms = {
            arm: {panel: one.model_dump(mode="json") for panel, one in panels.items()}
            for arm, panels in self.cells.items()
        }
        return arms | {RESERVED: self.facts.model_dump(mode="json")}


def write_report(study: Study, mode: Mode, place: Place) -> str:
    """Write summary, table and plots of all results of a mode; returns the table.

    Development has files of its own (``development.json``, ...). Raises UnequalStart, and InputError for a corrupt
    result.
    """
    from evaluation.study.plots import study_plots
    from evaluation.study.report import study_table

    summary = summarise(study, mode, place)
    said = place.output / READING_FILE
    table = study_table(summary, said.read_text(encoding="utf-8") if mode == "test" and said.exists() else "")
    stem = "summary" if mode == "test" else "development"
    text = json.dumps(summary.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(place.output / f"{stem}.json", [text.encode()])
    write_atomically(place.output / f"{stem}.md", [table.encode()])
    for name, svg in study_plots(summary).items():
        write_atomically(place.output / "plots" / f"{stem}-{name}.svg", [svg.encode()])
    return table


def summarise(study: Study, mode: Mode, place: Place) -> StudySummary:
    """The report as a record. Raises UnequalStart, and InputError for a corrupt result."""
    results = {arm.name: _results(study, mode, place, arm) for arm in study.recipe.arms}
    headers = {name: {seed: one.header for seed, one in by_seed.items()} for name, by_seed in results.items()}
    first: dict[int, ArmHeader] = {}
    for header in (one for by_seed in headers.values() for one in by_seed.values()):
        check_start(first, header)
    there = {name: by_seed for name, by_seed in results.items() if by_seed}
    panels = study.recipe.panel_names(mode)
    arms = {
        arm.name: arm_facts(arm.description, arm.seeds, headers[arm.name])
        for arm in study.recipe.arms
        if arm.name in there
    }
    missing = [
        (arm.name, seed)
        for arm in study.recipe.arms
        for seed in range(FIRST_SEED[mode], FIRST_SEED[mode] + arm.seeds)
        if seed not in results[arm.name]
    ]
    shapes = {panel: _shapes_of(panel, place, there) for panel in panels}
    deciding = _deciding(there, shapes)
    facts = StudyFacts(
        mode=mode,
        recipe=study.sha256,
        limit=study.recipe.limit,
        statistics=STATISTICS,
        panels={name: study.panels[name] for name in panels},
        deciding_functions=deciding,
        arms=arms,
        missing=tuple(f"{name}-{seed}" for name, seed in missing),
        outdated=tuple(f"{name}-{seed}" for name, seed in missing if place.result(name, seed).exists()),
        unequal_budgets=unequal_budgets(arms, BASELINE),
        environment_calls=call_shares(arms, BASELINE),
        other_prompts=_other_prompts(headers),
        openings=tuple(read_openings(place.openings)),
        evolution_share={name: one.evolution_share for name, one in arms.items() if one.evolution_share is not None},
    )
    known = {
        panel: (shapes[panel.partition("/")[0]], deciding.get(panel.partition("/")[0]))
        for panel in study.recipe.reported(mode)
    }
    cells = {name: _cells(study, there, name, known) for name in there}
    return StudySummary(cells=cells, facts=facts)


def _results(study: Study, mode: Mode, place: Place, arm: Arm) -> dict[int, ArmResult]:
    """Every result of the arm in this mode, by seed, that is of the recipe as it is."""
    found = {}
    for path in sorted((place.output / "raw").glob(f"{arm.name}-*.jsonl")):
        suffix = path.stem.removeprefix(f"{arm.name}-")
        if suffix.isdecimal() and (int(suffix) >= FIRST_SEED["dev"]) == (mode == "dev"):
            result = current_result(study, mode, place, arm, int(suffix))
            if result is not None:
                found[int(suffix)] = result
    return dict(sorted(found.items()))


def _shapes_of(panel: str, place: Place, results: Mapping[str, Mapping[int, ArmResult]]) -> Mapping[str, Shape]:
    """The call shapes of a panel's tasks; of a held-out panel only where results of an opening are there."""
    return panel_shapes(panel, place.openings) if results else {}


def _deciding(
    results: Mapping[str, Mapping[int, ArmResult]], shapes: Mapping[str, Mapping[str, Shape]]
) -> dict[str, str]:
    """By panel the function that moves the differences to the baseline most, of the panels that have one."""
    others = [by_seed for name, by_seed in results.items() if name != BASELINE]
    if BASELINE not in results:
        return {}
    found = {panel: deciding_function(others, results[BASELINE], panel, known) for panel, known in shapes.items()}
    return {panel: name for panel, name in found.items() if name is not None}


def _cells(
    study: Study,
    results: Mapping[str, Mapping[int, ArmResult]],
    name: str,
    panels: Mapping[str, tuple[Mapping[str, Shape], str | None]],
) -> dict[str, Cell]:
    """The arm's cell on each panel; ``panels`` gives their call shapes and the function to leave out."""
    cells = {}
    others = [other for arm, other in study.recipe.compare if arm == name and other in results]
    for panel, known in panels.items():
        found = cell(results[name], panel, *known)
        if found is None:
            continue
        to_grpo = None
        if name != BASELINE and BASELINE in results:
            to_grpo = difference(results[name], results[BASELINE], panel, *known)
        compared = {other: difference(results[name], results[other], panel, *known) for other in others}
        cells[panel] = found.model_copy(
            update={
                "difference_to_grpo": to_grpo,
                "differences": {other: one for other, one in compared.items() if one is not None},
            }
        )
    return cells


def _other_prompts(headers: Mapping[str, Mapping[int, ArmHeader]]) -> tuple[str, ...]:
    """Arms and seeds whose first round drew other prompts, or in another order, than the baseline's."""
    base = {seed: one.prompt_order for seed, one in headers.get(BASELINE, {}).items()}
    return tuple(
        f"{name}-{seed}"
        for name, by_seed in headers.items()
        for seed, one in by_seed.items()
        if one.prompt_order is not None and base.get(seed) not in (None, one.prompt_order)
    )
