"""Summarises the finished arms of a study: their cells by evaluation set, figures, hypotheses and gates.

A cell is an arm's success on an evaluation set, with its paired differences to other arms, each with intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from environments.base import InputError
from evaluation.settings import LOOKUP
from evaluation.study.claims import lookup_row
from evaluation.study.findings import Cell, Findings, GateFinding, cell, difference, findings_of, gate_findings
from evaluation.study.recipe import BASELINE, FIRST_SEED, Arm, Mode, Study
from evaluation.study.records import ArmFacts, ArmHeader, ArmResult, Place, current_result, result_seeds
from evaluation.test_access import Access
from memory.jsonl import read_existing


class StudySummary(NamedTuple):
    """What a report is of: cells by arm and evaluation set, and figures by arm.

    ``missing``: arms and seeds of the recipe without a result of the recipe as it is now. ``outdated``: those of them
    with a result of another recipe. ``openings``: every line of the test access log. ``hypotheses``: what came of those
    of the recipe, ``gates`` of its demands; None and empty where it has none.
    """

    cells: Mapping[str, Mapping[str, Cell]]
    arms: Mapping[str, ArmFacts]
    missing: tuple[str, ...]
    outdated: tuple[str, ...]
    openings: tuple[Access, ...]
    hypotheses: Findings | None
    gates: tuple[GateFinding, ...]


def summarise(study: Study, mode: Mode, place: Place) -> StudySummary:
    """Summarise all results of a mode.

    Raises InputError for a corrupt result, and where arms of one seed did not begin alike.
    """
    results = {arm.name: _results(study, mode, place, arm) for arm in study.recipe.arms}
    results = {name: by_seed for name, by_seed in results.items() if by_seed}
    set_names = study.recipe.set_names(mode)
    arms = {
        name: ArmFacts(arm.description, arm.seeds, tuple(one.header for one in by_seed.values()))
        for name, by_seed in results.items()
        for arm in [study.recipe.arm(name)]
    }
    _check_starts(study, [header for facts in arms.values() for header in facts.headers])
    missing = [
        (arm.name, seed)
        for arm in study.recipe.arms
        for seed in range(FIRST_SEED[mode], FIRST_SEED[mode] + arm.seeds)
        if seed not in results.get(arm.name, {})
    ]
    compared = _with_lookups(results)
    cells = {name: _cells(study, compared, name, set_names) for name in compared}
    main = {name: by_set[set_names[0]] for name, by_set in cells.items() if set_names[0] in by_set}
    accesses = tuple(read_existing(place.access_log, Access))
    # In development one seed is enough for a gate.
    planned = {arm.name: arm.seeds if mode == "test" else 1 for arm in study.recipe.arms}
    return StudySummary(
        cells=cells,
        arms=arms,
        missing=tuple(f"{name}-{seed}" for name, seed in missing),
        outdated=tuple(f"{name}-{seed}" for name, seed in missing if place.result(name, seed).exists()),
        openings=accesses,
        hypotheses=_findings(study, mode, main, arms, accesses) if study.recipe.hypotheses else None,
        gates=gate_findings(study.recipe.gates, main, arms, planned),
    )


def _check_starts(study: Study, headers: Sequence[ArmHeader]) -> None:
    """Raise InputError where arms of one seed did not begin with the same D_0 and policy.

    Arms that change what decides D_0 (its number of tasks, the environment) are compared with their equals alone. A
    policy that all seeds share needs no check: it is part of the recipe's hash.
    """
    first: dict[tuple[int, str], ArmHeader] = {}
    for header in headers:
        if header.initial_tasks is None:
            continue
        arm = study.recipe.arm(header.arm)
        known = first.setdefault((header.seed, study.start_of(arm)), header)
        alike = study.stated_policy(arm) == study.stated_policy(study.recipe.arm(known.arm))
        if alike and known.initial_policy != header.initial_policy:
            raise InputError(
                f"seed {header.seed}: {header.arm} and {known.arm} began with different policies: remove the older "
                "result"
            )
        if known.initial_tasks != header.initial_tasks:
            raise InputError(
                f"seed {header.seed}: D_0 of {header.arm} ({header.initial_tasks[:12]}) is not that of {known.arm} "
                f"({str(known.initial_tasks)[:12]}): the code changed between them, remove the older result"
            )


def _findings(
    study: Study,
    mode: Mode,
    cells: Mapping[str, Cell],
    arms: Mapping[str, ArmFacts],
    accesses: Sequence[Access],
) -> Findings:
    """Return what came of the hypotheses on the mode's first evaluation set."""
    recipe = study.recipe
    differences = [cells[one.arm].differences.get(one.row) if one.arm in cells else None for one in recipe.hypotheses]
    planned = [min(recipe.arm(name).seeds for name in one.names) for one in recipe.hypotheses]
    named = dict.fromkeys(name for one in recipe.hypotheses for name in one.names if name in arms)
    others = [header for name in named for header in arms[name].headers if header.study != study.sha256]
    held = mode == "test"  # development is where recipes change
    by_shape = recipe.score == "shapes"
    return Findings(
        set_name=recipe.set_names(mode)[0],
        by_shape=by_shape and any(one is not None and one.macro is not None for one in differences),
        findings=findings_of(recipe.hypotheses, differences, planned, by_shape=by_shape),
        other_results=len(others) if held else 0,
        other_openings=sum(one.recipe != study.sha256 for one in accesses) if held else 0,
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
    cells, metrics = {}, study.benchmark.metrics
    others = [BASELINE, *(other for arm, other in study.recipe.compared if arm == name), lookup_row(name)]
    others = [other for other in dict.fromkeys(others) if other in results and other != name]
    for set_name in set_names:
        pairs = {other: difference(results[name], results[other], set_name, metrics) for other in others}
        differences = {other: one for other, one in pairs.items() if one is not None}
        found = cell(results[name], set_name, metrics, differences)
        if found is not None:
            cells[set_name] = found
    return cells
