"""Figures of an arm over its seeds beside its success: budgets, curves over steps, coverage and costs."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from pydantic import Field

from environments.base import Record
from evaluation.study.records import ArmHeader, IterationFigures


class UsedBudget(Record):
    """The costs of one arm and seed. Environment calls: rollouts and exploration.

    ``supervised_tokens``: written tokens that expert steps learnt from, ``processed_tokens``: those that went through
    the model for it; both written where there are any.
    """

    rollouts: int
    optimizer_steps: int
    environment_calls: int
    supervised_tokens: int = Field(default=0, exclude_if=operator.not_)
    processed_tokens: int = Field(default=0, exclude_if=operator.not_)


class Point(Record):
    """Means over seeds at the end of one iteration.

    ``steps``: optimizer steps. ``success``: on the set that runs score themselves. ``signals``: found in the round, by
    kind. ``acceptance``: share of drafts that verification accepted. Coverage is the share of the environment's
    functions that references call: ``coverage_tasks`` of D_{t+1}, ``coverage_trained`` of the tasks that rounds drew
    so far, and with an expert step of those whose references it learnt from.
    """

    steps: float
    success: float | None
    signals: dict[str, float]
    acceptance: float | None
    admitted: float
    mixed_groups: float
    coverage_tasks: float
    coverage_trained: float


class ArmFacts(Record):
    """Facts of an arm. ``start``: success of the initial policy on the evaluation set that runs score themselves.

    ``evolution_share``: seconds of the graph over those of rollouts, optimisation and graph, without process starts,
    evaluation and D_0. ``signals``: marks on trajectories by kind, in all rounds of all seeds.
    """

    description: str
    seeds: tuple[int, ...]
    planned: int
    labels: tuple[str, ...]
    budgets: dict[str, UsedBudget]
    start: float | None
    curve: tuple[Point, ...]
    evolution_share: float | None
    wall_seconds: dict[str, float]
    signals: dict[str, int] = {}


def arm_facts(description: str, planned: int, headers: Mapping[int, ArmHeader]) -> ArmFacts:
    """Return the facts of one arm from the headers of its results by seed."""
    ordered = [headers[seed] for seed in sorted(headers)]
    trained = [one for one in ordered if one.iterations]
    return ArmFacts(
        description=description,
        seeds=tuple(sorted(headers)),
        planned=planned,
        labels=tuple(dict.fromkeys(label for one in ordered for label in one.labels)),
        budgets={str(one.seed): _budget(one) for one in trained},
        start=_mean(one.iterations[0].dev_before for one in trained),
        curve=_curve(trained),
        evolution_share=_evolution_share([figures for one in trained for figures in one.iterations]),
        wall_seconds={str(one.seed): one.measured.wall_seconds for one in ordered},
        signals=_marks(trained),
    )


def _marks(headers: Sequence[ArmHeader]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for one in (one for header in headers for one in header.iterations):
        counted.update(one.signals)
    return dict(sorted(counted.items()))


def unequal_budgets(arms: Mapping[str, ArmFacts], baseline: str) -> tuple[str, ...]:
    """Return one sentence per arm and seed whose rollouts or optimizer steps are not the baseline's."""
    differences = []
    for name, facts in arms.items():
        for seed, own in facts.budgets.items():
            base = arms[baseline].budgets.get(seed) if baseline in arms else None
            for key in ("rollouts", "optimizer_steps"):
                if base is not None and getattr(own, key) != getattr(base, key):
                    words = key.replace("_", " ")
                    differences.append(
                        f"{name}, seed {seed}: {getattr(own, key)} {words}, {baseline} has {getattr(base, key)}"
                    )
    return tuple(differences)


def _budget(header: ArmHeader) -> UsedBudget:
    return UsedBudget(
        rollouts=sum(one.rollouts for one in header.iterations),
        optimizer_steps=header.iterations[-1].steps,
        environment_calls=sum(one.environment_calls for one in header.iterations),
        supervised_tokens=sum(one.supervised_tokens for one in header.iterations),
        processed_tokens=sum(one.processed_tokens for one in header.iterations),
    )


def _curve(headers: Sequence[ArmHeader]) -> tuple[Point, ...]:
    length = min((len(header.iterations) for header in headers), default=0)
    return tuple(_point(headers, iteration) for iteration in range(length))


def _point(headers: Sequence[ArmHeader], iteration: int) -> Point:
    figures = [header.iterations[iteration] for header in headers]

    def mean(of: Callable[[IterationFigures], float]) -> float:
        return fmean(map(of, figures))

    def covered(functions: Callable[[ArmHeader], Iterable[set[str]]]) -> float:
        named = ((len(set().union(*functions(header))), header.functions) for header in headers)
        return fmean(names / of if of else 0.0 for names, of in named)

    kinds = sorted({kind for one in figures for kind in one.signals})
    return Point(
        steps=mean(lambda one: one.steps),
        success=_mean(one.dev_after for one in figures),
        signals={kind: sum(one.signals.get(kind, 0) for one in figures) / len(figures) for kind in kinds},
        acceptance=_mean(one.acceptance for one in figures),
        admitted=mean(lambda one: one.admitted),
        mixed_groups=mean(lambda one: one.mixed_groups),
        coverage_tasks=covered(lambda header: _in_tasks(header, iteration + 1)),
        coverage_trained=covered(lambda header: _in_training(header, iteration + 1)),
    )


def _in_tasks(header: ArmHeader, t: int) -> list[set[str]]:
    """Return the functions of D_0, and of what each iteration before ``t`` admitted."""
    return [set(header.initial_functions), *(set(one.admitted_functions) for one in header.iterations[:t])]


def _in_training(header: ArmHeader, rounds: int) -> list[set[str]]:
    """Return the functions of what each of the first rounds drew, and of what its expert step learnt from."""
    done = header.iterations[:rounds]
    drawn = [set(one.trained_functions) for one in done]
    joined = [set(header.initial_functions), *(set(one.admitted_functions) for one in header.iterations)]
    return drawn + [new for one, new in zip(done, joined, strict=False) if one.supervised_tokens]


def _evolution_share(figures: Sequence[IterationFigures]) -> float | None:
    graph = sum(one.measured.get("stage evolve", 0.0) for one in figures)
    others = sum(one.measured.get(f"round {name}", 0.0) for one in figures for name in ("rollouts", "optimisation"))
    return graph / (graph + others) if graph + others else None


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None
