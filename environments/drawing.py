"""Draws SVG without a plotting library: text, lines, round ticks, scales. Plots of runs and of studies are made of it.

A picture has an opaque white ground, so that it reads the same on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, log10

COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""The colours of Okabe and Ito, which readers with any colour vision can distinguish."""


def ticks(low: float, high: float, about: int = 6) -> tuple[float, ...]:
    """Return about ``about`` round numbers, evenly spaced, from at most ``low`` to at least ``high``."""
    if high <= low:
        high = low + 1.0
    rough = (high - low) / about
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return tuple(round(number * step, 10) for number in range(first, last + 1))


def scale(marks: Sequence[float], begin: float, end: float) -> Callable[[float], float]:
    """Return the place in pixels of a value: the first mark lies at ``begin``, the last one at ``end``."""
    low, high = marks[0], marks[-1]
    return lambda value: begin + (value - low) / (high - low) * (end - begin)


def text(
    x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", fill: str = "#222222", role: str = ""
) -> str:
    """Return a line of text. ``role`` becomes its class: ``label`` for a title or the name of an axis."""
    style = f'font-size="{size}" text-anchor="{anchor}" fill="{fill}"'
    named = f' class="{role}"' if role else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    """Return a straight line."""
    wide = "" if width == 1 else f' stroke-width="{width:g}"'
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{wide}/>'


def svg(width: int, height: int, parts: Sequence[str]) -> str:
    """Return a whole picture of ``parts``, in pixels, ending in a newline."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *parts, "</svg>", ""])
