"""Summarises the finished arms of a study: their cells by evaluation set, figures, hypotheses and gates.

A cell is an arm's success on an evaluation set, with its paired differences to other arms, each with intervals. Gates
are measured in the mode that is reported, on its first evaluation set: in development they tell whether a test set is
worth opening.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from environments.base import InputError
from evaluation.settings import LOOKUP
from evaluation.study.findings import Cell, Findings, cell, difference, findings_of
from evaluation.study.recipe import BASELINE, FIRST_SEED, Gate, Measure, Mode, lookup_row
from evaluation.study.study import ArmHeader, ArmResult, IterationFigures, Place, Study, current_result
from evaluation.test_access import Access
from memory.jsonl import read_existing
from memory.records import SignalKind

State = Literal["passed", "failed", "not run yet"]

EQUAL: Mapping[str, Callable[[ArmHeader], int]] = {
    "rollouts": lambda header: sum(one.rollouts for one in header.iterations),
    "optimizer steps": lambda header: header.iterations[-1].steps,
}
"""What all arms should spend alike."""

BUDGETS: Mapping[str, Callable[[ArmHeader], int]] = {
    **EQUAL,
    "environment calls": lambda header: sum(one.rollout_calls + one.exploration_calls for one in header.iterations),
    "supervised tokens": lambda header: sum(one.supervised_tokens for one in header.iterations),
    "through the model": lambda header: sum(one.processed_tokens for one in header.iterations),
}
"""The costs of one arm and seed. Environment calls: rollouts and exploration. Supervised tokens: written tokens that
expert steps learnt from; through the model: all those that they processed."""


class ArmFacts(NamedTuple):
    """The figures of an arm, from the headers of its results in order of seed; ``planned`` seeds are in the recipe."""

    description: str
    planned: int
    headers: tuple[ArmHeader, ...]

    @property
    def trained(self) -> list[ArmHeader]:
        """The headers of runs; none of an arm that is scored alone."""
        return [one for one in self.headers if one.iterations]

    @property
    def rounds(self) -> list[tuple[IterationFigures, ...]]:
        """The figures by seed of each iteration that all seeds have."""
        return list(zip(*(one.iterations for one in self.trained), strict=False))

    @property
    def successes(self) -> list[float | None]:
        """Success on the set that runs score themselves, at the start and after each round; None without one."""
        start = _mean(one.iterations[0].dev_before for one in self.trained)
        return [start, *(_mean(one.dev_after for one in each) for each in self.rounds)]

    @property
    def acceptance(self) -> float | None:
        """Share of drafts that verification accepted, the mean over rounds; None without drafts."""
        return _mean(_mean(one.acceptance for one in each) for each in self.rounds)

    @property
    def marks(self) -> Counter[str]:
        """Marks on trajectories by kind, in all rounds of all seeds."""
        counted: Counter[str] = Counter()
        for header in self.trained:
            for one in header.iterations:
                counted.update(one.signals)
        return counted

    @property
    def in_tasks(self) -> float:
        """Share of the environment's functions that the references of D_T call, the last set of tasks."""
        return self._covered(lambda one, done: [one.initial_functions, *(each.admitted_functions for each in done)])

    @property
    def in_training(self) -> float:
        """Share of the functions that were in what rounds drew, and in what their expert steps learnt from."""

        def drawn(one: ArmHeader, done: Sequence[IterationFigures]) -> list[Mapping[str, int]]:
            joined = [one.initial_functions, *(each.admitted_functions for each in one.iterations)]
            learnt = [new for each, new in zip(done, joined, strict=False) if each.supervised_tokens]
            return [*(each.trained_functions for each in done), *learnt]

        return self._covered(drawn)

    def _covered(self, counts: Callable[[ArmHeader, Sequence[IterationFigures]], Sequence[Mapping[str, int]]]) -> float:
        done = len(self.rounds)
        names = ((set[str]().union(*counts(one, one.iterations[:done])), one.functions) for one in self.trained)
        return fmean(len(found) / of if of else 0.0 for found, of in names)

    @property
    def evolution_share(self) -> float | None:
        """Seconds of the graph over those of rollouts, optimisation and graph.

        Without process starts, evaluation and D_0; None where nothing was measured.
        """
        measured = [one.measured for header in self.trained for one in header.iterations]
        graph = sum(one.get("stage evolve", 0.0) for one in measured)
        others = sum(one.get(f"round {name}", 0.0) for one in measured for name in ("rollouts", "optimisation"))
        return graph / (graph + others) if graph + others else None


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def unequal_budgets(arms: Mapping[str, ArmFacts], baseline: str) -> list[str]:
    """Return one sentence per arm and seed whose rollouts or optimizer steps are not the baseline's."""
    bases = {one.seed: one for one in arms[baseline].trained} if baseline in arms else {}
    return [
        f"{name}, seed {own.seed}: {count(own)} {words}, {baseline} has {count(bases[own.seed])}"
        for name, facts in arms.items()
        for own in facts.trained
        for words, count in EQUAL.items()
        if own.seed in bases and count(own) != count(bases[own.seed])
    ]


