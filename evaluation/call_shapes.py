"""Success by call shape, and the function that a task belongs to: what tasks share beyond their start state.

A policy mostly solves all or none of the tasks that call a function, so the functions that many tasks call dominate a
mean over tasks. A task's *call shape* is the sequence of its reference's calls without values; the macro mean gives
each shape the same weight. For intervals, a task belongs to the rarest function of its reference (ours: it is
mostly the one that decides).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

Shape = tuple[str, ...]


def macro_mean(attempts: Sequence[tuple[Shape, bool]]) -> float | None:
    """Return the mean over call shapes of the share solved, in [0, 1]; None without a known shape."""
    found: dict[Shape, list[bool]] = {}
    for shape, success in attempts:
        found.setdefault(shape, []).append(success)
    return fmean(fmean(one) for one in found.values()) if any(found) else None


def rarest_functions(shapes: Sequence[Shape]) -> list[str | int]:
    """Return for each task the function of its shape that fewest tasks call; its own number where none is known."""
    calling = Counter(name for shape in shapes for name in set(shape))
    return [min(shape, key=lambda name: (calling[name], name)) if shape else n for n, shape in enumerate(shapes)]


def numbered(labels: Sequence[Hashable]) -> NDArray[np.int64]:
    """Return equal labels as equal numbers from 0, in the order in which they first appear."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)
