"""Cuts of recorded runs: needed calls, setups, values that an earlier answer gave."""

from __future__ import annotations

import random

import pytest

from agents.evidence import call_of, live_run, successful_runs
from agents.scripted.abstractor import Cut, around, partition, setup_for
from agents.scripted.links import links
from environments.base import Action, MalformedCall, ToolCall
from memory.records import FailureContext, Interaction


def call(name: str, **arguments) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


DOORS = ["driver", "passenger", "rear_left", "rear_right"]
LOCK = call("lockDoors", unlock=False, door=DOORS)
LIGHT = call("setHeadlights", mode="on")
PRESS = call("pressBrakePedal", pedalPosition=1.0)
START = call("startEngine", ignitionMode="START")


@pytest.fixture
def played(environment):
    def play(context: FailureContext, *actions: Action) -> tuple[Interaction, ...]:
        with live_run(environment, context, 0, len(actions)) as run:
            for action in actions:
                run.act(action)
            return tuple(run.interactions)

    return play


def shape(cut: Cut) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(c.name for c in cut.setup), cut.names()


def test_needed_calls_become_reference_or_setup(environment, car_start, make_context, played) -> None:
    context = make_context(car_start, "startEngine")
    run = played(context, LOCK, LIGHT, PRESS, START)
    cuts = [shape(cut) for cut in around(run, links(run, context, environment), 3, 3, context, environment)]
    assert cuts[:3] == [
        (("lockDoors", "pressBrakePedal"), ("startEngine",)),
        (("lockDoors",), ("pressBrakePedal", "startEngine")),
        ((), ("lockDoors", "pressBrakePedal", "startEngine")),
    ]
    assert len(set(cuts)) == len(cuts)


def test_an_entered_folder_is_needed_although_no_state_changed(environment, files_start, make_context, played) -> None:
    context = make_context(files_start, "cat")
    run = played(context, call("cd", folder="papers"), call("touch", file_name="x"), call("cat", file_name="final.txt"))
    assert [i.changed for i in run] == [False, True, False]
    assert shape(around(run, links(run, context, environment), 2, 1, context, environment)[0]) == (("cd",), ("cat",))
    assert [c.name for c in setup_for(run[:2], run[2:], context, environment)] == ["cd", "touch"]
    assert [c.name for c in setup_for(run[:1], (), context, environment)] == []


def test_answers_that_gave_a_value_are_kept(environment, car_start, make_context, played) -> None:
    context = make_context(car_start, "estimate_distance")
    run = played(
        context,
        call("get_zipcode_based_on_city", city="Rivermist"),
        LIGHT,
        call("get_zipcode_based_on_city", city="Stonebrook"),
        call("estimate_distance", cityA="83214", cityB="74532"),
    )
    cuts = [shape(cut) for cut in around(run, links(run, context, environment), 3, 3, context, environment)]
    zipcodes = ("get_zipcode_based_on_city", "get_zipcode_based_on_city")
    assert (("setHeadlights",), (*zipcodes, "estimate_distance")) in cuts
    assert not any("setHeadlights" in names for _, names in cuts), "a neighbour alone does not belong"


def test_a_partition_joins_what_belongs_together(environment, car_start, make_context, played) -> None:
    zipcodes = [call("get_zipcode_based_on_city", city=city) for city in ("Rivermist", "Stonebrook")]
    distance = call("estimate_distance", cityA="83214", cityB="74532")
    actions = (LOCK, zipcodes[0], LIGHT, PRESS, zipcodes[1], START, distance, MalformedCall(text="?", reason="no call"))
    context = make_context(car_start, "lockDoors")
    (run,) = successful_runs(played(context, *actions))
    linked = links(run, context, environment)
    assert [dict(kin) for kin in linked] == [{}, {}, {}, {}, {}, {0: False, 3: False}, {1: True, 4: True}]
    drawn = set()
    for seed in range(20):
        cuts = partition(run, linked, 3, random.Random(seed))
        calls = [call_of(one) for cut in cuts for one in cut.reference]
        assert len(calls) == len(set(map(str, calls))) == len(run)
        assert all(cut.names() == ("setHeadlights",) for cut in cuts if "setHeadlights" in cut.names())
        assert any(cut.passes_on() and cut.names()[-1] == "estimate_distance" for cut in cuts)
        drawn |= {shape(cut) for cut in cuts if "startEngine" in cut.names()}
    assert (("setHeadlights",), ("lockDoors", "pressBrakePedal", "startEngine")) in drawn
    assert (("lockDoors", "setHeadlights", "pressBrakePedal"), ("startEngine",)) in drawn
    whole = partition(run, linked, 3, random.Random(0), shortest=2, long_only=True)
    assert [len(cut.reference) for cut in whole] == [3, 3]


def test_calls_that_name_one_thing_belong_together(environment, files_start, make_context, played) -> None:
    context = make_context(files_start, "cat")
    run = played(
        context,
        call("touch", file_name="list.txt"),
        call("cat", file_name="notes.txt"),
        call("wc", file_name="notes.txt", mode="l"),
        call("wc", file_name="list.txt", mode="l"),
    )
    assert [dict(kin) for kin in links(run, context, environment)] == [{}, {}, {1: False}, {0: False}]


def test_what_a_trivial_policy_solves_is_known_before(car_start, make_context, played) -> None:
    context = make_context(car_start, "lockDoors")
    read, other, release, light = played(
        context, call("check_tire_pressure"), call("find_nearest_tire_shop"), call("releaseBrakePedal"), LIGHT
    )
    assert Cut((), (read,)).solved_blindly()
    assert Cut((), (read, other)).solved_blindly()
    assert not Cut((), (read, light)).solved_blindly()
    assert Cut((), (release,)).solved_blindly()
