"""Draws a run's records for people as SVG: bars, curves, groups of rollouts, changes with intervals, the graph.

Notebooks show a chart by its last expression. Every chart has a title, names its axes, and says in words what it shows
for readers without pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from environments.drawing import COLOURS, line, scale, svg, text, ticks

__all__ = [
    "Bar",
    "BeforeAfter",
    "Chart",
    "Curve",
    "DotRow",
    "Dots",
    "Mean",
    "bar_chart",
    "box_chart",
    "change_chart",
    "curve_chart",
    "dot_chart",
]

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
        """Return what a notebook shows: the picture, or the words where there are no pictures."""
        return {"image/svg+xml": self.svg, "text/plain": self.words}

    def __repr__(self) -> str:
        """Return the words."""
        return self.words


class Bar(NamedTuple):
    """One bar: its name, its value, a note behind the value, and whether it stands out in the second colour."""

    name: str
    value: float
    note: str = ""
    marked: bool = False


class Mean(NamedTuple):
    """A value with its 95 % interval (None: not estimated) and the number ``n`` that it is of."""

    value: float
    interval: tuple[float, float] | None
    n: int


class BeforeAfter(NamedTuple):
    """One row of a chart of changes: what it is of, before and after, and a note below its name."""

    name: str
    before: Mean
    after: Mean
    note: str = ""


class Curve(NamedTuple):
    """One line: its name and its points (x, estimate), in order of x."""

    name: str
    points: tuple[tuple[float, Mean], ...]


class Dots(NamedTuple):
    """One group of rollouts: its column, each rollout's success, and the places of those to draw a frame around."""

    column: int
    results: tuple[bool, ...]
    framed: tuple[int, ...] = ()


class DotRow(NamedTuple):
    """One row of groups: its name, mostly a task's, and its groups."""

    name: str
    groups: tuple[Dots, ...]


def bar_chart(title: str, x_label: str, bars: Sequence[Bar], limit: tuple[float, str] | None = None) -> Chart:
    """Draw one horizontal bar for each value, from zero; ``limit`` draws a line at a value, with its name.

    Raises ValueError for no bar, and for a value below zero.
    """
    if not bars or min(bar.value for bar in bars) < 0:
        raise ValueError("bars need values of zero or more")
    left = _room(bar.name for bar in bars)
    height = _TOP + _ROW * len(bars) + _BOTTOM + (18 if limit else 0)
    bottom = height - _BOTTOM
    marks = ticks(0.0, max(*(bar.value for bar in bars), limit[0] if limit else 0.0, 1e-9))
    place = scale(marks, left, WIDTH - 120)
    parts = [_title(title), *_x_axis(marks, place, bottom, x_label, (left + WIDTH - 120) / 2, _TOP)]
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


