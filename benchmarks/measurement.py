"""The record of a measurement, one row of the table, and its computation from pairs of interleaved measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from environments.base import Record

__all__ = ["Measurement", "Pair", "of_pairs"]


class Measurement(Record):
    """One row of the table.

    ``compared`` says in words what ``ours`` and ``other`` are: both are medians, in ``unit``; ``other`` is what a user
    would run instead, None where there is nothing. ``ratio`` is the median over pairs of ours / other, ``spread`` the
    smallest and largest pair (without ``other``: of ours itself); ``repeats`` counts the pairs. ``expected`` is the
    expectation in words, ``met`` whether the figures satisfy it, None when nothing is expected. ``note`` says what a
    reader must know beside the figures.
    """

    name: str
    compared: str
    ours: float
    other: float | None = None
    unit: str
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    repeats: int
    expected: str = ""
    met: bool | None = None
    note: str = ""


class Pair(NamedTuple):
    """Two figures measured one after the other, so that a slow machine slows both."""

    ours: float
    other: float


def of_pairs(
    name: str,
    compared: str,
    pairs: Sequence[Pair],
    unit: str,
    expected: str = "",
    met: Callable[[float], bool] | None = None,
    note: str = "",
) -> Measurement:
    """Return the row for interleaved pairs; ``met`` gets the median of the ratios ours / other."""
    ratios = [pair.ours / pair.other for pair in pairs]
    ratio = median(ratios)
    return Measurement(
        name=name,
        compared=compared,
        ours=median(pair.ours for pair in pairs),
        other=median(pair.other for pair in pairs),
        unit=unit,
        ratio=ratio,
        spread=(min(ratios), max(ratios)),
        repeats=len(pairs),
        expected=expected,
        met=None if met is None else met(ratio),
        note=note,
    )
