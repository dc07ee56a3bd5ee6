"""The record of a measurement, and the table of several."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from statistics import median

import psutil  # type: ignore[import-untyped]

from environments.base import Record
from training.device_memory import gpu_bytes

_PACKAGES = ("torch", "transformers", "trl", "chromadb", "bfcl-eval")
_COLUMNS = ("benchmark", "what is compared", "ours", "other", "ratio", "spread", "expected", "met", "repeats")
_READING = (
    "Ours and other are medians; the ratio ours / other is the median over interleaved pairs, the spread its smallest"
    " and largest."
)


class Measurement(Record):
    """One row of the table.

    ``compared`` says in words what ``ours`` and ``other``, what a user would run instead, are: both are medians, in
    ``unit``. ``ratio`` is the median over pairs of ours / other, ``spread`` the smallest and largest pair; ``repeats``
    counts the pairs. ``expected`` is the expectation in words, ``met`` whether the figures satisfy it, None when
    nothing is expected. ``note`` says what a reader must know beside the figures.
    """

    name: str
    compared: str
    ours: float
    other: float
    unit: str
    ratio: float
    spread: tuple[float, float]
    repeats: int
    expected: str = ""
    met: bool | None = None
    note: str = ""


def of_pairs(
    name: str,
    compared: str,
    pairs: Sequence[tuple[float, float]],
    unit: str,
    expected: str = "",
    met: Callable[[float], bool] | None = None,
    note: str = "",
) -> Measurement:
    """Return the row for pairs of ours and the other's, measured in turn; ``met`` gets the median of their ratios."""
    ratios = [ours / other for ours, other in pairs]
    ratio = median(ratios)
    return Measurement(
        name=name,
        compared=compared,
        ours=median(ours for ours, _ in pairs),
        other=median(other for _, other in pairs),
        unit=unit,
        ratio=ratio,
        spread=(min(ratios), max(ratios)),
        repeats=len(pairs),
        expected=expected,
        met=None if met is None else met(ratio),
        note=note,
    )


def table(measurements: Sequence[Measurement]) -> str:
    """Return the whole file in Markdown: the machine, one row per measurement, and the notes."""
    lines = ["# Benchmarks", "", f"Measured by `python -m benchmarks` on {_machine()}.", _READING, ""]
    lines += [_line(_COLUMNS), _line(["---"] * len(_COLUMNS))]
    lines += [_line(_cells(measurement)) for measurement in measurements]
    notes = [f"- {measurement.name}: {measurement.note}" for measurement in measurements if measurement.note]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def _machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    kind = f"{os.cpu_count()} CPU cores ({platform.machine()}), {memory:.0f} GiB of memory, {platform.system()}"
    return f"{kind}{_gpu()}, Python {platform.python_version()}, {packages}"


def _gpu() -> str:
    """Return the name of the GPU that is measured; torch is imported only where there is one."""
    if not gpu_bytes():
        return ""
    import torch

    return f", {torch.cuda.get_device_name(0)}"


def _cells(one: Measurement) -> list[str]:
    return [
        one.name,
        one.compared,
        f"{_number(one.ours)} {one.unit}",
        f"{_number(one.other)} {one.unit}",
        _number(one.ratio),
        f"{_number(one.spread[0])} to {_number(one.spread[1])}",
        one.expected,
        {True: "yes", False: "**no**", None: ""}[one.met],
        str(one.repeats),
    ]


def _number(value: float) -> str:
    """Format with three digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
