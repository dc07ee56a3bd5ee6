"""Table 15 of CoEvolve (appendix A.5): redundancy of an evolution's tasks, and their distance from the target tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, variance

import numpy as np
from numpy.typing import NDArray

from environments.base import Record
from evaluation.analyses.similarity import EMBEDDER, Vectors, embed

NEIGHBOURS = 5
"""k of SR@k (ours; the paper has no value)."""


class EvolutionDiversity(Record):
    """One evolution. ``sr`` and ``ed`` are None where they are not defined: too few tasks, or no target."""

    iteration: int
    tasks: int
    sr: float | None
    ed: float | None


class Spread(Record):
    """Mean and sample variance over evolutions, as the paper prints them; the variance is None for a single one."""

    mean: float
    variance: float | None


class DiversityReport(Record):
    """Table 15. ``sr``: SR@k, low where tasks differ. ``ed``: ED_rel, low where tasks lie near the targets."""

    neighbours: int
    embedder: str
    targets: int
    evolutions: tuple[EvolutionDiversity, ...]
    sr: Spread | None
    ed: Spread | None


def redundancy(vectors: Vectors, neighbours: int = NEIGHBOURS) -> float | None:
    """Return SR@k = (1/|Y|) sum_i (1/k) sum over the k nearest neighbours j of <y_i, y_j> (A.5).

    A task is not its own neighbour. None where some task has fewer than k others. Raises ValueError unless k >= 1.
    """
    if neighbours < 1:
        raise ValueError(f"{neighbours} neighbours")
    if len(vectors) <= neighbours:
        return None
    products = vectors @ vectors.T
    np.fill_diagonal(products, -np.inf)
    nearest = np.partition(products, len(vectors) - neighbours, axis=1)[:, -neighbours:]
    return float(nearest.mean())


def relative_energy_distance(targets: Vectors, vectors: Vectors) -> float | None:
    """Return ED_rel (A.5) of ``vectors`` Y from ``targets`` X, with Euclidean norms.

    ED = 2 mean|x - y| - mean|x - x'| - mean|y - y'|, the means over all ordered pairs, an element with itself included;
    ED_rel = ED / (mean of |x_i - x_i'| over i != i'). None without a task, and where the targets have no distance.
    """
    if len(targets) < 2 or not len(vectors):
        return None
    within = _distances(targets, targets)
    scale = within.sum() / (len(targets) * (len(targets) - 1))
    if scale <= 0:
        return None
    energy = 2 * _distances(targets, vectors).mean() - within.mean() - _distances(vectors, vectors).mean()
    return float(energy / scale)


def _distances(left: Vectors, right: Vectors) -> NDArray[np.float64]:
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2 * left @ right.T
    distances: NDArray[np.float64] = np.sqrt(np.maximum(squares, 0.0))
    if left is right:
        np.fill_diagonal(distances, 0.0)  # of an element with itself, without the rounding of the three terms
    return distances


def diversity_report(
    evolutions: Sequence[tuple[int, Sequence[str]]],
    targets: Sequence[str],
    neighbours: int = NEIGHBOURS,
) -> DiversityReport:
    """Return table 15 of evolutions given as (iteration, texts of the tasks that it admitted)."""
    aims = embed(targets) if targets else None
    rows = []
    for iteration, texts in evolutions:
        vectors = embed(texts) if texts else None
        rows.append(
            EvolutionDiversity(
                iteration=iteration,
                tasks=len(texts),
                sr=None if vectors is None else redundancy(vectors, neighbours),
                ed=None if vectors is None or aims is None else relative_energy_distance(aims, vectors),
            )
        )
    return DiversityReport(
        neighbours=neighbours,
        embedder=EMBEDDER,
        targets=len(targets),
        evolutions=tuple(rows),
        sr=spread([one.sr for one in rows if one.sr is not None]),
        ed=spread([one.ed for one in rows if one.ed is not None]),
    )


def spread(values: Sequence[float]) -> Spread | None:
    """Return mean and sample variance; None without a value."""
    if not values:
        return None
    return Spread(mean=fmean(values), variance=variance(values) if len(values) > 1 else None)


def diversity_table(report: DiversityReport) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of a table with a row for each evolution, in percent as in the paper."""
    rows: list[tuple[str, ...]] = [
        (str(one.iteration), str(one.tasks), _percent(one.sr), _percent(one.ed)) for one in report.evolutions
    ]
    rows.append(("mean", "", *(_percent(one.mean) if one else "" for one in (report.sr, report.ed))))
    # A variance of percents: the square of the scale.
    spreads = [one.variance if one else None for one in (report.sr, report.ed)]
    rows.append(("variance", "", *("" if value is None else f"{10_000 * value:.2f}" for value in spreads)))
    return ("iteration", "tasks", f"SR@{report.neighbours}", "ED_rel"), rows


def diversity_notes(report: DiversityReport) -> str:
    """Return what the figures are of, and why a cell is empty: it is not a zero."""
    notes = [report.embedder, f"{report.targets} target tasks" if report.targets else "no target tasks, so no ED_rel"]
    if any(one.sr is None for one in report.evolutions):
        notes.append(f"SR@{report.neighbours} needs more than {report.neighbours} tasks")
    return "; ".join(notes)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


class Distribution(Record):
    """Whole numbers: ``share`` of tasks by number (a density over numbers one apart), and their mean."""

    tasks: int
    mean: float
    share: dict[int, float]


class TaskLengths(Record):
    """Lengths of one set of tasks.

    ``turns``: user turns. ``calls``: calls of the reference, a program counting as one; None where no task's reference
    is known, and over the ``tasks`` with a known one otherwise.
    """

    name: str
    turns: Distribution
    calls: Distribution | None


def task_lengths(name: str, turns: Sequence[int], calls: Sequence[int | None]) -> TaskLengths:
    """Return the lengths of a set, given by task. ``calls`` is None where a task's reference is not known."""
    known = [one for one in calls if one is not None]
    return TaskLengths(name=name, turns=distribution(turns), calls=distribution(known) if known else None)


def distribution(values: Sequence[int]) -> Distribution:
    """Return the shares of whole numbers, in order. Raises ValueError without a value."""
    counts = Counter(values)
    if not counts:
        raise ValueError("no value")
    return Distribution(
        tasks=len(values), mean=fmean(values), share={value: counts[value] / len(values) for value in sorted(counts)}
    )


def lengths_table(sets: Sequence[TaskLengths]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of a table: a row for each number of turns and of calls, a column for each set."""
    rows: list[tuple[str, ...]] = []
    for what in ("turns", "calls"):
        of: list[Distribution | None] = [getattr(one, what) for one in sets]
        numbers = sorted({number for one in of if one is not None for number in one.share})
        for number in numbers:
            shares = ["unknown" if one is None else f"{one.share.get(number, 0.0):.1%}" for one in of]
            rows.append((f"{number} {what if number != 1 else what.removesuffix('s')}", *shares))
        rows.append((f"mean {what}", *("unknown" if one is None else f"{one.mean:.2f}" for one in of)))
        rows.append((f"tasks with known {what}", *("0" if one is None else str(one.tasks) for one in of)))
    return ("", *(one.name for one in sets)), rows