class GateFinding(NamedTuple):
    """A gate and what came of it: ``value`` is the mean over ``seeds`` of the ``planned`` seeds, in percent.

    There is no state before all seeds are there. Marks are counted together over seeds and rounds.
    """

    gate: Gate
    value: float | None
    seeds: int
    planned: int

    @property
    def state(self) -> State:
        """Whether the gate is passed."""
        if self.value is None or self.seeds < self.planned:
            return "not run yet"
        return "passed" if self.gate.at_least <= self.value <= self.gate.at_most else "failed"


def gate_findings(
    gates: Sequence[Gate], cells: Mapping[str, Cell], facts: Mapping[str, ArmFacts], planned: Mapping[str, int]
) -> tuple[GateFinding, ...]:
    """Return what came of each gate.

    ``cells`` are the arms' on the main evaluation set, ``facts`` their figures, ``planned`` their numbers of seeds in
    the mode.
    """

    def seeds_of(measure: Measure, name: str) -> set[int]:
        if measure == "success":
            return set(cells[name].success.by_seed) if name in cells else set()
        return {one.seed for one in facts[name].trained} if name in facts else set()

    def figure(measure: Measure, name: str, seeds: Collection[int]) -> float:
        if measure == "success":
            return fmean(cells[name].success.by_seed[seed] for seed in seeds)
        if measure == "mixed_groups":
            return fmean(one.mixed_groups for each in facts[name].rounds for one in each)
        marks = facts[name].marks
        total = sum(marks[kind] for kind in SignalKind)
        # Without a mark there is no share, and the signals do not occur: that fails, too.
        return marks[measure] / total if total else 0.0

    found = []
    for one in gates:
        seeds, value = set.intersection(*(seeds_of(one.measure, name) for name in one.names)), None
        if seeds:
            own, *others = (figure(one.measure, name, seeds) for name in one.names)
            value = round(100 * (own - sum(others)), 6)
        found.append(GateFinding(one, value, len(seeds), min(planned[name] for name in one.names)))
    return tuple(found)


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
    recipe, results = study.recipe, dict[str, dict[int, ArmResult]]()
    arms, missing, first = dict[str, ArmFacts](), list[tuple[str, int]](), FIRST_SEED[mode]
    for arm in recipe.arms:
        seeds = [seed for seed in place.seeds(arm.name) if (seed >= FIRST_SEED["dev"]) == (mode == "dev")]
        found = {seed: one for seed in seeds if (one := current_result(study, mode, place, arm, seed)) is not None}
        missing += [(arm.name, seed) for seed in range(first, first + arm.seeds) if seed not in found]
        if found:
            arms[arm.name] = ArmFacts(arm.description, arm.seeds, tuple(one.header for one in found.values()))
        # The rows of a report: an arm's policy, and the lookup over its tasks where that was scored.
        for row, baseline in ((arm.name, ""), (lookup_row(arm.name), LOOKUP)):
            if parts := {seed: part for seed, one in found.items() if (part := one.of(baseline)) is not None}:
                results[row] = parts
    _check_starts(study, [header for facts in arms.values() for header in facts.headers])
    cells = {row: _cells(study, mode, results, row) for row in results}
    main = recipe.set_names(mode)[0]
    on_main = {row: by_set[main] for row, by_set in cells.items() if main in by_set}
    accesses = tuple(read_existing(place.access_log, Access))
    # In development one seed is enough for a gate.
    planned = {arm.name: arm.seeds if mode == "test" else 1 for arm in recipe.arms}
    return StudySummary(
        cells=cells,
        arms=arms,
        missing=tuple(f"{name}-{seed}" for name, seed in missing),
        outdated=tuple(f"{name}-{seed}" for name, seed in missing if place.result(name, seed).exists()),
        openings=accesses,
        hypotheses=_findings(study, mode, on_main, arms, accesses) if recipe.hypotheses else None,
        gates=gate_findings(recipe.gates, on_main, arms, planned),
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


def _cells(study: Study, mode: Mode, results: Mapping[str, Mapping[int, ArmResult]], row: str) -> dict[str, Cell]:
    """Return the row's cell on each set, with its differences: to the baseline first, then to those of ``compare``."""
    cells, metrics = {}, study.benchmark.metrics
    others = [BASELINE, *(other for arm, other in study.recipe.compared if arm == row), lookup_row(row)]
    others = [other for other in dict.fromkeys(others) if other in results and other != row]
    for set_name in study.recipe.set_names(mode):
        pairs = {other: difference(results[row], results[other], set_name, metrics) for other in others}
        differences = {other: one for other, one in pairs.items() if one is not None}
        found = cell(results[row], set_name, metrics, differences)
        if found is not None:
            cells[set_name] = found
    return cells


def _findings(
    study: Study, mode: Mode, cells: Mapping[str, Cell], arms: Mapping[str, ArmFacts], accesses: Sequence[Access]
) -> Findings:
    """Return what came of the hypotheses on the mode's first evaluation set, of which ``cells`` are."""
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
