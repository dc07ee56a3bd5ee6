"""Figures of an arm over its seeds beside its success: budgets, curves over rounds, coverage and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import NamedTuple

from evaluation.study.records import ArmHeader, IterationFigures

EQUAL: Mapping[str, Callable[[ArmHeader], int]] = {
    "rollouts": lambda header: sum(one.rollouts for one in header.iterations),
    "optimizer steps": lambda header: header.iterations[-1].steps,
}
"""What all arms should spend alike."""

BUDGETS: Mapping[str, Callable[[ArmHeader], int]] = {
    **EQUAL,
    "environment calls": lambda header: sum(one.environment_calls for one in header.iterations),
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
    def labels(self) -> tuple[str, ...]:
        """The labels of the runs, each once."""
        return tuple(dict.fromkeys(label for one in self.headers for label in one.labels))

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
        for one in (one for header in self.trained for one in header.iterations):
            counted.update(one.signals)
        return counted

    @property
    def in_tasks(self) -> float:
        """Share of the environment's functions that the references of D_T call, the last set of tasks."""
        return self._covered(
            lambda header, rounds: [set(header.initial_functions), *_admitted(header.iterations[:rounds])]
        )

    @property
    def in_training(self) -> float:
        """Share of the functions that were in what rounds drew, and in what their expert steps learnt from."""

        def functions(header: ArmHeader, rounds: int) -> list[set[str]]:
            done = header.iterations[:rounds]
            joined = [set(header.initial_functions), *_admitted(header.iterations)]
            learnt = [new for one, new in zip(done, joined, strict=False) if one.supervised_tokens]
            return [set(one.trained_functions) for one in done] + learnt

        return self._covered(functions)

    def _covered(self, functions: Callable[[ArmHeader, int], list[set[str]]]) -> float:
        rounds = len(self.rounds)
        named = ((len(set().union(*functions(one, rounds))), one.functions) for one in self.trained)
        return fmean(names / of if of else 0.0 for names, of in named)

    @property
    def evolution_share(self) -> float | None:
        """Seconds of the graph over those of rollouts, optimisation and graph.

        Without process starts, evaluation and D_0; None where nothing was measured.
        """
        measured = [one.measured for header in self.trained for one in header.iterations]
        graph = sum(one.get("stage evolve", 0.0) for one in measured)
        others = sum(one.get(f"round {name}", 0.0) for one in measured for name in ("rollouts", "optimisation"))
        return graph / (graph + others) if graph + others else None


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


def _admitted(iterations: Iterable[IterationFigures]) -> list[set[str]]:
    return [set(one.admitted_functions) for one in iterations]


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None
