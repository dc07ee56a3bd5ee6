"""Summarises the finished arms of a study: their cells by evaluation set, figures, hypotheses and gates.

A cell is an arm's success on an evaluation set, with its paired differences to other arms, each with intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from environments.base import InputError
from environments.metrics import Metric, Ratio, success
from evaluation.outcomes import Interval, TaskOutcome, attempted, evaluated, metric_interval
from evaluation.settings import LOOKUP
from evaluation.statistics import macro_mean, t_interval
from evaluation.study.gates import GateFinding, gate_findings
from evaluation.study.hypotheses import Findings, findings_of, lookup_row
from evaluation.study.recipe import BASELINE, FIRST_SEED, Arm, Mode, Study
from evaluation.study.records import ArmFacts, ArmHeader, ArmResult, Place, current_result, result_seeds
from evaluation.test_access import Access
from memory.jsonl import read_existing

Attempts = Mapping[int, Sequence[TaskOutcome]]


class Estimate(NamedTuple):
    """A metric of an arm, or its paired difference to another arm's, in the metric's unit.

    ``by_seed`` has the seeds for which it is defined. ``interval``, 95 %, covers other seeds, start states and
    functions (``outcomes.metric_interval``), without functions where the tasks' call shapes are not known. It is None
    for a single seed and for a metric that is no quotient.
    """

    by_seed: Mapping[int, float]
    interval: Interval | None

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.by_seed.values())

    @property
    def t_interval(self) -> Interval | None:
        """Student's t over seeds, for these tasks; None for a single seed."""
        return t_interval(list(self.by_seed.values()))


@dataclass(frozen=True)
class Comparison:
    """An arm on one evaluation set, alone or minus another one.

    ``macro`` is the mean over call shapes, each counted once however many tasks have it; None where call shapes are not
    known. ``metrics`` are the benchmark's own by name.
    """

    success: Estimate
    macro: Estimate | None
    metrics: Mapping[str, Estimate]


@dataclass(frozen=True)
class Cell(Comparison):
    """An arm on one evaluation set.

    ``tasks`` and ``clusters`` are the set's; attempts with an infrastructure error are not evaluated. ``extra_calls``:
    mean calls beyond the reference's number of a solved task, None when none was solved or the number is unknown.
    ``differences`` are paired differences to other arms: the baseline, and those of the recipe's ``compare``.
    """

    tasks: int
    clusters: int
    infrastructure_errors: int
    extra_calls: float | None
    differences: Mapping[str, Comparison]


def cell(
    results: Mapping[int, ArmResult],
    set_name: str,
    metrics: Mapping[str, Metric] | None = None,
    differences: Mapping[str, Comparison] | None = None,
) -> Cell | None:
    """Return the success of one arm from its results by seed; None when it has none on the evaluation set ``set_name``.

    ``metrics`` are those of the set's benchmark.
    """
    attempts = {seed: _of_set(result, set_name) for seed, result in sorted(results.items())}
    attempts = {seed: outcomes for seed, outcomes in attempts.items() if evaluated(outcomes)}
    if not attempts:
        return None
    everything = [one for outcomes in attempts.values() for one in outcomes]
    solved = [one for one in evaluated(everything) if one.success]
    extra = [max(0, one.calls - one.reference_calls) for one in solved if one.reference_calls is not None]
    own = _compared(attempts, metrics or {})
    return Cell(
        own.success,
        own.macro,
        own.metrics,
        tasks=len({one.task_id for one in everything}),
        clusters=len({one.cluster for one in everything}),
        infrastructure_errors=len(everything) - len(evaluated(everything)),
        extra_calls=fmean(extra) if extra else None,
        differences=differences or {},
    )


def difference(
    arm: Mapping[int, ArmResult],
    other: Mapping[int, ArmResult],
    set_name: str,
    metrics: Mapping[str, Metric] | None = None,
) -> Comparison | None:
    """Return ``arm`` minus ``other`` by seed, over tasks that both were evaluated on; None without a seed of both."""
    left: dict[int, list[TaskOutcome]] = {}
    right: dict[int, list[TaskOutcome]] = {}
    for seed in sorted(set(arm) & set(other)):
        ours, theirs = _of_set(arm[seed], set_name), _of_set(other[seed], set_name)
        both = {one.task_id for one in evaluated(ours)} & {one.task_id for one in evaluated(theirs)}
        if both:
            left[seed] = [one for one in ours if one.task_id in both]
            right[seed] = [one for one in theirs if one.task_id in both]
    return _compared(left, metrics or {}, right) if left else None


def _compared(attempts: Attempts, metrics: Mapping[str, Metric], minus: Attempts | None = None) -> Comparison:
    """Return what the attempts are estimates of; a metric that is not defined for any seed is left out."""
    known = any(one.shape for outcomes in attempts.values() for one in outcomes)
    rate = _estimate(success, attempts, minus)
    assert rate is not None, "each seed has an attempt that was evaluated"
    found = {name: _estimate(metric, attempts, minus) for name, metric in metrics.items()}
    return Comparison(
        success=rate,
        macro=_estimate(success, attempts, minus, by_shape=True) if known else None,
        metrics={name: one for name, one in found.items() if one is not None},
    )


def _estimate(metric: Metric, attempts: Attempts, minus: Attempts | None, *, by_shape: bool = False) -> Estimate | None:
    """Return the metric over tasks, or success over call shapes; None where it is not defined for any seed."""
    values = {
        seed: _value(metric, outcomes, by_shape) - (_value(metric, minus[seed], by_shape) if minus else 0.0)
        for seed, outcomes in attempts.items()
    }
    by_seed = {seed: value for seed, value in values.items() if not math.isnan(value)}
    if not by_seed:
        return None
    interval = None
    if isinstance(metric, Ratio) and len(attempts) > 1:
        others = None if minus is None else [minus[seed] for seed in attempts]
        interval = metric_interval(metric, list(attempts.values()), others, by_shape=by_shape)
    return Estimate(by_seed, interval)


def _value(metric: Metric, outcomes: Sequence[TaskOutcome], by_shape: bool) -> float:
    tried = evaluated(outcomes)
    if by_shape:
        mean = macro_mean([(one.shape, one.success) for one in tried])
        return math.nan if mean is None else mean
    return metric(attempted(outcomes)) if tried else math.nan


def _of_set(result: ArmResult, set_name: str) -> list[TaskOutcome]:
    return [one for one in result.outcomes if one.group == set_name]


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
