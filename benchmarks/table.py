"""Formats measurements as a Markdown table, with the machine that they were taken on."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version

import psutil  # type: ignore[import-untyped]

from benchmarks.measurement import Measurement

__all__ = ["table"]

_PACKAGES = ("torch", "transformers", "trl", "chromadb", "langgraph", "bfcl-eval")
_COLUMNS = ("benchmark", "what is compared", "ours", "other", "ratio", "spread", "expected", "met", "repeats")


def table(measurements: Sequence[Measurement], failures: Sequence[str] = ()) -> str:
    """Return the whole file: the machine, one row per measurement, the notes and the failures."""
    lines = ["# Benchmarks", "", f"Measured by `python -m benchmarks` on {_machine()}.", _READING, ""]
    lines += [_line(_COLUMNS), _line(["---"] * len(_COLUMNS))]
    lines += [_line(_cells(measurement)) for measurement in measurements]
    notes = [f"- {measurement.name}: {measurement.note}" for measurement in measurements if measurement.note]
    if notes:
        lines += ["", *notes]
    if failures:
        lines += ["", "Not measured:", "", *(f"- {failure}" for failure in failures)]
    return "\n".join(lines) + "\n"


_READING = (
    "Ours and other are medians; the ratio ours / other is the median over interleaved pairs, the spread its smallest"
    " and largest (without an other: those of ours)."
)


def _machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    kind = f"{os.cpu_count()} CPU cores ({platform.machine()}), {memory:.0f} GiB of memory, {platform.system()}"
    return f"{kind}, Python {platform.python_version()}, {packages}"


def _cells(one: Measurement) -> list[str]:
    spread = "" if one.spread is None else f"{_number(one.spread[0])} to {_number(one.spread[1])}"
    return [
        one.name,
        one.compared,
        f"{_number(one.ours)} {one.unit}",
        "" if one.other is None else f"{_number(one.other)} {one.unit}",
        "" if one.ratio is None else _number(one.ratio),
        spread,
        one.expected,
        {True: "yes", False: "**no**", None: ""}[one.met],
        str(one.repeats),
    ]


def _number(value: float) -> str:
    """Format with three digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
