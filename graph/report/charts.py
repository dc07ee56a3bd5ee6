"""Draws a run's records as SVG, for its page and for notebooks: figures by iteration, groups of rollouts as dots.

Notebooks show a chart by its last expression. Every chart has a title, names its axes, and says in words what it shows
for readers without pictures. A picture has an opaque white ground, so that it reads the same on a light and on a dark
page. There is no plotting library: its pictures would need inline styles, which the page's policy forbids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""The colours of Okabe and Ito, which readers with any colour vision can distinguish."""

WIDTH = 720
_TOP, _BOTTOM, _ROW = 44, 52, 26
_LETTER = 7.4  # pixels of the 12 px sans-serif that names are set in, on average, in the widest usual font
_MOST_LETTERS = 44
_MOST_COLUMNS = 12
_GRID, _AXIS, _SOFT = "#dddddd", "#555555", "#777777"
_MAIN, _OTHER = COLOURS[1], COLOURS[2]


@dataclass(frozen=True)
class Chart:
    """A picture as SVG text, and what it shows in words."""

    svg: str
    words: str

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"image/svg+xml": self.svg, "text/plain": self.words}

    def __repr__(self) -> str:
        return self.words


class Dots(NamedTuple):
    """One group of rollouts: its column, each rollout's success, and the places of those to draw a frame around."""

    column: int
    results: tuple[bool, ...]
    framed: tuple[int, ...] = ()


class DotRow(NamedTuple):
    """One row of groups."""

    name: str
    groups: tuple[Dots, ...]


class Series(NamedTuple):
    """One figure at each place of the x axis, None where it is not known; ``low`` and ``high`` bound its interval."""

    name: str
    values: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()


