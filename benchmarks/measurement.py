"""Measures sides in turn, each in a process of its own; the record of a measurement, and the table of several."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from statistics import median
from typing import TypeVar

import psutil  # type: ignore[import-untyped]

from environments.base import Record
from environments.command import markdown_table
from training.device_memory import gpu_bytes

_PACKAGES = ("torch", "transformers", "trl", "chromadb", "bfcl-eval")
_COLUMNS = ("benchmark", "what is compared", "ours", "other", "ratio", "spread", "expected", "met", "repeats")
_READING = (
    "Ours and other are medians; the ratio ours / other is the median over interleaved pairs, the spread its smallest"
    " and largest."
)

Answer = TypeVar("Answer", bound=Record)


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


def interleaved(
    sides: Mapping[str, Sequence[str]], variables: Mapping[str, str], answer: type[Answer], times: int
) -> list[dict[str, Answer]]:
    """Start the command of each side, and ask all in turn for their figures, ``times`` times.

    A side answers each line of its standard input with one line of JSON, and waits between them. ``variables`` are
    added to its environment. Raises RuntimeError when a side ends early.
    """
    started = {
        side: subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | dict(variables)
        )
        for side, command in sides.items()
    }
    try:
        return [
            {side: answer.model_validate_json(_answered(side, process)) for side, process in started.items()}
            for _ in range(times)
        ]
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


def _answered(side: str, process: subprocess.Popen[str]) -> str:
    """Make a side measure once; return its line."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # its absence shows in the missing answer
        print("go", file=process.stdin, flush=True)
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the side {side} ended early with status {process.wait()}: its output is above")
    return line


def of_pairs(
    name: str,
    compared: str,
    pairs: Iterable[tuple[Answer, Answer]],
    figure: Callable[[Answer], float],
    unit: str,
    *,
    least: float | None = None,
    most: float | None = None,
    note: str = "",
) -> Measurement:
    """Return the row for a figure of pairs of answers, ours first: one is given after the other, as machines slow down.

    ``least`` or ``most`` is what is expected of the median of the ratios ours / other.
    """
    ours, others = zip(*((figure(own), figure(other)) for own, other in pairs), strict=True)
    ratios = [own / other for own, other in zip(ours, others, strict=True)]
    ratio, expected, met = median(ratios), "", None
    if least is not None:
        expected, met = f"at least {least:g}", ratio >= least
    elif most is not None:
        expected, met = f"at most {most:g}", ratio <= most
    return Measurement(
        name=name,
        compared=compared,
        ours=median(ours),
        other=median(others),
        unit=unit,
        ratio=ratio,
        spread=(min(ratios), max(ratios)),
        repeats=len(ratios),
        expected=expected,
        met=met,
        note=note,
    )


def table(measurements: Sequence[Measurement]) -> str:
    """Return the whole file in Markdown: the machine, one row per measurement, and the notes."""
    rows = [
        (
            *(one.name, one.compared, f"{_number(one.ours)} {one.unit}", f"{_number(one.other)} {one.unit}"),
            *(_number(one.ratio), f"{_number(one.spread[0])} to {_number(one.spread[1])}", one.expected),
            *({True: "yes", False: "**no**", None: ""}[one.met], one.repeats),
        )
        for one in measurements
    ]
    notes = [f"- {one.name}: {one.note}" for one in measurements if one.note]
    head = ["# Benchmarks", "", f"Measured by `python -m benchmarks` on {_machine()}.", _READING, ""]
    return "\n".join([*head, *markdown_table(_COLUMNS, rows), *(["", *notes] if notes else [])]) + "\n"


def _machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    kind = f"{os.cpu_count()} CPU cores ({platform.machine()}), {memory:.0f} GiB of memory, {platform.system()}"
    if gpu_bytes():  # torch is imported only where there is one
        import torch

        kind += f", {torch.cuda.get_device_name(0)}"
    return f"{kind}, Python {platform.python_version()}, {packages}"


def _number(value: float) -> str:
    """Format with three digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
