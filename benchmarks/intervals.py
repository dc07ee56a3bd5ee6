"""`python -m benchmarks.intervals`: how often intervals of success hold the truth, in simulated studies (ours).

A simulated study has the start states, functions and call shapes of a real evaluation set, and two arms that are
attempted with several seeds. The logit of a success is the sum of the arm's mean and of normal effects of the task's
start state, of its function, of the task, of the arm with each of these, of arm, seed and function, and of arm and
seed. The truth is the mean over all of them, so that an interval has to cover other tasks and other seeds; for one
seed, other tasks of the same policy. Scores are means over call shapes, as in the studies' reports.

``benchmarks/intervals.md`` is what it prints: the choice of ``evaluation.statistics.shared_interval``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from math import sqrt
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from environments.registry import DEFAULT, find_benchmark
from environments.verification.fingerprints import call_sequence
from evaluation.call_shapes import numbered, rarest_functions
from evaluation.sets import Item, open_set
from evaluation.statistics import shared_interval

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
STUDY = Path("results/study-world")
DRAWS = 400
"""Replicates of a bootstrap."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)


class Layout(NamedTuple):
    """What tasks share, each a number by task: start state, function, call shape. ``weights`` (tasks,) sum to 1."""

    starts: Ints
    functions: Ints
    shapes: Ints
    weights: Floats


class StudyKind(NamedTuple):
    """A kind of study, by standard deviations of the effects on logits.

    ``mean`` is the logit of both arms, ``gap`` what the first has more.
    ``few_starts``: tasks of the development set with few start states instead of those of the study.
    """

    name: str
    seeds: int = 6
    mean: float = 0.0
    gap: float = 0.0
    start: float = 0.5
    function: float = 2.0
    task: float = 1.0
    arm_start: float = 0.3
    arm_function: float = 0.8
    arm_task: float = 0.5
    seed_function: float = 0.8
    seed: float = 0.1
    few_starts: bool = False


SETTINGS = (
    StudyKind("no effect"),
    StudyKind("effect", gap=0.5),
    StudyKind("weak sharing", start=0.2, function=0.4, arm_start=0.1, arm_function=0.1, seed_function=0.2),
    StudyKind("nothing shared", start=0, function=0, arm_start=0, arm_function=0, arm_task=1, seed_function=0, seed=0),
    StudyKind("strong functions", function=4, arm_function=2),
    StudyKind("strong start states", start=2, arm_start=1.5, arm_function=0.3),
    StudyKind("seed x function", seed_function=2),
    StudyKind("seeds differ much", seed=0.5),
    StudyKind("near 5 %", mean=-5),
    StudyKind("near 95 %, effect", mean=5, gap=-0.5),
    StudyKind("three seeds", seeds=3),
    StudyKind("two seeds", seeds=2),
    StudyKind("two seeds differ much", seeds=2, seed=0.5),
    StudyKind("one seed", seeds=1, seed=0),
    StudyKind("one seed, near 5 %", seeds=1, mean=-5, seed=0),
    StudyKind("one seed, strong start states", seeds=1, start=2, function=1, seed=0),
    StudyKind("few start states", few_starts=True),
    StudyKind("few, strong start states", few_starts=True, start=2, arm_start=1.5, arm_function=0.3),
    StudyKind("few start states, one seed, near 5 %", few_starts=True, seeds=1, mean=-5, seed=0),
    StudyKind("few, strong start states, one seed", few_starts=True, seeds=1, start=2, function=1, seed=0),
)


class Simulated(NamedTuple):
    """Successes of two arms, (seeds, tasks), 0 or 1; the true success rates of both."""

    first: Ints
    second: Ints
    truth: tuple[float, float]


def simulate(rng: np.random.Generator, layout: Layout, one: StudyKind) -> Simulated:
    """Draw a study."""
    starts, functions, tasks = int(layout.starts.max()) + 1, int(layout.functions.max()) + 1, len(layout.starts)

    def effects(start: float, function: float, task: float) -> Floats:
        by_start, by_function = rng.normal(0, start, starts), rng.normal(0, function, functions)
        drawn: Floats = by_start[layout.starts] + by_function[layout.functions] + rng.normal(0, task, tasks)
        return drawn

    shared = effects(one.start, one.function, one.task)
    arms = []
    for mean in (one.mean + one.gap, one.mean):
        own = effects(one.arm_start, one.arm_function, one.arm_task)
        by_seed = rng.normal(0, one.seed_function, (one.seeds, functions))[:, layout.functions]
        logits = mean + shared + own + by_seed + rng.normal(0, one.seed, (one.seeds, 1))
        arms.append((rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.int64))
    both = one.start**2 + one.function**2 + one.task**2 + one.arm_start**2 + one.arm_function**2
    spread = sqrt(both + one.arm_task**2 + one.seed_function**2 + one.seed**2)
    return Simulated(arms[0], arms[1], (_mean_rate(one.mean + one.gap, spread), _mean_rate(one.mean, spread)))


