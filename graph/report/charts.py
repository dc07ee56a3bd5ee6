"""Draws a run's records for notebooks as SVG: bars, and groups of rollouts as dots.

Notebooks show a chart by its last expression. Every chart has a title, names its axes, and says in words what it shows
for readers without pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from environments.drawing import COLOURS, line, scale, svg, text, ticks

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


class Bar(NamedTuple):
    """One bar: its name, its value, a note behind the value, and whether it stands out in the second colour."""

    name: str
    value: float
    note: str = ""
    marked: bool = False


class Dots(NamedTuple):
    """One group of rollouts: its column, each rollout's success, and the places of those to draw a frame around."""

    column: int
    results: tuple[bool, ...]
    framed: tuple[int, ...] = ()


class DotRow(NamedTuple):
    """One row of groups."""

    name: str
    groups: tuple[Dots, ...]


def bar_chart(title: str, x_label: str, bars: Sequence[Bar], limit: tuple[float, str] | None = None) -> Chart:
    """Draw one horizontal bar for each value, from zero; ``limit`` draws a line at a value, with its name."""
    left = _room(bar.name for bar in bars)
    height = _TOP + _ROW * len(bars) + _BOTTOM + (18 if limit else 0)
    bottom = height - _BOTTOM
    marks = ticks(0.0, max(*(bar.value for bar in bars), limit[0] if limit else 0.0, 1e-9))
    place = scale(marks, left, WIDTH - 120)
    parts = [_title(title), text((left + WIDTH - 120) / 2, bottom + 40, x_label, anchor="middle", role="label")]
    for mark in marks:
        parts.append(line(place(mark), _TOP, place(mark), bottom + 4, _GRID))
        parts.append(text(place(mark), bottom + 18, f"{mark:g}", anchor="middle"))
    for number, bar in enumerate(bars):
        y = _TOP + _ROW * number
        colour = _OTHER if bar.marked else _MAIN
        parts.append(text(left - 8, y + 17, _short(bar.name), anchor="end"))
        wide = place(bar.value) - left
        parts.append(f'<rect x="{left}" y="{y + 4}" width="{wide:.1f}" height="{_ROW - 8}" fill="{colour}"/>')
        note = f"{bar.value:g} {bar.note}".rstrip()
        parts.append(text(place(bar.value) + 6, y + 17, note))
    if limit:
        x = place(limit[0])
        parts.append(line(x, _TOP - 4, x, bottom, COLOURS[0], 2))
        left_of_it = x > WIDTH - 220
        anchor = "end" if left_of_it else "start"
        parts.append(text(x - 6 if left_of_it else x + 6, bottom - 5, limit[1], anchor=anchor))
    words = ", ".join(f"{bar.name}: {bar.value:g} {bar.note}".rstrip() for bar in bars)
    return Chart(svg(WIDTH, height, parts), f"{title}. {x_label}: {words}" + (f"; line: {limit[1]}" if limit else ""))


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
