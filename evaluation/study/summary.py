"""Summarises the finished arms of a study: rates and differences by evaluation set, budgets, curves and costs."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from environments.base import Record
from evaluation.settings import LOOKUP
from evaluation.study.comparisons import Cell, cell, difference
from evaluation.study.figures import ArmFacts, arm_facts, unequal_budgets
from evaluation.study.gates import GateFinding, gate_findings
from evaluation.study.hypotheses import Findings, findings_of, lookup_row
from evaluation.study.plan import Place, Starts, check_start, current_result
from evaluation.study.recipe import BASELINE, FIRST_SEED, RESERVED, Arm, Mode, Study
from evaluation.study.records import ArmHeader, ArmResult, result_seeds
from evaluation.test_access import StudyAccess
from memory.jsonl import read_existing

STATISTICS = (
    "greedy decoding, one attempt per task; differences are paired by seed and task; 95 %: from standard errors that "
    "are robust to what tasks of a start state or of a function share, and from those over seeds (a task belongs to "
    "the rarest function of its reference), by the method of benchmarks/intervals.md; t: Student's t over seeds alone"
)


class StudyFacts(Record):
    """The part of summary.json beside the arms' cells; its keys are those of committed summaries.

    ``arms``: budgets, curves and costs. ``missing``: arms and seeds of the recipe without a result of the recipe as it
    is now. ``outdated``: those of them with a result of another recipe. ``unequal_budgets``: where arms of a seed
    differ in what they should share. ``panels``: hashes of the evaluation sets. ``openings``: every line of the test
    access log. ``hypotheses``: what came of those of the recipe, ``gates`` of its demands; written where it has any.
    """

    mode: Mode
    recipe: str
    limit: int | None
    statistics: str
    panels: dict[str, str]
    arms: dict[str, ArmFacts]
    missing: tuple[str, ...]
    outdated: tuple[str, ...]
    unequal_budgets: tuple[str, ...]
    openings: tuple[StudyAccess, ...]
    hypotheses: Findings | None = Field(None, exclude_if=operator.not_)
    gates: tuple[GateFinding, ...] = Field((), exclude_if=operator.not_)


class StudySummary(Record):
    """The whole report: cells by arm and evaluation set, and the facts of the study."""

    cells: dict[str, dict[str, Cell]]
    facts: StudyFacts

    def as_json(self) -> dict[str, Any]:
        """Return ``{arm: {evaluation set: cell}}`` with the facts under "study"."""
        arms = {
            arm: {set_name: one.model_dump(mode="json") for set_name, one in set_names.items()}
            for arm, set_names in self.cells.items()
        }
        return arms | {RESERVED: self.facts.model_dump(mode="json")}


def summarise(study: Study, mode: Mode, place: Place) -> StudySummary:
    """Summarise all results of a mode. Raises UnequalStart, and InputError for a corrupt result."""
    results = {arm.name: _results(study, mode, place, arm) for arm in study.recipe.arms}
    headers = {name: {seed: one.header for seed, one in by_seed.items()} for name, by_seed in results.items()}
    first: Starts = {}
    for header in (one for by_seed in headers.values() for one in by_seed.values()):
        check_start(study, first, header)
    there = {name: by_seed for name, by_seed in results.items() if by_seed}
    set_names = study.recipe.set_names(mode)
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
    compared = _with_lookups(there)
    cells = {name: _cells(study, compared, name, set_names) for name in compared}
    accesses = tuple(read_existing(place.access_log, StudyAccess))
    facts = StudyFacts(
        mode=mode,
        recipe=study.sha256,
        limit=study.recipe.limit,
        statistics=STATISTICS,
        panels={name: study.set_hashes[name] for name in set_names},
        arms=arms,
        missing=tuple(f"{name}-{seed}" for name, seed in missing),
        outdated=tuple(f"{name}-{seed}" for name, seed in missing if place.result(name, seed).exists()),
        unequal_budgets=unequal_budgets(arms, BASELINE),
        openings=accesses,
        hypotheses=_findings(study, mode, cells, headers, accesses) if study.recipe.hypotheses else None,
        gates=gate_findings(
            study.recipe.gates,
            {name: by_set[set_names[0]] for name, by_set in cells.items() if set_names[0] in by_set},
            arms,
            _planned(study, mode),
        ),
    )
    return StudySummary(cells=cells, facts=facts)


def _planned(study: Study, mode: Mode) -> dict[str, int]:
    """Return the number of seeds of each arm before which no gate has a state: in development one is enough."""
    return {arm.name: arm.seeds if mode == "test" else 1 for arm in study.recipe.arms}


def _findings(
    study: Study,
    mode: Mode,
    cells: Mapping[str, Mapping[str, Cell]],
    headers: Mapping[str, Mapping[int, ArmHeader]],
    accesses: Sequence[StudyAccess],
) -> Findings:
    """Return what came of the hypotheses on the mode's first evaluation set."""
    recipe, set_name = study.recipe, study.recipe.set_names(mode)[0]
    there = {name: by_set[set_name] for name, by_set in cells.items() if set_name in by_set}
    differences = [there[one.arm].differences.get(one.row) if one.arm in there else None for one in recipe.hypotheses]
    planned = [min(recipe.arm(name).seeds for name in one.names) for one in recipe.hypotheses]
    others = [
        f"{name}-{seed}"
        for name in dict.fromkeys(name for one in recipe.hypotheses for name in one.names)
        for seed, header in sorted(headers[name].items())
        if header.study != study.sha256
    ]
    opened = [one for one in accesses if one.recipe != study.sha256]
    by_shape = recipe.score == "shapes" and any(one is not None and one.macro is not None for one in differences)
    held = mode == "test"  # development is where recipes change
    return Findings(
        panel=set_name,
        by_shape=by_shape,
        findings=findings_of(recipe.hypotheses, differences, planned, by_shape=recipe.score == "shapes"),
        other_results=tuple(others) if held else (),
        other_openings=len(opened) if held else 0,
    )


