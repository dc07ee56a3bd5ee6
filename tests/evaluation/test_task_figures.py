"""Figures of a set of tasks, by hand on parcel depots."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import ToolCall
from environments.example import depot
from environments.verification.provenance import Source, SourcedValue
from evaluation.statistics import resampled_interval
from evaluation.task_figures import (
    MEASURES,
    Examined,
    Figure,
    examine,
    graphs,
    is_distinctive,
    is_identifier,
    is_quoted,
    measure,
    novelty,
    quality_table,
)
from memory.records import Task

DEPOT = depot(starts=1)
PARCELS = {"lamp": {"kilograms": 120}, "red crate": {"kilograms": 3}, "crate_7": {"kilograms": 4}}


def call(name: str, **arguments) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


LIST = call("list_parcels")
LAMP, CRATE = call("weigh_parcel", label="lamp"), call("weigh_parcel", label="red crate")


def examined(*turns: tuple[str, list[ToolCall]], start: object = PARCELS, **fields) -> Examined:
    """A task of these turns, each of its words and calls."""
    place = DEPOT.starts()[0]
    task = Task(
        environment=place.environment,
        split=place.split,
        classes=place.classes,
        tools=place.tools,
        initial_state={"Depot": {"parcels": start, "gate_open": False}},
        turns=tuple(text for text, _ in turns),
        reference=tuple(tuple(calls) for _, calls in turns),
        id="t",
        origin="given",
        **fields,
    )
    return examine(DEPOT, task)


def value_of(name: str, *tasks: Examined) -> float | None:
    found = measure(tasks, next(one for one in MEASURES if one.name == name))
    return None if found is None else found.value


LONG = (
    ("Insure the lamp.", [call("insure_parcel", label="lamp", euros=300)]),
    ("List, and load a light one into the van.", [LIST, call("load_parcel", label="red crate", van="north")]),
    ("Weigh others.", [LAMP, call("weigh_parcel", label="crate_7"), call("insure_parcel", label="lamp", euros=120)]),
    ("Weigh it.", [call("weigh_parcel", label="harp")]),
)


def test_each_value_has_a_source() -> None:
    found = {source: value_of(f"value from {source.value.replace('_', ' ')}", examined(*LONG)) for source in Source}
    assert found == {
        Source.WORDS: 1 / 9,
        Source.EARLIER_TURN: 2 / 9,
        Source.OBSERVATION: 3 / 9,
        Source.DOCUMENTATION: 1 / 9,
        Source.STATE: 0,
        Source.NONE: 2 / 9,
    }
    assert value_of("text verbatim in its turn", examined(*LONG)) == 1 / 7
    assert value_of("task with a failing call", examined(*LONG)) == 1


def test_values_pass_between_calls() -> None:
    edges = (("list_parcels", "load_parcel"), ("list_parcels", "weigh_parcel"), ("weigh_parcel", "insure_parcel"))
    functions, found = examined(*LONG).graph
    assert found == edges
    assert functions == ("insure_parcel",) * 2 + ("list_parcels", "load_parcel") + ("weigh_parcel",) * 3


def test_turns_that_are_played_are_read_and_not_counted() -> None:
    one = examined(*LONG[:3], played=2)
    assert [value.source for value in one.values] == [
        Source.EARLIER_TURN,
        Source.OBSERVATION,
        Source.EARLIER_TURN,
        Source.OBSERVATION,
    ]
    assert one.graph[1] == (("weigh_parcel", "insure_parcel"),)  # the list was answered before
    assert (one.words, one.calls) == (("Weigh others.",), 3)
    assert not examined(LONG[3], ("Weigh the lamp.", [LAMP]), played=1).failed
    assert examined(("Weigh the lamp.", [LAMP]), LONG[3], played=1).failed


def test_a_value_of_the_start_state_or_of_a_setups_answer_is_hidden() -> None:
    asked = ("Weigh it.", [CRATE, call("weigh_parcel", label="insured for 200"), call("insure_parcel", euros=100)])
    setup = (call("insure_parcel", label="lamp", euros=200),)
    sources = [value.source for value in examined(asked, setup=setup).values]
    assert sources == [Source.STATE, Source.STATE, Source.DOCUMENTATION]
    assert [value.source for value in examined(asked).values][1] is Source.NONE
    sent = (call("load_parcel", label="lamp", van="north"), call("open_gate"), call("send_van", van="north"))
    light = {"lamp": {"kilograms": 7}}
    gone = examined(("Weigh it.", [LAMP, call("insure_parcel", euros=7)]), setup=sent, start=light)
    assert {value.source for value in gone.values} == {Source.STATE}


def test_a_number_of_calls_decides_whether_dataflow_can_be() -> None:
    name = "dataflow, of tasks of 2 calls or more"
    alone, apart, joined = ("Weigh it.", [CRATE]), ("Weigh the lamp.", [LAMP, LAMP]), ("Weigh it.", [LIST, CRATE])
    assert value_of(name, examined(alone)) is None
    assert value_of(name, examined(alone), examined(apart), examined(joined)) == 1 / 2


@pytest.mark.parametrize(
    ("value", "distinctive"),
    [
        (True, False),
        (None, False),
        (99, False),
        (-99.0, False),
        (100, True),
        (0.5, True),
        ("ab ", False),
        ("abc", True),
    ],
)
def test_small_numbers_and_short_texts_are_equal_by_chance(value: object, distinctive: bool) -> None:
    one = SourcedValue((0, 1), "f", "x", value, False, False, Source.OBSERVATION, (0, 0))
    assert is_distinctive(one) is distinctive
    assert not is_distinctive(one._replace(documented=True))


def test_a_key_of_the_state_that_is_no_word_is_an_identifier() -> None:
    found = [key for key in ("lamp", "red crate", "crate_7", "a.b", "12", "123", "x1") if is_identifier(key)]
    assert found == ["crate_7", "a.b", "123"]
    name = "task with a copied identifier"
    copied, free = examined(("Weigh the lamp and Crate_7.", [LAMP])), examined(("Weigh the lamp.", [LAMP]))
    nested = examined(("Weigh the box-9.", [LAMP]), start=PARCELS | {"lamp": {"kilograms": 1, "in": [{"box-9": {}}]}})
    assert (copied.copied, nested.copied) == (("crate_7",), ("box-9",))
    assert value_of(name, copied, free) == 1 / 2
    assert examined(("Before crate_7.", [LAMP]), ("Weigh the lamp.", [LAMP]), played=1).copied == ()


def test_texts_in_quotes() -> None:
    assert is_quoted("Red  crate", "weigh 'red crate.' now")
    assert not is_quoted("crate", "weigh 'red crate' now")
    both = examined(("Weigh 'lamp' and the red crate.", [LAMP, CRATE]))
    assert (value_of("text in quotes", both), value_of("text verbatim in its turn", both)) == (1 / 2, 1)
    late = examined(("Weigh 'lamp'.", [LAMP]), ("Again.", [LAMP]))
    assert value_of("text in quotes", late) == 1 / 2


def test_lengths_are_by_turn() -> None:
    tasks = [
        examined(("Weigh the lamp.", [LAMP])),
        examined(("Weigh  it\nnow, please.", [LAMP, CRATE]), ("Go.", [LIST])),
    ]
    assert (value_of("calls per turn", *tasks), value_of("words per turn", *tasks)) == (4 / 3, 8 / 3)


def test_turns_without_calls_are_counted_apart() -> None:
    asking = examined(("Weigh it.", []), ("It's the lamp, of course.", [LAMP, LIST]))
    behind = examined(("Weigh it.", []), ("The lamp.", [LAMP]), played=1)
    tasks = [asking, behind, examined(("Weigh the lamp.", [LAMP]))]
    assert value_of("task with an abstention turn", *tasks) == 1 / 3
    assert (value_of("calls per turn", *tasks), value_of("words per turn", asking)) == (4 / 3, 7 / 2)


def test_call_graphs_are_without_order_and_values() -> None:
    one, other = examined(("Weigh the lamp.", [LAMP, LIST])), examined(("Weigh the red crate.", [LIST, CRATE]))
    joined = examined(("Weigh it.", [LIST, CRATE]))
    assert one.graph == other.graph != joined.graph
    found = graphs([one, other, one, joined])
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(2)
    assert found == (0.5, pytest.approx(entropy), 1.0)
    assert graphs([one, other]) == (0.5, None, 1.0)


def test_the_ten_most_frequent_graphs() -> None:
    tasks = [examined(("List.", [LIST] * n)) for n in range(1, 13)]
    assert graphs([*tasks, tasks[0]]).top == 11 / 13


def test_what_the_other_set_has_is_not_new() -> None:
    known = examined(("Weigh the lamp.", [LAMP, LIST]))
    same = examined(("Weigh the red crate.", [LIST, CRATE]))
    source = examined(("Weigh it.", [LAMP, LIST]))
    call_graph = examined(("Weigh the lamp.", [LAMP]), start={"lamp": {"kilograms": 1}})
    function = examined(("Open the gate.", [call("open_gate")]))
    found = novelty([same, source, call_graph, function], [known])
    assert {name: one.value for name, one in found.items()} == {
        "function": 1 / 4,
        "call graph": 2 / 4,
        "start state": 1 / 4,
        "source of a value": 1 / 4,
    }


def test_the_table_has_a_column_for_each_set() -> None:
    one, other = examined(("Weigh the lamp.", [LAMP])), examined(("List.", [LIST]), start={"lamp": {"kilograms": 9}})
    head, rows = quality_table([("a", [one, other]), ("b", [other])], [one])
    cells = {row[0]: row[1:] for row in rows}
    assert head == ("", "a", "b")
    assert cells["tasks"] == ("2", "1")
    assert cells["start states"] == ("2", "1")
    assert cells["functions"] == ("2", "1")
    assert cells["text verbatim in its turn"][0].startswith("100.0% (")
    assert cells["text verbatim in its turn"][1] == ""
    assert cells["calls per turn"] == ("1.00 (1.00 to 1.00)", "1.00")
    assert cells["distinct call graphs by task"] == ("1.00", "1.00")
    assert cells["entropy of call graphs, 1: even"] == ("1.00", "")
    assert cells["tasks of the 10 most frequent graphs"] == ("100.0%", "100.0%")
    assert cells["task with a new function"][1] == "100.0%"
    assert "task with a new function" not in {row[0] for row in quality_table([("a", [one])])[1]}
    assert str(Figure(0.25, (0.1, 0.333))) == "25.0% (10% to 33%)"
    assert str(Figure(1, (0.5, 1.5), is_share=False)) == "1.00 (0.50 to 1.50)"
    turned = examined(("List.", [LIST]), start=dict(reversed(PARCELS.items())))
    assert quality_table([("a", [turned, examined(("List.", [LIST]))])])[1][1] == ("start states", "1")


def test_an_interval_of_a_mean_draws_start_states() -> None:
    sums, counts = np.array([1.0, 1, 9, 9]), np.ones(4)
    apart, together = np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1])
    assert resampled_interval(sums, counts, together) == (1.0, 9.0)
    low, high = resampled_interval(sums, counts, apart) or (0, 0)
    assert 1 <= low < 5 < high <= 9
    assert resampled_interval(sums, counts, np.zeros(4, dtype=np.int64)) is None
    assert resampled_interval(sums, np.zeros(4), apart) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=2, max_size=12))
def test_an_interval_of_a_mean_is_within_the_values(rows: list[tuple[int, int]]) -> None:
    sums, clusters = (np.array(column) for column in zip(*rows, strict=True))
    found = resampled_interval(sums, np.ones(len(rows)), np.unique(clusters, return_inverse=True)[1])
    assert (found is None) == (len(set(clusters)) == 1)
    assert found is None or min(sums) - 1e-9 <= found[0] <= found[1] <= max(sums) + 1e-9


def test_what_is_not_counted_in_a_draw_is_left_out() -> None:
    """Draws of two start states, of which one has a count: (4 + 1) / 1, (4 + 4) / 2, and nothing to divide by."""
    assert resampled_interval(np.array([4.0, 1.0]), np.array([1.0, 0.0]), np.array([0, 1])) == (4.0, 5.0)


def test_an_interval_of_many_start_states_is_the_normal_one() -> None:
    sums = np.array([0.0, 1.0] * 200)
    half = 1.96 * 0.5 / math.sqrt(400)
    found = resampled_interval(sums, np.ones(400), np.arange(400))
    assert found == pytest.approx((0.5 - half, 0.5 + half), abs=0.005)
    assert resampled_interval(sums, np.ones(400), np.arange(400), level=0.5) == pytest.approx((0.483, 0.517), abs=0.003)