def curve_chart(title: str, x_label: str, y_label: str, curves: Sequence[Curve], *, share: bool = True) -> Chart:
    """Draw curves with their intervals over a common x axis; ``share`` fixes the y axis to 0 .. 1.

    Raises ValueError where no curve has a point.
    """
    points = [point for curve in curves for point in curve.points]
    if not points:
        raise ValueError("no curve has a point")
    height, left, right = 400, 64, WIDTH - _room(curve.name for curve in curves) + 10
    bottom, top = height - _BOTTOM, _TOP + 18
    xs = sorted({x for x, _ in points})
    x_marks = tuple(xs) if 1 < len(xs) <= 8 else ticks(xs[0], xs[-1])
    ends = [end for _, one in points for end in (one.value, *(one.interval or ()))]
    y_marks = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0) if share else ticks(min(0.0, *ends), max(ends))
    place_x, place_y = scale(x_marks, left + 12, right), scale(y_marks, bottom, top)
    parts = [_title(title), text(10, _TOP, y_label, role="label")]
    for mark in y_marks:
        parts.append(line(left, place_y(mark), right, place_y(mark), _GRID))
        parts.append(text(left - 6, place_y(mark) + 4, f"{mark:g}", anchor="end"))
    parts += _x_axis(x_marks, place_x, bottom, x_label, (left + right) / 2, bottom)
    for number, curve in enumerate(curves):
        colour = COLOURS[1 + number % (len(COLOURS) - 1)]
        path = " ".join(f"{place_x(x):.1f},{place_y(one.value):.1f}" for x, one in curve.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, one in curve.points:
            if one.interval is not None:
                at = place_x(x) + 3 * number
                parts.append(line(at, place_y(one.interval[0]), at, place_y(one.interval[1]), colour, 1.5))
            parts.append(_dot(place_x(x), place_y(one.value), colour, 4))
        parts.append(text(right + 14, top + 18 * number + 10, _short(curve.name), fill=colour))
    words = "; ".join(f"{one.name}: {', '.join(f'{_value(e)} at {x:g}' for x, e in one.points)}" for one in curves)
    return Chart(svg(WIDTH, height, parts), f"{title}. {words}")


def change_chart(title: str, x_label: str, changes: Sequence[BeforeAfter]) -> Chart:
    """Draw a ring before, a dot after, each with its interval as a bar, for every row, on an axis from 0 to 1.

    Raises ValueError for no row.
    """
    if not changes:
        raise ValueError("no change to draw")
    left, row = _room(name for one in changes for name in (f"{one.name} (n = {one.after.n})", one.note)), 44
    height = _TOP + row * len(changes) + _BOTTOM
    bottom, marks = height - _BOTTOM, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    place = scale(marks, left, WIDTH - 24)
    label = f"{x_label}; ring: before, dot: after, bars: 95 % intervals"
    parts = [_title(title), *_x_axis(marks, place, bottom, label, WIDTH / 2, _TOP)]
    for number, one in enumerate(changes):
        y = _TOP + row * number + row / 2
        name = _short(f"{one.name} (n = {one.after.n})")
        parts.append(text(left - 8, y - 2 if one.note else y + 4, name, anchor="end"))
        parts.append(text(left - 8, y + 13, _short(one.note), size=11, anchor="end", fill=_AXIS))
        for estimate, dy, colour in ((one.before, -7, _SOFT), (one.after, 7, _MAIN)):
            if estimate.interval is not None:
                low, high = map(place, estimate.interval)
                parts.append(line(low, y + dy, high, y + dy, colour, 3))
            filled = colour if estimate is one.after else "#ffffff"
            parts.append(_dot(place(estimate.value), y + dy, filled, 5, edge=colour))
    words = "; ".join(
        f"{one.name}: {_value(one.before)} before, {_value(one.after)} after {one.note}".rstrip() for one in changes
    )
    return Chart(svg(WIDTH, height, parts), f"{title}. {words}")


def dot_chart(title: str, x_label: str, rows: Sequence[DotRow], breaks: Mapping[int, str] | None = None) -> Chart:
    """Draw each group of rollouts as dots, filled for a success: a row per task, a column per step or iteration.

    Framed rollouts have a square around them. ``breaks`` draws a darker line with a name at the first column from a
    number on. Of more than 12 columns, those with frames and the latest are drawn. Raises ValueError for no group.
    """
    every = sorted({group.column for row in rows for group in row.groups})
    if not every:
        raise ValueError("no group to draw")
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


def box_chart(title: str, boxes: Mapping[str, str], arrows: Iterable[tuple[str, str]]) -> Chart:
    """Draw boxes joined by arrows, left to right in the order of the longest way to each; boxes without one lead.

    ``boxes``: a note by name, drawn under it. Arrows that name another box are left out. Raises ValueError for no box
    and for a circle.
    """
    joins = [(one, other) for one, other in arrows if one in boxes and other in boxes]
    column = dict.fromkeys(boxes, 0)
    for _ in boxes:
        for one, other in joins:
            column[other] = max(column[other], column[one] + 1)
    if not boxes or any(column[other] <= column[one] for one, other in joins):
        raise ValueError("boxes need an order: there is none, or a circle")
    across = max(column.values()) + 1
    step, wide, tall = (WIDTH - 20) / across, (WIDTH - 20) / across - 14, 46
    place, filled = {}, dict.fromkeys(range(across), 0)
    for name in boxes:
        place[name] = (10 + step * column[name], _TOP + 62 * filled[column[name]])
        filled[column[name]] += 1
    height = _TOP + 62 * max(filled.values()) + 34
    parts = [_title(title)]
    parts.append(
        f'<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{_AXIS}"/></marker></defs>'
    )
    below = max(y for _, y in place.values()) + tall + 16
    for one, other in joins:
        (x, y), (to_x, to_y) = place[one], place[other]
        if column[other] == column[one] + 1:
            d = f"M{x + wide:.1f} {y + tall / 2:.1f} {to_x:.1f} {to_y + tall / 2:.1f}"
        else:  # past boxes between: below them
            d = f"M{x + wide / 2:.1f} {y + tall} V{below} H{to_x + wide / 2:.1f} V{to_y + tall}"
        parts.append(f'<path d="{d}" fill="none" stroke="{_AXIS}" marker-end="url(#end)"/>')
    for name, (x, y) in place.items():
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{tall}" rx="6" fill="#eef4f9" stroke="{_MAIN}"/>'
        )
        fits = int(wide / 5.6)
        parts.append(text(x + wide / 2, y + (20 if boxes[name] else 28), name, anchor="middle", role="label"))
        parts.append(text(x + wide / 2, y + 37, _short(boxes[name], fits), size=10, anchor="middle", fill=_AXIS))
    words = ", ".join(f"{one} -> {other}" for one, other in joins)
    notes = "; ".join(f"{name}: {note}" for name, note in boxes.items() if note)
    return Chart(svg(WIDTH, height, parts), f"{title}. {words}" + (f". {notes}" if notes else ""))


def _title(title: str) -> str:
    return text(10, 22, title, size=14, role="label")


def _x_axis(
    marks: Sequence[float], place: Callable[[float], float], bottom: float, label: str, middle: float, top: float
) -> list[str]:
    parts = []
    for mark in marks:
        parts.append(line(place(mark), top, place(mark), bottom + 4, _GRID))
        parts.append(text(place(mark), bottom + 18, f"{mark:g}", anchor="middle"))
    return [*parts, text(middle, bottom + 40, label, anchor="middle", role="label")]


def _dot(x: float, y: float, fill: str, radius: float, *, edge: str | None = None) -> str:
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{edge or fill}" stroke-width="1.5"/>'
    )


def _room(names: Iterable[str], most: int = _MOST_LETTERS) -> float:
    return 24 + _LETTER * max((len(_short(name, most)) for name in names), default=0)


def _short(name: str, most: int = _MOST_LETTERS) -> str:
    return name if len(name) <= most else name[: max(1, most - 3)] + "..."


def _value(one: Mean) -> str:
    interval = "" if one.interval is None else f" ({one.interval[0]:.2f} to {one.interval[1]:.2f})"
    return f"{one.value:.2f}{interval}"