def iterations_chart(
    title: str, names: Sequence[str], *, lines: Sequence[Series] = (), bars: Sequence[Series] = (), top: float = 0.0
) -> Chart:
    """Draw figures by iteration: lines with their intervals, or bars on top of one another; ``top`` ends the axis."""
    wide, low, high, left = 380, 190, 34, 46
    shown = [one for one in (*lines, *bars) if any(one.values)]
    heights = [sum(one.values[place] or 0 for one in bars) for place in range(len(names))]
    marks = ticks(0.0, top or max(*heights, *(value or 0 for one in lines for value in one.values), 1.0), 4)
    y, slot = scale(marks, low, high), (wide - left - 10) / len(names)
    middles = [left + slot * (place + 0.5) for place in range(len(names))]
    parts = [text(10, 20, title, size=13, role="label")]
    for mark in marks:
        parts += [line(left, y(mark), wide - 10, y(mark), _GRID)]
        parts += [text(left - 6, y(mark) + 4, f"{mark:.0%}" if top else f"{mark:g}", size=11, anchor="end")]
    for x, name in list(zip(middles, names, strict=True))[:: ceil(len(names) / 12)]:
        parts.append(text(x, low + 16, name, size=11, anchor="middle"))
    base = [0.0] * len(names)
    for number, one in enumerate(shown):
        colour = COLOURS[(number + 1) % len(COLOURS)]
        places = [(place, value) for place, value in enumerate(one.values) if value is not None]
        if one in bars:
            for place, value in places:
                x, top_of_it = middles[place] - 0.35 * slot, y(base[place] + value)
                size = f'width="{0.7 * slot:.1f}" height="{y(base[place]) - top_of_it:.1f}"'
                parts.append(f'<rect x="{x:.1f}" y="{top_of_it:.1f}" {size} fill="{colour}"/>')
                base[place] += value
        else:
            for place, _ in places if one.low else ():
                ends = (one.low[place], one.high[place])
                parts.append(line(middles[place], y(ends[0] or 0), middles[place], y(ends[1] or 0), "#9dc3e2", 5))
            points = " ".join(f"{middles[place]:.1f},{y(value):.1f}" for place, value in places)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
            parts += [_dot(middles[place], y(value), colour, 2.5) for place, value in places]
        row = low + 36 + 16 * number
        parts.append(f'<rect x="{left}" y="{row - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(text(left + 16, row, one.name, size=11))
    words = "; ".join(f"{one.name}: {', '.join(_figure(value, top) for value in one.values)}" for one in shown)
    return Chart(svg(wide, low + 36 + 16 * len(shown), parts), f"{title}. {words}")


def _figure(value: float | None, top: float) -> str:
    return "none" if value is None else f"{value:.0%}" if top else f"{value:g}"


def dot_chart(title: str, x_label: str, rows: Sequence[DotRow], breaks: Mapping[int, str] | None = None) -> Chart:
    """Draw each group of rollouts as dots, filled for a success: a row per task, a column per step or iteration.

    Framed rollouts have a square around them. ``breaks`` draws a darker line with a name at the first column from a
    number on. Of more than 12 columns, those with frames and the latest are drawn.
    """
    every = sorted({group.column for row in rows for group in row.groups})
    framed = {group.column for row in rows for group in row.groups if group.framed}
    latest = sorted(every, key=lambda column: (column not in framed, -column))
    columns = sorted(latest[:_MOST_COLUMNS])
    most = max(len(group.results) for row in rows for group in row.groups)
    left = _room(row.name for row in rows)
    step = (WIDTH - left - 20) / len(columns)
    across, apart = most, 13.0
    while across > 1 and across * apart > step - 6:
        apart, across = (11.0, across) if across * 11.0 <= step - 6 else (13.0, -(-across // 2))
    deep = -(-most // across)
    tall = 13 * deep + 15
    height = _TOP + tall * len(rows) + _BOTTOM
    at = {column: left + step * number for number, column in enumerate(columns)}
    begins = {min((c for c in columns if c >= column), default=-1): name for column, name in (breaks or {}).items()}
    parts = [_title(title)]
    for column in columns:
        parts.append(text(at[column] + 6, height - _BOTTOM + 16, str(column)))
        parts.append(line(at[column], _TOP - 6, at[column], height - _BOTTOM, _AXIS if column in begins else _GRID))
        parts.append(text(at[column] + 4, _TOP - 6, begins.get(column, ""), size=11, fill=_AXIS))
    shown = "" if len(columns) == len(every) else f", {len(columns)} of {len(every)}"
    parts.append(text(WIDTH / 2, height - 10, f"{x_label}{shown}; filled: success", anchor="middle", role="label"))
    for number, row in enumerate(rows):
        y = _TOP + tall * number
        parts.append(text(left - 8, y + 6 * deep + 5, _short(row.name), anchor="end"))
        for group in (one for one in row.groups if one.column in at):
            for place, success in enumerate(group.results):
                x, dy = at[group.column] + 12 + apart * (place % across), y + 6 + 13 * (place // across)
                parts.append(_dot(x, dy, _MAIN if success else "#ffffff", 4, edge=_MAIN if success else _SOFT))
                if place in group.framed:
                    parts.append(
                        f'<rect x="{x - apart / 2:.1f}" y="{dy - 6.5:.1f}" width="{apart:g}" height="13" fill="none" '
                        f'stroke="{_OTHER}" stroke-width="1.5"/>'
                    )
    words = "; ".join(
        f"{row.name}: {', '.join(f'{sum(group.results)} of {len(group.results)}' for group in row.groups)}"
        for row in rows
    )
    return Chart(svg(WIDTH, height, parts), f"{title}. {words}")


def _title(title: str) -> str:
    return text(10, 22, title, size=14, role="label")


def _dot(x: float, y: float, fill: str, radius: float, *, edge: str | None = None) -> str:
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{edge or fill}" stroke-width="1.5"/>'
    )


def _room(names: Iterable[str]) -> float:
    return 24 + _LETTER * max((len(_short(name)) for name in names), default=0)


def _short(name: str) -> str:
    return name if len(name) <= _MOST_LETTERS else name[: _MOST_LETTERS - 3] + "..."


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
