"""Draws the plots of a study as SVG without a plotting library: curves over steps, and differences with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from environments.base import Record
from environments.drawing import COLOURS, line, scale, svg, text, ticks
from evaluation.study.recipe import BASELINE

if TYPE_CHECKING:
    from evaluation.study.figures import ArmFacts, Point
    from evaluation.study.summary import StudySummary

WIDTH, HEIGHT = 720, 420
LEFT, TOP, BOTTOM = 60, 40, 50
ROOM = 200  # for names, at least
WIDTH_OF_A_LETTER = 7  # of the 12 px sans-serif that names are set in, on average
CURVES = 7
"""The largest number of arms in a plot of curves, the first of the recipe: more cannot be distinguished."""


class Series(Record):
    """One line: its name and its points (x, y), in order of x."""

    name: str
    points: tuple[tuple[float, float], ...]


class DifferenceRow(Record):
    """One row of a plot of differences: a mean, an interval if there is one, and each seed's value."""

    name: str
    mean: float
    interval: tuple[float, float] | None
    values: tuple[float, ...]


def study_plots(summary: StudySummary) -> dict[str, str]:
    """Return the SVG text of each plot that has data, by name."""
    facts = summary.facts
    arms = {name: one for name, one in list(facts.arms.items()) if one.curve}
    curves: tuple[tuple[str, str, Callable[[Point], float | None]], ...] = (
        ("success", "success on the development set", lambda point: point.success),
        ("signals", "signals found in a round", lambda point: sum(point.signals.values())),
        ("acceptance", "share of drafts that verification accepts", lambda point: point.acceptance),
        ("coverage", "share of functions trained on so far", lambda point: point.coverage_trained),
    )
    plots = {}
    for name, title, value in curves:
        series = [
            Series(name=f"{arm} (n = {len(one.budgets)})", points=(*_start(one, name), *_over(one, value)))
            for arm, one in list(arms.items())[:CURVES]
        ]
        if any(one.points for one in series):
            plots[name] = line_chart(f"{title}, mean over an arm's n seeds", "optimizer steps", series)
    for set_name in facts.panels:
        rows = []
        for arm, cells in summary.cells.items():
            versus = cells[set_name].differences.get(BASELINE) if set_name in cells else None
            if versus is not None:
                name = f"{arm} (n = {versus.seeds})"
                values = tuple(100 * value for value in versus.by_seed.values())
                interval = versus.interval
                ends = None if interval is None else (100 * interval[0], 100 * interval[1])
                rows.append(DifferenceRow(name=name, mean=100 * versus.mean, interval=ends, values=values))
        if rows:
            plots[f"difference-{set_name}"] = difference_chart(f"{set_name}: percent points above {BASELINE}", rows)
    return plots


def line_chart(title: str, x_label: str, series: Sequence[Series]) -> str:
    """Draw lines over a common x axis, with a legend at the right. Raises ValueError when no series has a point."""
    points = [point for one in series for point in one.points]
    if not points:
        raise ValueError("no series has a point")
    x_ticks = ticks(min(x for x, _ in points), max(x for x, _ in points))
    y_ticks = ticks(min(0.0, *(y for _, y in points)), max(y for _, y in points))
    right = WIDTH - _room(series)
    place_x = scale(x_ticks, LEFT, right)
    place_y = scale(y_ticks, HEIGHT - BOTTOM, TOP)
    parts = [text(LEFT, TOP - 18, title, size=14)]
    parts.append(text((LEFT + right) / 2, HEIGHT - 10, x_label, anchor="middle"))
    for tick in y_ticks:
        parts.append(line(LEFT, place_y(tick), right, place_y(tick), "#dddddd"))
        parts.append(text(LEFT - 6, place_y(tick) + 4, f"{tick:g}", anchor="end"))
    for tick in x_ticks:
        parts.append(line(place_x(tick), HEIGHT - BOTTOM, place_x(tick), HEIGHT - BOTTOM + 4, "#555555"))
        parts.append(text(place_x(tick), HEIGHT - BOTTOM + 18, f"{tick:g}", anchor="middle"))
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in one.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" r="3" fill="{colour}"/>' for x, y in one.points]
        parts.append(text(right + 14, TOP + 18 * number + 10, one.name, fill=colour))
    return svg(WIDTH, HEIGHT, parts)


def difference_chart(title: str, rows: Sequence[DifferenceRow]) -> str:
    """One row per arm: a seed's difference as a ring, the mean as a dot, the interval as a bar, and a line at zero."""
    if not rows:
        raise ValueError("no row to draw")
    ends = [end for row in rows for end in (*row.values, *(row.interval or ()), row.mean, 0.0)]
    marks = ticks(min(ends), max(ends))
    height = TOP + 26 * len(rows) + BOTTOM
    left = _room(rows)
    place = scale(marks, left, WIDTH - 20)
    parts = [text(20, TOP - 18, title, size=14)]
    for tick in marks:
        colour = "#555555" if tick == 0 else "#dddddd"
        parts.append(line(place(tick), TOP, place(tick), height - BOTTOM, colour))
        parts.append(text(place(tick), height - BOTTOM + 18, f"{tick:g}", anchor="middle"))
    for number, row in enumerate(rows):
        y = TOP + 26 * number + 13
        parts.append(text(left - 10, y + 4, row.name, anchor="end"))
        if row.interval is not None:
            low, high = (place(end) for end in row.interval)
            parts.append(f'<line x1="{low:.1f}" y1="{y}" x2="{high:.1f}" y2="{y}" stroke="#0072b2" stroke-width="3"/>')
        parts += [
            f'<circle cx="{place(value):.1f}" cy="{y}" r="3" fill="none" stroke="#777777"/>' for value in row.values
        ]
        parts.append(f'<circle cx="{place(row.mean):.1f}" cy="{y}" r="5" fill="#0072b2"/>')
    parts.append(text((left + WIDTH) / 2, height - 8, "dot: mean, bar: 95 % interval, rings: seeds", anchor="middle"))
    return svg(WIDTH, height, parts)


def _start(facts: ArmFacts, plot: str) -> list[tuple[float, float]]:
    """Return the point before the first round, where only success is known."""
    return [(0.0, facts.start)] if plot == "success" and facts.start is not None else []


def _over(facts: ArmFacts, value: Callable[[Point], float | None]) -> list[tuple[float, float]]:
    points = ((point.steps, value(point)) for point in facts.curve)
    return [(steps, y) for steps, y in points if y is not None]


def _room(named: Sequence[Series | DifferenceRow]) -> int:
    """Pixels that the names take, with a margin."""
    return max(ROOM, 20 + WIDTH_OF_A_LETTER * max(len(one.name) for one in named))
