"""Table 15 of CoEvolve (appendix A.5), redundancy of an evolution's tasks and their distance from the target tasks; and
figures 6 and 7, lengths of tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, variance

import numpy as np
from numpy.typing import NDArray

from evaluation.analyses import Table
from evaluation.analyses.similarity import EMBEDDER, Vectors, embed


def redundancy(vectors: Vectors, neighbours: int) -> float | None:
    """Return SR@k = (1/|Y|) sum_i (1/k) sum over the k nearest neighbours j of <y_i, y_j> (A.5).

    It is low where tasks differ. A task is not its own neighbour. None where some task has fewer than k others.
    """
    if len(vectors) <= neighbours:
        return None
    products = vectors @ vectors.T
    np.fill_diagonal(products, -np.inf)
    nearest = np.partition(products, len(vectors) - neighbours, axis=1)[:, -neighbours:]
    return float(nearest.mean())


def relative_energy_distance(targets: Vectors, vectors: Vectors) -> float | None:
    """Return ED_rel (A.5) of ``vectors`` Y from ``targets`` X, with Euclidean norms; low where tasks lie near targets.

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


def diversity_table(evolutions: Mapping[int, Sequence[str]], targets: Sequence[str], neighbours: int) -> Table:
    """Return table 15 in percent, a row for each evolution with the texts of the tasks that it admitted.

    A cell is empty where its figure is not defined: with too few tasks, or without a target.
    """
    aims = embed(targets) if targets else np.zeros((0, 1))
    rows: list[tuple[str, ...]] = []
    figures: list[tuple[float | None, float | None]] = []
    for iteration, texts in sorted(evolutions.items()):
        vectors = embed(texts)
        figures.append((redundancy(vectors, neighbours), relative_energy_distance(aims, vectors)))
        rows.append((str(iteration), str(len(texts)), *map(_percent, figures[-1])))
    spreads = [spread([100 * value for value in column if value is not None]) for column in zip(*figures, strict=True)]
    for place, name in enumerate(("mean", "variance")):
        rows.append((name, "", *("" if (value := one[place]) is None else f"{value:.2f}" for one in spreads)))
    return ("iteration", "tasks", f"SR@{neighbours}", "ED_rel"), rows


def diversity_note(targets: int, neighbours: int) -> str:
    """Return what the figures are of, and why a cell is empty."""
    aims = f"{targets} target tasks" if targets else "no target tasks, so no ED_rel"
    return f"{EMBEDDER}; {aims}; SR@{neighbours} needs more than {neighbours} tasks"


def spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return mean and sample variance over evolutions, as the paper prints them; None where they are not defined."""
    return fmean(values) if values else None, variance(values) if len(values) > 1 else None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


Lengths = tuple[str, Sequence[int], Sequence[int | None]]
"""The name of a set; user turns, and calls of the reference, by task: None where it is not known."""


def lengths_table(sets: Sequence[Lengths]) -> Table:
    """Return figures 6 and 7: a row for each number of turns and of calls, a column for each set."""
    rows: list[tuple[str, ...]] = []
    columns: tuple[list[Sequence[int | None]], ...] = ([turns for _, turns, _ in sets], [calls for _, _, calls in sets])
    for what, column in zip(("turns", "calls"), columns, strict=True):
        known = [[value for value in values if value is not None] for values in column]
        for number in sorted({value for values in known for value in values}):
            shares = (f"{Counter(values)[number] / len(values):.1%}" if values else "unknown" for values in known)
            rows.append((f"{number} {what if number != 1 else what.removesuffix('s')}", *shares))
        rows.append((f"mean {what}", *(f"{fmean(values):.2f}" if values else "unknown" for values in known)))
        rows.append((f"tasks with known {what}", *(str(len(values)) for values in known)))
    return ("", *(name for name, _, _ in sets)), rows