def _mean_rate(mean: float, spread: float) -> float:
    """Return the mean of 1 / (1 + exp(-x)) over normal x, by Gauss-Hermite quadrature."""
    return float((_WEIGHTS / (1 + np.exp(-(mean + spread * _NODES)))).sum() / _WEIGHTS.sum())


def pigeonhole(scores: Floats, layout: Layout, rng: np.random.Generator) -> tuple[float, float]:
    """Return the bootstrap that draws seeds, start states and functions (Owen, 2007): the method of older reports."""
    seeds, levels = len(scores), (int(layout.starts.max()) + 1, int(layout.functions.max()) + 1)
    rows, begins, calls = (rng.multinomial(size, [1 / size] * size, DRAWS) for size in (seeds, *levels))
    weights = begins[:, layout.starts] * calls[:, layout.functions] * layout.weights
    with np.errstate(invalid="ignore"):  # a replicate may draw no task
        means = (rows * (weights @ scores.T / weights.sum(axis=1, keepdims=True))).sum(axis=1) / seeds
    return float(np.nanquantile(means, 0.025)), float(np.nanquantile(means, 0.975))


def chosen(study: Simulated, layout: Layout, *, difference: bool) -> tuple[float, float] | None:
    """Return the interval of ``evaluation.statistics``, over call shapes."""
    ones = np.ones_like(study.first)
    where = layout.starts, layout.functions
    if difference:
        return shared_interval(study.first, ones, *where, (study.second, ones), shapes=layout.shapes)
    return shared_interval(study.second, ones, *where, shapes=layout.shapes)


HEAD = ("pigeonhole bootstrap", "chosen")


class Counted(NamedTuple):
    """How often intervals held the truth, and their half widths."""

    held: list[bool]
    halves: list[float]

    def add(self, interval: tuple[float, float], truth: float) -> None:
        """Count an interval."""
        self.held.append(interval[0] <= truth <= interval[1])
        self.halves.append((interval[1] - interval[0]) / 2)


def measure(
    layout: Layout, one: StudyKind, studies: int, bootstrapped: int, *, difference: bool
) -> tuple[dict[str, Counted], float]:
    """Return coverage and half width of each method of ``HEAD``, and the half width that would cover 95 % exactly.

    That is 1.96 times the standard deviation of the estimates. The first ``bootstrapped`` studies alone have the
    bootstrap, which takes longer.
    """
    rng, counted, off = np.random.default_rng(1), {name: Counted([], []) for name in HEAD}, []
    for number in range(studies):
        study = simulate(rng, layout, one)
        truth = study.truth[0] - study.truth[1] if difference else study.truth[1]
        scores = (study.first - study.second if difference else study.second).astype(np.float64)
        off.append(float((scores @ layout.weights).mean()) - truth)
        if number < bootstrapped:
            counted[HEAD[0]].add(pigeonhole(scores, layout, np.random.default_rng(number)), truth)
        if (interval := chosen(study, layout, difference=difference)) is not None:
            counted[HEAD[1]].add(interval, truth)
    return counted, 1.959964 * float(np.std(off))


def layouts() -> tuple[Layout, Layout]:
    """Return what tasks share in the study's held-out set, whose access its log has, and in a development set."""
    benchmark = find_benchmark(DEFAULT)
    many = open_set("world-test", access_log=STUDY / "openings.jsonl", benchmark=benchmark)
    few = open_set("templated-dev", benchmark=benchmark)
    return _layout(many), _layout(few)


def _layout(tasks: Sequence[Item]) -> Layout:
    shapes = [call_sequence(one.task) for one in tasks]
    numbers = numbered(shapes)
    weights = 1 / np.bincount(numbers)[numbers]
    return Layout(
        numbered([one.cluster for one in tasks]), numbered(rarest_functions(shapes)), numbers, weights / weights.sum()
    )


def table(studies: int, bootstrapped: int) -> Iterator[str]:
    """Yield the lines of a Markdown table: coverage and half width by setting, of a difference and of a rate."""
    yield f"| setting | of a | ideal | {' | '.join(HEAD)} |"
    yield "|---" * (len(HEAD) + 3) + "|"
    many, few = layouts()
    for kind in SETTINGS:
        for difference in (True, False):
            layout = few if kind.few_starts else many
            counted, ideal = measure(layout, kind, studies, bootstrapped, difference=difference)
            cells = " | ".join(
                f"{100 * np.mean(one.held):.1f}, {100 * np.mean(one.halves):.1f}" for one in counted.values()
            )
            yield f"| {kind.name} | {'difference' if difference else 'rate'} | {100 * ideal:.1f} | {cells} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="simulate studies and say how often intervals hold the truth")
    parser.add_argument("--studies", type=int, default=2000, help="simulated studies per row")
    parser.add_argument("--bootstrapped", type=int, default=300, help="of them with the bootstrap, which takes longer")
    options = parser.parse_args()
    for line in table(options.studies, options.bootstrapped):
        print(line, flush=True)


if __name__ == "__main__":
    main()
