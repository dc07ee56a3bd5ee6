"""Texts of tasks as unit vectors, and cosines between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from environments.base import TaskSpec
from memory.failures import DIMENSION, hashed_ngrams

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
