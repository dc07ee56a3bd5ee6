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
from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from environments.registry import DEFAULT, find_benchmark
from environments.verification.fingerprints import call_sequence
from evaluation.call_shapes import numbered, rarest_functions
from evaluation.sets import Item, open_set
from evaluation.statistics import shared_interval, t_interval, t_quantile

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Interval: TypeAlias = tuple[float, float] | None
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


class _Errors(NamedTuple):
    """Squared standard errors of the mean of scores (seeds, tasks), and what degrees of freedom are taken from."""

    starts: float
    functions: float
    pairs: float
    seeds: float
    with_seeds: float
    least: int
    n: int

    @property
    def tasks(self) -> float:
        return max(self.starts + self.functions - self.pairs, self.starts, self.functions)


def _errors(scores: Floats, layout: Layout) -> _Errors:
    rates = scores @ layout.weights
    parts = layout.weights * (scores - rates[:, None])
    _, pairs = np.unique(np.stack([layout.starts, layout.functions]), axis=1, return_inverse=True)
    numbers = (layout.starts, layout.functions, pairs.ravel())

    def variance(part: Floats, of: Ints) -> float:
        groups = int(of.max()) + 1
        return float((np.bincount(of, weights=part) ** 2).sum()) * groups / (groups - 1)

    n = len(scores)
    starts, functions, both = (variance(parts.mean(axis=0), of) for of in numbers)
    of_seeds = [sum(variance(part, of) for part in parts) / n**2 for of in numbers]
    return _Errors(
        starts,
        functions,
        both,
        seeds=float(rates.var(ddof=1)) / n if n > 1 else 0.0,
        with_seeds=of_seeds[0] + of_seeds[1] - of_seeds[2],
        least=min(int(of.max()) for of in numbers[:2]),
        n=n,
    )


def _around(scores: Floats, layout: Layout, square: float, degrees: float) -> Interval:
    mean = float((scores @ layout.weights).mean())
    half = t_quantile(0.975, max(1, int(degrees))) * sqrt(max(0.0, square))
    return mean - half, mean + half


def three_way(scores: Floats, layout: Layout) -> Interval:
    """Return the interval of Cameron, Gelbach and Miller (2011): seeds, start states and functions cluster."""
    found = _errors(scores, layout)
    square = max(found.tasks + found.seeds - found.with_seeds, found.tasks, found.seeds) if found.n > 1 else found.tasks
    return _around(scores, layout, square, found.least if found.n == 1 else min(found.least, found.n - 1))


def two_way(scores: Floats, layout: Layout) -> Interval:
    """Return the interval from the sum of the variances of tasks and seeds, t by Welch and Satterthwaite."""
    found = _errors(scores, layout)
    if found.n == 1:
        return _around(scores, layout, found.tasks, found.least)
    square = found.tasks + found.seeds
    parts = found.tasks**2 / found.least + found.seeds**2 / (found.n - 1)
    return _around(scores, layout, square, square**2 / parts if parts else found.least)


def two_way_t(scores: Floats, layout: Layout) -> Interval:
    """Return the same with t for the number of start states or of functions, the smaller, less one."""
    found = _errors(scores, layout)
    return _around(scores, layout, found.tasks + found.seeds, found.least)


def seeds_only(scores: Floats, layout: Layout) -> Interval:
    """Return Student's t over seeds."""
    return t_interval(list(map(float, scores @ layout.weights)))


def pigeonhole(scores: Floats, layout: Layout, rng: np.random.Generator) -> Interval:
    """Return the bootstrap that draws seeds, start states and functions (Owen, 2007): the method of older reports."""
    seeds, levels = len(scores), (int(layout.starts.max()) + 1, int(layout.functions.max()) + 1)
    rows, begins, calls = (rng.multinomial(size, [1 / size] * size, DRAWS) for size in (seeds, *levels))
    weights = begins[:, layout.starts] * calls[:, layout.functions] * layout.weights
    with np.errstate(invalid="ignore"):  # a replicate may draw no task
        means = (rows * (weights @ scores.T / weights.sum(axis=1, keepdims=True))).sum(axis=1) / seeds
    return float(np.nanquantile(means, 0.025)), float(np.nanquantile(means, 0.975))


