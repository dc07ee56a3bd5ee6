"""Draws figures by iteration as SVG, for the page of a run: lines with their intervals, or bars on top of one another.

Colours are classes of the page's style, light or dark as the page is. There is no plotting library: its pictures would
need inline styles, which the page's policy forbids.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

WIDE, HIGH, LEFT, TOP = 380, 190, 46, 34
"""Size of a picture without its legend, and where the axes begin, in pixels."""
COLOURS = 7
"""Classes ``c0`` to ``c6`` of the page's style: the colours of Okabe and Ito, for readers with any colour vision."""
_NAMES = 12  # of places on the x axis


class Series(NamedTuple):
    """One figure at each place of the x axis, None where it is not known; ``low`` and ``high`` bound its interval."""

    name: str
    values: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()


def iterations_chart(
    title: str, names: Sequence[str], *, lines: Sequence[Series] = (), bars: Sequence[Series] = (), top: float = 0.0
) -> str:
    """Return the picture of figures by iteration; ``top`` ends the axis, of shares of 1. Series of zeros are left out.

    ``names`` are those of the places on the x axis.
    """
    shown = [one for one in (*lines, *bars) if any(one.values)]
    heights = [sum(one.values[place] or 0 for one in bars) for place in range(len(names))]
    marks = ticks(top or max(*heights, *(value or 0 for one in lines for value in one.values), 1.0))
    slot = (WIDE - LEFT - 10) / len(names)

    def y(value: float) -> float:
        return HIGH - value / marks[-1] * (HIGH - TOP)

    middles = [LEFT + slot * (place + 0.5) for place in range(len(names))]
    parts = [_text(10, 20, title, "label")]
    for mark in marks:
        parts.append(f'<path class="grid" d="M{LEFT} {y(mark):.1f}H{WIDE - 10}"/>')
        parts.append(_text(LEFT - 6, y(mark) + 4, f"{mark:.0%}" if top else f"{mark:g}", "end"))
    for x, name in list(zip(middles, names, strict=True))[:: ceil(len(names) / _NAMES)]:
        parts.append(_text(x, HIGH + 16, name, "middle"))
    base = [0.0] * len(names)
    for number, one in enumerate(shown):
        places = [(place, value) for place, value in enumerate(one.values) if value is not None]
        drawn, row = [], HIGH + 36 + 16 * number
        if one in bars:
            for place, value in places:
                x, foot = middles[place] - 0.35 * slot, y(base[place])
                drawn.append(_bar(x, y(base[place] + value), 0.7 * slot, foot, f"{one.name}: {value:g}"))
                base[place] += value
        else:
            for place, _ in places if one.low else ():
                low, high = y(one.low[place] or 0), y(one.high[place] or 0)
                drawn.append(f'<path class="interval" d="M{middles[place]:.1f} {low:.1f}V{high:.1f}"/>')
            points = " ".join(f"{middles[place]:.1f},{y(value):.1f}" for place, value in places)
            drawn.append(f'<polyline points="{points}"/>')
            for place, value in places:
                at = f'cx="{middles[place]:.1f}" cy="{y(value):.1f}" r="3"'
                drawn.append(f"<circle {at}><title>{escape(one.name)}: {value:.1%}</title></circle>")
        drawn.append(_bar(LEFT, row - 9, 10, row + 1))
        parts += [f'<g class="c{number % COLOURS}">', *drawn, "</g>", _text(LEFT + 16, row, one.name)]
    size = f'viewBox="0 0 {WIDE} {HIGH + 36 + 16 * len(shown)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    return "\n".join([head, *parts, "</svg>", ""])


def _bar(x: float, top: float, width: float, bottom: float, title: str = "") -> str:
    size = f'width="{width:.1f}" height="{bottom - top:.1f}"'
    return f'<rect x="{x:.1f}" y="{top:.1f}" {size}><title>{escape(title)}</title></rect>'


def _text(x: float, y: float, words: str, role: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{role}">{escape(words)}</text>'


def ticks(high: float) -> tuple[float, ...]:
    """Return about four round numbers, evenly spaced, from 0 to at least ``high``, a number above 0."""
    rough = high / 4
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return tuple(round(number * step, 10) for number in range(ceil(high / step - 1e-9) + 1))
