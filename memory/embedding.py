"""Texts as vectors that work offline: hashed character n-grams, for the failure memory and for figures on texts."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["DIMENSION", "hashed_ngrams"]

DIMENSION = 1024
"""Length of a vector (ours)."""


def hashed_ngrams(texts: Sequence[str]) -> NDArray[np.float32]:
    """Count character 3- to 5-grams, hashed with a sign into ``DIMENSION`` buckets, L2-normalised (our choice).

    Returns one row per text, also for the empty text. Case and runs of white space are ignored. A text's vector is the
    same in every process and on every machine.
    """
    rows = np.zeros((len(texts), DIMENSION), dtype=np.float64)
    for row, text in zip(rows, texts, strict=True):
        for gram, count in Counter(_ngrams(text)).items():
            # CRC-32 and not hash(), which differs between processes.
            digest = zlib.crc32(gram.encode())
            row[digest % DIMENSION] += count if digest & 0x80000000 else -count
        if not row.any():
            # Only in very short texts can grams of one bucket and opposite signs cancel out.
            row[zlib.crc32(text.encode()) % DIMENSION] = 1.0
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32)


def _ngrams(text: str) -> list[str]:
    # The two marks make beginnings and ends count, and give a gram even to the empty text.
    marked = "\x02" + " ".join(text.casefold().split()) + "\x03"
    grams = [marked[start : start + n] for n in (3, 4, 5) for start in range(len(marked) - n + 1)]
    return grams or [marked]
