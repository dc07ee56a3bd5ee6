"""Cuts of recorded runs: needed calls, setups, values that an earlier answer gave."""

from __future__ import annotations

import random

import pytest

from agents.evidence import call_of, live_run, successful_runs
from agents.scripted.abstractor import Cut, around, partition, setup_for
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
    cuts = [shape(cut) for cut in around(run, 3, 3, context, environment)]
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
    assert shape(around(run, 2, 1, context, environment)[0]) == (("cd",), ("cat",))
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
    cuts = [shape(cut) for cut in around(run, 3, 3, context, environment)]
    assert ((), ("get_zipcode_based_on_city", "get_zipcode_based_on_city", "estimate_distance")) in cuts


def test_a_partition_holds_every_success_once_in_order(car_start, make_context, played) -> None:
    actions = (LOCK, START, LIGHT, MalformedCall(text="?", reason="no call"), PRESS, call("check_tire_pressure"))
    context = make_context(car_start, "lockDoors")
    (run,) = successful_runs(played(context, *actions))
    assert [call_of(i) for i in run] == [LOCK, LIGHT, PRESS, call("check_tire_pressure")]
    for seed in range(5):
        cuts = partition(run, 3, random.Random(seed))
        assert [i for cut in cuts for i in cut.reference] == list(run)
        for cut in cuts:
            changes = [call_of(i) for i in run[: run.index(cut.reference[0])] if i.changed]
            assert list(cut.setup) == changes
            assert 1 <= len(cut.reference) <= 3


def test_the_pieces_of_a_partition_keep_to_their_lengths(car_start, make_context, played) -> None:
    actions = (LOCK, LIGHT, PRESS, call("check_tire_pressure"), call("get_outside_temperature_from_google"))
    (run,) = successful_runs(played(make_context(car_start, "lockDoors"), *actions))
    assert len(run) == 5
    assert [len(cut.reference) for cut in partition(run, 4, random.Random(0), long_only=True)] == [4, 1]
    assert [len(cut.reference) for cut in partition(run, 4, random.Random(0), shortest=2, long_only=True)] == [4]
    drawn = {len(cut.reference) for seed in range(30) for cut in partition(run, 4, random.Random(seed), shortest=2)}
    assert drawn == {2, 3, 4}


def test_what_a_trivial_policy_solves_is_known_before(car_start, make_context, played) -> None:
    context = make_context(car_start, "lockDoors")
    read, other, release, light = played(
        context, call("check_tire_pressure"), call("find_nearest_tire_shop"), call("releaseBrakePedal"), LIGHT
    )
    assert Cut((), (read,)).solved_blindly()
    assert Cut((), (read, other)).solved_blindly()
    assert not Cut((), (read, light)).solved_blindly()
    assert Cut((), (release,)).solved_blindly()