def nested(scores: Floats, layout: Layout, rng: np.random.Generator) -> Interval:
    """Return the bootstrap that draws seeds, and start states anew inside each."""
    seeds, starts = len(scores), int(layout.starts.max()) + 1
    if seeds == 1:
        return None
    rows = rng.integers(seeds, size=(DRAWS, seeds))
    weights = rng.multinomial(starts, [1 / starts] * starts, (DRAWS, seeds))[:, :, layout.starts] * layout.weights
    means = ((weights * scores[rows]).sum(axis=2) / weights.sum(axis=2)).mean(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def chosen(study: Simulated, layout: Layout, *, difference: bool) -> Interval:
    """Return the interval of ``evaluation.statistics``, over call shapes."""
    ones = np.ones_like(study.first)
    where = layout.starts, layout.functions
    if difference:
        return shared_interval(study.first, ones, *where, (study.second, ones), shapes=layout.shapes)
    return shared_interval(study.second, ones, *where, shapes=layout.shapes)


HEAD = (
    "pigeonhole bootstrap",
    "nested bootstrap",
    "t over seeds",
    "three-way robust",
    "two-way, t by clusters",
    "two-way, Satterthwaite",
    "chosen",
)


class Counted:
    """How often intervals held the truth, and their half widths."""

    def __init__(self) -> None:
        """Begin without an interval."""
        self.held: list[bool] = []
        self.halves: list[float] = []

    def add(self, interval: Interval, truth: float) -> None:
        """Count an interval, if there is one."""
        if interval is not None:
            self.held.append(interval[0] <= truth <= interval[1])
            self.halves.append((interval[1] - interval[0]) / 2)

    def words(self) -> str:
        """Return coverage and mean half width in percent points."""
        return f"{100 * np.mean(self.held):.1f}, {100 * np.mean(self.halves):.1f}" if self.held else ""


def measure(
    layout: Layout, one: StudyKind, studies: int, bootstrapped: int, *, difference: bool
) -> tuple[list[Counted], float]:
    """Return coverage and half width of each method of ``HEAD``, and the half width that would cover 95 % exactly.

    That is 1.96 times the standard deviation of the estimates. The first ``bootstrapped`` studies have bootstraps too.
    """
    rng, counted, off = np.random.default_rng(1), [Counted() for _ in HEAD], []
    for number in range(studies):
        study = simulate(rng, layout, one)
        truth = study.truth[0] - study.truth[1] if difference else study.truth[1]
        scores = (study.first - study.second if difference else study.second).astype(np.float64)
        off.append(float((scores @ layout.weights).mean()) - truth)
        draws = np.random.default_rng(number)
        drawn = [pigeonhole(scores, layout, draws), nested(scores, layout, draws)] if number < bootstrapped else []
        plain: tuple[Callable[[Floats, Layout], Interval], ...] = (seeds_only, three_way, two_way_t, two_way)
        found = [*(drawn or [None, None]), *(of(scores, layout) for of in plain)]
        for counts, interval in zip(counted, [*found, chosen(study, layout, difference=difference)], strict=True):
            counts.add(interval, truth)
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
    for one in SETTINGS:
        for difference in (True, False):
            layout = few if one.few_starts else many
            counted, ideal = measure(layout, one, studies, bootstrapped, difference=difference)
            cells = " | ".join(counts.words() for counts in counted)
            yield f"| {one.name} | {'difference' if difference else 'rate'} | {100 * ideal:.1f} | {cells} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="simulate studies and say how often intervals hold the truth")
    parser.add_argument("--studies", type=int, default=2000, help="simulated studies per row")
    parser.add_argument("--bootstrapped", type=int, default=300, help="of them with bootstraps, which take longer")
    options = parser.parse_args()
    for line in table(options.studies, options.bootstrapped):
        print(line, flush=True)


if __name__ == "__main__":
    main()
