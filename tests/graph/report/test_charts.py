"""Charts draw what they are given, name their axes, and show foreign text as text."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from graph.report.charts import (
    Bar,
    BeforeAfter,
    Chart,
    Curve,
    DotRow,
    Dots,
    Mean,
    bar_chart,
    box_chart,
    change_chart,
    curve_chart,
    dot_chart,
)

HOSTILE = '<script>alert(1)</script> & "quoted" ' + "x" * 200
HALF = Mean(0.5, (0.25, 0.75), 12)
WHOLE = Mean(1.0, None, 3)


def charts(name: str = "one") -> list[Chart]:
    return [
        bar_chart(name, f"{name} x", [Bar(name, 3.0, "of 8"), Bar("other", 0.0)], limit=(2.0, name)),
        curve_chart(name, f"{name} x", f"{name} y", [Curve(name, ((1, HALF), (2, WHOLE))), Curve("b", ((1, HALF),))]),
        change_chart(name, f"{name} x", [BeforeAfter(name, HALF, WHOLE)]),
        dot_chart(name, f"{name} x", [DotRow(name, (Dots(1, (True, False), (1,)), Dots(4, (False,))))], {2: name}),
        box_chart(name, {name: name, "b": "", "c": ""}, [(name, "b"), ("b", "c"), (name, "c"), ("c", "nowhere")]),
    ]


def parsed(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg)


def labels(chart: Chart) -> str:
    return " | ".join(one.text or "" for one in parsed(chart).iter() if one.get("class") == "label")


def count(chart: Chart, tag: str) -> int:
    return len(list(parsed(chart).iter("{http://www.w3.org/2000/svg}" + tag)))


@pytest.mark.parametrize("number", range(5))
def test_every_chart_has_labels_a_white_ground_and_words(number: int) -> None:
    chart = charts()[number]
    assert "one" in labels(chart)
    assert "one x" in labels(chart) or number == 4
    ground = next(parsed(chart).iter("{http://www.w3.org/2000/svg}rect"))
    assert ground.get("fill") == "#ffffff"
    assert chart._repr_mimebundle_() == {"image/svg+xml": chart.svg, "text/plain": repr(chart)}
    assert repr(chart).startswith("one. ")


@pytest.mark.parametrize("number", range(5))
def test_foreign_text_is_text(number: int) -> None:
    chart = charts(HOSTILE)[number]
    tags = {one.tag.rpartition("}")[2] for one in parsed(chart).iter()}
    assert tags <= {"svg", "rect", "text", "line", "circle", "polyline", "path", "defs", "marker"}


@pytest.mark.parametrize("number", range(5))
def test_everything_lies_inside_of_the_picture(number: int) -> None:
    chart = charts()[number]
    width, height = map(float, parsed(chart).get("viewBox", "").split()[2:])
    for one in parsed(chart).iter():
        for name, limit in (("x", width), ("cx", width), ("x2", width), ("y", height), ("cy", height), ("y2", height)):
            assert 0 <= float(one.get(name, 0)) <= limit, (one.tag, one.attrib)


def test_bars_are_as_long_as_their_values() -> None:
    chart = bar_chart("t", "x", [Bar("a", 2.0), Bar("b", 4.0, marked=True)])
    bars = [one for one in parsed(chart).iter() if one.tag.endswith("rect")][1:]
    long, longer = (float(one.get("width", 0)) for one in bars)
    assert longer == pytest.approx(2 * long)
    assert bars[0].get("fill") != bars[1].get("fill")
    assert "a: 2, b: 4" in chart.words


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


def test_changes_and_curves_draw_intervals_where_there_are_any() -> None:
    def thick(chart: Chart) -> int:
        return len(re.findall(r'<line [^>]*stroke-width="(?:3|1.5)"', chart.svg))

    assert thick(change_chart("t", "x", [BeforeAfter("a", HALF, WHOLE), BeforeAfter("b", HALF, HALF)])) == 3
    assert thick(curve_chart("t", "x", "y", [Curve("a", ((1, HALF), (2, WHOLE)))])) == 1
    assert "(n = 3)" in change_chart("t", "x", [BeforeAfter("a", HALF, WHOLE)]).svg
    assert "0.50 (0.25 to 0.75) before, 1.00 after" in change_chart("t", "x", [BeforeAfter("a", HALF, WHOLE)]).words


def test_boxes_go_from_left_to_right_along_the_longest_way() -> None:
    chart = box_chart("t", {"a": "", "c": "", "b": ""}, [("a", "c"), ("a", "b"), ("b", "c")])
    places = {one.text: float(one.get("x", 0)) for one in parsed(chart).iter() if one.get("class") == "label"}
    assert places["a"] < places["b"] < places["c"]


def test_nothing_to_draw_is_refused() -> None:
    for draw in (
        lambda: bar_chart("t", "x", []),
        lambda: bar_chart("t", "x", [Bar("a", -1.0)]),
        lambda: curve_chart("t", "x", "y", [Curve("a", ())]),
        lambda: change_chart("t", "x", []),
        lambda: dot_chart("t", "x", [DotRow("a", ())]),
        lambda: box_chart("t", {}, []),
        lambda: box_chart("t", {"a": "", "b": ""}, [("a", "b"), ("b", "a")]),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            draw()
