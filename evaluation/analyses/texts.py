"""Texts of tasks as unit vectors, and cosines between them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from environments.base import InputError, TaskSpec
from memory.embedding import DIMENSION, hashed_ngrams

Vectors: TypeAlias = NDArray[np.float64]
"""One vector of length 1 per row."""

_ROWS = 512  # texts embedded, and rows of cosines held, at once


class TextEmbedder(NamedTuple):
    """A function from texts to unit vectors, and its label: figures of two embedders are not comparable."""

    label: str
    embed: Callable[[Sequence[str]], Vectors]


def text_of(task: TaskSpec) -> str:
    """Return a task's intent: its user turns, one per line (ours; the paper says intents and queries)."""
    return "\n".join(task.turns)


def open_text_embedder(folder: Path | None) -> TextEmbedder:
    """Return the embedder of the failure memory: hashed n-grams, or the sentence-transformers model in ``folder``.

    The papers name no encoder. Hashed n-grams compare wordings; a sentence encoder compares meanings. Raises InputError
    for a folder without a model, and where sentence-transformers is missing.
    """
    if folder is None:
        label, function = f"hashed-ngrams-{DIMENSION}", hashed_ngrams
    elif not folder.is_dir():
        raise InputError(f"--embedder {folder} is not a folder: name the folder of a sentence-transformers model")
    else:
        try:
            package = importlib.import_module("sentence_transformers")
        except ModuleNotFoundError:
            raise InputError(
                "--embedder: the package sentence-transformers is not installed: run pip install sentence-transformers"
            ) from None
        label, function = folder.name, package.SentenceTransformer(str(folder), device="cpu").encode

    def embed(texts: Sequence[str]) -> Vectors:
        parts = [function(list(texts[begin : begin + _ROWS])) for begin in range(0, len(texts), _ROWS)]
        return unit(np.concatenate([np.asarray(part, dtype=np.float64) for part in parts]))

    return TextEmbedder(label, embed)


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
