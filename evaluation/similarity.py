"""Tables and figures of CoEvolve on tasks: similarity to evaluation tasks (figure 5, table 13), diversity (table 15,
appendix A.5: redundancy, and distance from target tasks), and lengths (figures 6 and 7).

Similarity is a leak report, too: the paper's synthetic tasks reach a cosine of 0.97 to the set they are scored on. What
training may not contain is refused where tasks are admitted (``environments.verification``); this names what is merely
near.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from math import floor
from statistics import fmean, variance
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from environments.base import InputError, TaskSpec
from memory.failures import DIMENSION, hashed_ngrams
from memory.jsonl import derive_seed

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""The head and the rows of a table, as text."""

EMBEDDER = f"hashed-ngrams-{DIMENSION}"
"""The name of ``embed`` in reports."""

BIN = 0.05
"""The width of a bin of figure 5 (ours)."""

Vectors: TypeAlias = NDArray[np.float64]
"""One vector of length 1 per row."""


class NearestTarget(NamedTuple):
    """A training task, the evaluation task that it is most similar to, and their cosine."""

    task: str
    target: str
    cosine: float


def text_of(task: TaskSpec) -> str:
    """Return a task's intent: its user turns, one per line (ours; the paper says intents and queries)."""
    return "\n".join(task.turns)


def embed(texts: Sequence[str]) -> Vectors:
    """Return the failure memory's vector of each text (ours; the papers name no encoder): it compares wordings."""
    rows = np.asarray(hashed_ngrams(texts), dtype=np.float64)
    vectors: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return vectors


def nearest_targets(
    tasks: Sequence[str], vectors: Vectors, targets: Sequence[str], target_vectors: Vectors
) -> list[NearestTarget]:
    """Return for each task the target with the largest cosine, the first of equal ones. Ids and vectors are by row."""
    found = []
    for task, vector in zip(tasks, vectors, strict=True):
        cosines = target_vectors @ vector
        place = int(cosines.argmax())
        found.append(NearestTarget(task, targets[place], float(np.clip(cosines[place], -1.0, 1.0))))
    return found


def similarity_table(nearest: Sequence[NearestTarget]) -> Table:
    """Return the histogram of figure 5, one row per bin, empty ones between others included."""
    # A value on an edge belongs to the bin above it, whatever the division's last digit says.
    counts = Counter(floor(one.cosine / BIN + 1e-9) for one in nearest)
    most = max(counts.values())
    rows: list[tuple[str, ...]] = []
    for number in range(min(counts), max(counts) + 1):
        count, low = counts[number], number * BIN
        bar = "█" * round(30 * count / most)
        rows.append((f"{low:.2f} to {low + BIN:.2f}", str(count), f"{count / len(nearest):.1%}", bar))
    return ("cosine", "tasks", "share", ""), rows


def near_table(nearest: Sequence[NearestTarget], threshold: float) -> Table:
    """Return the pairs with a cosine of at least ``threshold``, the nearest first."""
    above = sorted((one for one in nearest if one.cosine >= threshold), key=lambda one: (-one.cosine, one.task))
    return ("task", "evaluation task", "cosine"), [(one.task, one.target, f"{one.cosine:.3f}") for one in above]


def similarity_subsets(nearest: Sequence[NearestTarget], seed: int = 0) -> dict[str, list[NearestTarget]]:
    """Return subsets of equal size: of low, medium and high similarity, and mixed (table 13).

    Tasks are ordered by their largest cosine and cut into thirds (ours; the paper gives the bins' means alone). Each
    subset is drawn from its third, the mixed one from all three in equal parts; its size is a third, rounded down.
    Equal arguments give equal subsets. Raises InputError for fewer than three tasks.
    """
    ordered = sorted(nearest, key=lambda one: (one.cosine, one.task))
    size = len(ordered) // 3
    if not size:
        raise InputError(f"{len(ordered)} tasks cannot be cut into thirds: give at least three")
    # The middle gets the remainder: the outer thirds are compared.
    thirds = (ordered[:size], ordered[size : len(ordered) - size], ordered[len(ordered) - size :])
    rng = random.Random(derive_seed(seed, "similarity"))
    chosen = {name: rng.sample(third, size) for name, third in zip(("low", "medium", "high"), thirds, strict=True)}
    parts = [size // 3 + (number < size % 3) for number in range(3)]
    chosen["mixed"] = [one for third, part in zip(thirds, parts, strict=True) for one in rng.sample(third, part)]
    return {name: sorted(some, key=lambda one: one.task) for name, some in chosen.items()}


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
        rows.append(
            (str(iteration), str(len(texts)), *("" if one is None else f"{100 * one:.2f}" for one in figures[-1]))
        )
    spreads = [spread([100 * value for value in column if value is not None]) for column in zip(*figures, strict=True)]
    for name, values in zip(("mean", "variance"), zip(*spreads, strict=True), strict=True):
        rows.append((name, "", *("" if value is None else f"{value:.2f}" for value in values)))
    return ("iteration", "tasks", f"SR@{neighbours}", "ED_rel"), rows


def spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return mean and sample variance over evolutions, as the paper prints them; None where they are not defined."""
    return fmean(values) if values else None, variance(values) if len(values) > 1 else None


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
