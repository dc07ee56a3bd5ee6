"""Figure 5 and table 13 of CoEvolve: how similar training tasks are to evaluation tasks, and subsets by similarity.

The same figures are a leak report: the paper's synthetic tasks reach a cosine of 0.97 to the set they are scored on.
What training may not contain is refused where tasks are admitted (``environments.verification``); this names what is
merely near.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from math import floor
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from environments.base import InputError, TaskSpec
from evaluation.analyses import Table
from memory.failures import DIMENSION, hashed_ngrams
from memory.jsonl import derive_seed
from memory.records import Task

Vectors: TypeAlias = NDArray[np.float64]
"""One vector of length 1 per row."""

EMBEDDER = f"hashed-ngrams-{DIMENSION}"
"""The name of ``embed`` in reports."""

BIN = 0.05
"""The width of a bin of figure 5 (ours)."""

_ROWS = 512  # texts embedded, and rows of cosines held, at once


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
    parts = [hashed_ngrams(list(texts[begin : begin + _ROWS])) for begin in range(0, len(texts), _ROWS)]
    rows = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
    vectors: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return vectors


def nearest_targets(
    tasks: Sequence[str], vectors: Vectors, targets: Sequence[str], target_vectors: Vectors
) -> list[NearestTarget]:
    """Return for each task the target with the largest cosine, the first of equal ones. Ids and vectors are by row."""
    found = []
    for begin in range(0, len(tasks), _ROWS):
        products = vectors[begin : begin + _ROWS] @ target_vectors.T
        for task, row in zip(tasks[begin : begin + _ROWS], products, strict=True):
            place = int(row.argmax())
            found.append(NearestTarget(task, targets[place], float(np.clip(row[place], -1.0, 1.0))))
    return found


def nearest_of(tasks: Sequence[Task], targets: Sequence[Task]) -> list[NearestTarget]:
    """Return the nearest of the targets to each task, by their texts."""
    vectors, aims = (embed([text_of(one) for one in some]) for some in (tasks, targets))
    return nearest_targets([one.id for one in tasks], vectors, [one.id for one in targets], aims)


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
