"""Charts draw what they are given, name their axes, and show foreign text as text."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.report.charts import Chart, DotRow, Dots, Series, dot_chart, iterations_chart, ticks

HOSTILE = '<script>alert(1)</script> & "quoted" ' + "x" * 200


def charts(name: str = "one") -> list[Chart]:
    return [
        iterations_chart(f"{name} x", ["0", name], bars=[Series(name, (3.0, 1.0)), Series("other", (0.0, None))]),
        dot_chart(name, f"{name} x", [DotRow(name, (Dots(1, (True, False), (1,)), Dots(4, (False,))))], {2: name}),
    ]


def parsed(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg)


def labels(chart: Chart) -> str:
    return " | ".join(one.text or "" for one in parsed(chart).iter() if one.get("class") == "label")


def count(chart: Chart, tag: str) -> int:
    return len(list(parsed(chart).iter("{http://www.w3.org/2000/svg}" + tag)))


@pytest.mark.parametrize("number", range(2))
def test_every_chart_has_labels_a_white_ground_and_words(number: int) -> None:
    chart = charts()[number]
    assert "one x" in labels(chart)
    ground = next(parsed(chart).iter("{http://www.w3.org/2000/svg}rect"))
    assert ground.get("fill") == "#ffffff"
    assert chart._repr_mimebundle_() == {"image/svg+xml": chart.svg, "text/plain": repr(chart)}
    assert repr(chart).startswith("one")


@pytest.mark.parametrize("number", range(2))
def test_foreign_text_is_text(number: int) -> None:
    chart = charts(HOSTILE)[number]
    tags = {one.tag.rpartition("}")[2] for one in parsed(chart).iter()}
    assert tags <= {"svg", "rect", "text", "line", "circle"}


@pytest.mark.parametrize("number", range(2))
def test_everything_lies_inside_of_the_picture(number: int) -> None:
    chart = charts()[number]
    width, height = map(float, parsed(chart).get("viewBox", "").split()[2:])
    for one in parsed(chart).iter():
        for name, limit in (("x", width), ("cx", width), ("x2", width), ("y", height), ("cy", height), ("y2", height)):
            assert 0 <= float(one.get(name, 0)) <= limit, (one.tag, one.attrib)


def test_bars_are_as_long_as_their_values_and_stand_on_one_another() -> None:
    chart = iterations_chart("t", ["0"], bars=[Series("a", (2.0,)), Series("b", (4.0,)), Series("none", (0.0,))])
    bars = [one for one in parsed(chart).iter() if one.tag.endswith("rect") and float(one.get("width", 0)) > 10][1:]
    (long, longer), (low, high) = ([float(one.get(name, 0)) for one in bars] for name in ("height", "y"))
    assert longer == pytest.approx(2 * long, abs=0.2)
    assert high + longer == pytest.approx(low, abs=0.2)
    assert bars[0].get("fill") != bars[1].get("fill")
    assert chart.words == "t. a: 2; b: 4", "a figure without a value is left out"


def test_a_line_has_its_points_and_intervals_and_leaves_out_what_is_not_known() -> None:
    line = Series("policy", (0.25, None, 0.75), (0.0, None, 0.5), (0.5, None, 1.0))
    chart = iterations_chart("t", ["start", "0", "1"], lines=[line], top=1.0)
    points = [(float(one.get("cx", 0)), float(one.get("cy", 0))) for one in parsed(chart).iter() if "circle" in one.tag]
    (x, y), (later, above) = points
    assert (later > x, above < y) == (True, True)
    (drawn,) = (one.get("points", "") for one in parsed(chart).iter() if one.tag.endswith("polyline"))
    assert len(drawn.split()) == 2
    bars = [one for one in parsed(chart).iter() if one.get("stroke-width") == "5"]
    assert {float(one.get("x1", 0)) for one in bars} == {x, later}
    assert chart.words == "t. policy: 25%, none, 75%"


def test_dots_are_filled_for_successes_and_framed_where_asked() -> None:
    chart = dot_chart("t", "x", [DotRow("a", (Dots(1, (True, False, False), (2,)),))])
    dots = [one for one in parsed(chart).iter() if one.tag.endswith("circle")]
    assert [one.get("fill") == "#ffffff" for one in dots] == [False, True, True]
    assert count(chart, "rect") == 2  # the ground and one frame
    assert chart.words == "t. a: 1 of 3"


def test_of_many_columns_the_framed_and_the_latest_are_drawn() -> None:
    groups = tuple(Dots(column, (True,), (0,) if column == 3 else ()) for column in range(40))
    chart = dot_chart("t", "step", [DotRow("a", groups)], {20: "round 1"})
    words = [one.text for one in parsed(chart).iter() if one.tag.endswith("text")]
    assert [int(one) for one in words if one and one.isdigit()] == [3, *range(29, 40)]
    assert "step, 12 of 40; filled: success" in words
    assert count(chart, "circle") == 12
    assert "round 1" in words


@given(st.floats(-1e4, 1e4), st.floats(1e-3, 1e4))
def test_ticks_are_even_round_and_around(low: float, width: float) -> None:
    found = ticks(low, low + width)
    assert found[0] <= low + 1e-6 * width
    assert found[-1] >= low + width - 1e-6 * width
    assert 2 <= len(found) <= 10
    steps = [right - left for left, right in pairwise(found)]
    assert max(steps) - min(steps) < 1e-6 * max(steps)