def _results(study: Study, mode: Mode, place: Place, arm: Arm) -> dict[int, ArmResult]:
    """Return the arm's results in this mode by seed, those of the recipe as it is now."""
    found = {}
    for seed in result_seeds(place.raw, arm.name):
        if (seed >= FIRST_SEED["dev"]) == (mode == "dev"):
            result = current_result(study, mode, place, arm, seed)
            if result is not None:
                found[seed] = result
    return found


def _with_lookups(results: Mapping[str, Mapping[int, ArmResult]]) -> dict[str, dict[int, ArmResult]]:
    """Return the results of each arm's policy, and after each those of the lookup from its tasks, where scored."""
    found: dict[str, dict[int, ArmResult]] = {}
    for name, by_seed in results.items():
        for row, baseline in ((name, ""), (lookup_row(name), LOOKUP)):
            parts = {seed: one.of(baseline) for seed, one in by_seed.items()}
            if any(parts.values()):
                found[row] = {seed: part for seed, part in parts.items() if part is not None}
    return found


def _cells(
    study: Study, results: Mapping[str, Mapping[int, ArmResult]], name: str, set_names: Sequence[str]
) -> dict[str, Cell]:
    """Return the arm's cell on each set, with its differences: to the baseline first, then to those of ``compare``."""
    cells = {}
    others = [BASELINE, *(other for arm, other in study.recipe.compared if arm == name), lookup_row(name)]
    others = [other for other in dict.fromkeys(others) if other in results and other != name]
    for set_name in set_names:
        metrics = study.benchmark.metrics
        found = cell(results[name], set_name, metrics)
        if found is not None:
            pairs = {other: difference(results[name], results[other], set_name, metrics) for other in others}
            differences = {other: one for other, one in pairs.items() if one is not None}
            cells[set_name] = found.model_copy(update={"differences": differences})
    return cells
