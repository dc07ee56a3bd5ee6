"""Charts draw what they are given, have a name, and show foreign text as text."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.report.figures import Series, iterations_chart, ticks

HOSTILE = '<script>alert(1)</script> & "quoted" ' + "x" * 200
SVG = "{http://www.w3.org/2000/svg}"


def parsed(chart: str) -> ElementTree.Element:
    return ElementTree.fromstring(chart)


def drawn(chart: str, tag: str) -> list[ElementTree.Element]:
    return list(parsed(chart).iter(SVG + tag))


def test_foreign_text_is_text_and_colours_are_the_pages() -> None:
    line = Series(HOSTILE, (0.5, 1.0), (0.1, 0.2), (0.9, 1.0))
    chart = iterations_chart(HOSTILE, ["0", HOSTILE], bars=[Series(HOSTILE, (3.0, 1.0))], lines=[line])
    tags = {one.tag.removeprefix(SVG) for one in parsed(chart).iter()}
    assert tags <= {"svg", "g", "rect", "text", "path", "polyline", "circle", "title"}
    assert parsed(chart).get("aria-label") == HOSTILE
    assert [one.text for one in drawn(chart, "text") if one.get("class") == "label"] == [HOSTILE]
    assert not {name for one in parsed(chart).iter() for name in one.attrib} & {"fill", "stroke", "style"}


def test_everything_lies_inside_of_the_picture() -> None:
    chart = iterations_chart("one", ["0", "1"], bars=[Series("a", (3.0, 1.0)), Series("other", (0.0, None))])
    width, height = map(float, parsed(chart).get("viewBox", "").split()[2:])
    for one in parsed(chart).iter():
        for name, limit in (("x", width), ("cx", width), ("y", height), ("cy", height)):
            assert 0 <= float(one.get(name, 0)) <= limit, (one.tag, one.attrib)


def test_bars_are_as_long_as_their_values_and_stand_on_one_another() -> None:
    chart = iterations_chart("t", ["0"], bars=[Series("a", (2.0,)), Series("b", (4.0,)), Series("none", (0.0,))])
    bars = [one for one in drawn(chart, "rect") if float(one.get("width", 0)) > 10]
    (long, longer), (low, high) = ([float(one.get(name, 0)) for one in bars] for name in ("height", "y"))
    assert longer == pytest.approx(2 * long, abs=0.2)
    assert high + longer == pytest.approx(low, abs=0.2)
    assert [one.get("class") for one in drawn(chart, "g")] == ["c0", "c1"], "a figure without a value is left out"


def test_a_line_has_its_points_and_intervals_and_leaves_out_what_is_not_known() -> None:
    line = Series("policy", (0.25, None, 0.75), (0.0, None, 0.5), (0.5, None, 1.0))
    chart = iterations_chart("t", ["start", "0", "1"], lines=[line], top=1.0)
    (x, y), (later, above) = ((float(one.get("cx", 0)), float(one.get("cy", 0))) for one in drawn(chart, "circle"))
    assert (later > x, above < y) == (True, True)
    (points,) = (one.get("points", "") for one in drawn(chart, "polyline"))
    assert len(points.split()) == 2
    intervals = [one.get("d", "") for one in drawn(chart, "path") if one.get("class") == "interval"]
    assert [one.startswith(f"M{place:.1f} ") for one, place in zip(intervals, (x, later), strict=True)] == [True, True]


@given(st.floats(1e-3, 1e6))
def test_ticks_are_even_and_round_and_reach_the_highest(high: float) -> None:
    found = ticks(high)
    assert found[0] == 0
    assert found[-1] >= high * (1 - 1e-6)
    assert 2 <= len(found) <= 6
    steps = [right - left for left, right in pairwise(found)]
    assert max(steps) - min(steps) < 1e-6 * max(steps)
