"""Figure 5 and table 13 of CoEvolve: how similar training tasks are to evaluation tasks, and subsets by similarity.

The same figures are a leak report: the paper's synthetic tasks reach a cosine of 0.97 to the set they are scored on.
What training may not contain is refused by ``evaluation.analyses.decontamination``; this names what is merely near.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from math import floor
from statistics import fmean, median
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from environments.base import InputError, Record, TaskSpec
from memory.failures import DIMENSION, hashed_ngrams
from memory.jsonl import derive_seed

Vectors: TypeAlias = NDArray[np.float64]
"""One vector of length 1 per row."""

EMBEDDER = f"hashed-ngrams-{DIMENSION}"
"""The name of ``embed`` in reports."""

_ROWS = 512  # texts embedded, and rows of cosines held, at once


def text_of(task: TaskSpec) -> str:
    """Return a task's intent: its user turns, one per line (ours; the paper says intents and queries)."""
    return "\n".join(task.turns)


def embed(texts: Sequence[str]) -> Vectors:
    """Return the failure memory's vector of each text (ours; the papers name no encoder): it compares wordings."""
    parts = [hashed_ngrams(list(texts[begin : begin + _ROWS])) for begin in range(0, len(texts), _ROWS)]
    return unit(np.concatenate([np.asarray(part, dtype=np.float64) for part in parts]))


def unit(vectors: NDArray[np.floating]) -> Vectors:
    """Return rows of length 1. Raises ValueError for a row without a direction."""
    rows = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.all(lengths > 0):
        raise ValueError("a text has no vector")
    directions: Vectors = rows / lengths
    return directions


def nearest_rows(vectors: Vectors, targets: Vectors) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return for each row the index of the target with the largest cosine, the first of equal ones, and the cosine."""
    places, cosines = [], []
    for begin in range(0, len(vectors), _ROWS):
        products = vectors[begin : begin + _ROWS] @ targets.T
        best = products.argmax(axis=1)
        places.append(best)
        cosines.append(products[np.arange(len(best)), best])
    return np.concatenate(places), np.clip(np.concatenate(cosines), -1.0, 1.0)


Level = Literal["low", "medium", "high", "mixed"]
LEVELS: tuple[Level, ...] = ("low", "medium", "high", "mixed")
BIN = 0.05
"""The width of a bin of figure 5 (ours)."""


class NearestTarget(Record):
    """A training task, the evaluation task that it is most similar to, and their cosine."""

    task: str
    target: str
    cosine: float


class SimilarityReport(Record):
    """The largest cosine of each training task to an evaluation task (figure 5), and the pairs to look at.

    ``bins`` counts tasks by the lower edge of their bin, ``BIN`` wide. ``above``: pairs with a cosine of at least
    ``threshold``, the nearest first.
    """

    tasks: int
    targets: int
    embedder: str
    mean: float
    median: float
    largest: float
    bins: dict[float, int]
    threshold: float
    above: tuple[NearestTarget, ...]


class SimilaritySubset(Record):
    """Ids of tasks of one level of similarity (table 13), and the mean of their largest cosines."""

    level: Level
    mean: float
    tasks: tuple[str, ...]


def nearest_targets(
    tasks: Sequence[str], vectors: Vectors, targets: Sequence[str], target_vectors: Vectors
) -> tuple[NearestTarget, ...]:
    """Return the nearest target of each task, in the tasks' order. Ids and vectors are by row."""
    places, cosines = nearest_rows(vectors, target_vectors)
    return tuple(
        NearestTarget(task=task, target=targets[int(place)], cosine=float(cosine))
        for task, place, cosine in zip(tasks, places, cosines, strict=True)
    )


def similarity_report(nearest: Sequence[NearestTarget], targets: int, *, threshold: float = 0.9) -> SimilarityReport:
    """Return the distribution of the largest cosines. ``threshold`` is ours."""
    cosines = [one.cosine for one in nearest]
    above = sorted((one for one in nearest if one.cosine >= threshold), key=lambda one: (-one.cosine, one.task))
    return SimilarityReport(
        tasks=len(nearest),
        targets=targets,
        embedder=EMBEDDER,
        mean=fmean(cosines),
        median=median(cosines),
        largest=max(cosines),
        bins=similarity_bins(cosines),
        threshold=threshold,
        above=tuple(above),
    )


def similarity_bins(cosines: Sequence[float]) -> dict[float, int]:
    """Return the tasks in each bin from the lowest to the highest value, empty ones between them included."""
    # A value on an edge belongs to the bin above it, whatever the division's last digit says.
    counts = Counter(floor(cosine / BIN + 1e-9) for cosine in cosines)
    return {round(number * BIN, 10): counts[number] for number in range(min(counts), max(counts) + 1)}


def similarity_subsets(nearest: Sequence[NearestTarget], seed: int = 0) -> tuple[SimilaritySubset, ...]:
    """Return subsets of equal size: of low, medium and high similarity, and mixed (table 13).

    Tasks are ordered by their largest cosine and cut into thirds (ours; the paper gives the bins' means alone). Each
    subset is drawn from its third, the mixed one from all three in equal parts; its size is a third, rounded down.
    Equal arguments give equal subsets.

    Raises InputError for fewer than three tasks.
    """
    ordered = sorted(nearest, key=lambda one: (one.cosine, one.task))
    size = len(ordered) // 3
    if not size:
        raise InputError(f"{len(ordered)} tasks cannot be cut into thirds: give at least three")
    # The middle gets the remainder: the outer thirds are compared.
    thirds = (ordered[:size], ordered[size : len(ordered) - size], ordered[len(ordered) - size :])
    rng = random.Random(derive_seed(seed, "similarity"))
    chosen: dict[Level, list[NearestTarget]] = {
        level: rng.sample(third, size) for level, third in zip(LEVELS, thirds, strict=False)
    }
    parts = [size // 3 + (number < size % 3) for number in range(3)]
    chosen["mixed"] = [one for third, part in zip(thirds, parts, strict=True) for one in rng.sample(third, part)]
    return tuple(
        SimilaritySubset(
            level=level,
            mean=fmean(one.cosine for one in chosen[level]),
            tasks=tuple(sorted(one.task for one in chosen[level])),
        )
        for level in LEVELS
    )


def similarity_table(report: SimilarityReport) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of the histogram of figure 5, one row per bin."""
    most = max(report.bins.values())
    rows: list[tuple[str, ...]] = [
        (f"{low:.2f} to {low + BIN:.2f}", str(count), f"{count / report.tasks:.1%}", "█" * round(30 * count / most))
        for low, count in report.bins.items()
    ]
    return ("cosine", "tasks", "share", ""), rows
