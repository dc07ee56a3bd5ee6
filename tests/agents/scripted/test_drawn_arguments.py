"""Arguments drawn uniformly and guided: types, choices, caps, and that guidance uses what was seen."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.scripted.arguments import GuidedArguments, UniformArguments
from agents.scripted.fitting import converted, in_range
from agents.scripted.values import MAX_TEXT, Experience, Sightings
from environments.base import Observation, ObservationStatus, Parameter, ToolCall, ToolSpec
from environments.verification.replay import argument_problem


def tool(environment, name: str):
    return environment.tools([name])[0]


@pytest.mark.parametrize(
    ("value", "type_name", "expected"),
    [
        ("12", "integer", 12),
        ("12.5", "integer", None),
        (3, "float", 3.0),
        ("nan", "float", None),
        (1e9, "float", None),
        (5, "string", "5"),
        ("x" * 81, "string", None),
        ("  ", "string", None),
        ("a\nb", "string", None),
        ("yes", "boolean", None),
    ],
)
def test_conversion(value: object, type_name: str, expected: object) -> None:
    assert converted(value, Parameter(name="x", type=type_name, description="", required=True)) == expected


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_uniform_calls_fit_the_documentation(environment, seed: int) -> None:
    start, sightings = environment.starts()[0], Sightings()
    sightings.see_state(start.initial_state)
    for spec in environment.tools(start.tools):
        call = UniformArguments(sightings, random.Random(seed)).draw(spec)
        assert call is None or argument_problem(call, spec) is None


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), text=st.text(max_size=120))
def test_guided_calls_fit_the_documentation(environment, files_start, car_start, seed: int, text: str) -> None:
    for start in (files_start, car_start):
        sightings = Sightings()
        sightings.see_state(start.initial_state)
        sightings.see_listed(text, [text])
        drawing = GuidedArguments(sightings, Experience(), random.Random(seed))
        for spec in environment.tools(start.tools):
            for call in filter(None, (drawing.draw(spec), drawing.draw_for(spec, text))):
                assert argument_problem(call, spec) is None
                texts = [value for value in call.arguments.values() if isinstance(value, str)]
                assert all(0 < len(value) <= MAX_TEXT for value in texts)


def guided(start, seed: int = 0) -> GuidedArguments:
    sightings = Sightings()
    sightings.see_state(start.initial_state)
    return GuidedArguments(sightings, Experience(), random.Random(seed))


def test_a_requirement_chooses_documented_constants(environment, car_start) -> None:
    drawing = guided(car_start)
    doors = drawing.draw_for(
        tool(environment, "lockDoors"), '{"error": "All doors must be locked before starting the engine. Here'
    )
    assert doors.arguments == {"unlock": False, "door": ["driver", "passenger", "rear_left", "rear_right"]}
    brake = drawing.draw_for(tool(environment, "pressBrakePedal"), "Brake pedal needs to be pressed.")
    assert brake.arguments == {"pedalPosition": 1.0}
    engine = drawing.draw_for(
        tool(environment, "startEngine"), "Start the engine before activating the cruise control."
    )
    assert engine.arguments == {"ignitionMode": "START"}


def test_names_where_the_explorer_stands_come_first(environment, files_start) -> None:
    drawing = guided(files_start)
    spec = tool(environment, "cat")
    drawn = [drawing.draw(spec).arguments["file_name"] for _ in range(100)]
    assert drawn.count("notes.txt") > 70
    drawing.sightings.move("papers")
    drawn = [drawing.draw(spec).arguments["file_name"] for _ in range(100)]
    assert drawn.count("draft.txt") + drawn.count("final.txt") > 70


def test_later_arguments_stand_near_earlier_ones(environment, files_start) -> None:
    drawing = guided(files_start)
    spec = tool(environment, "grep")
    calls = [drawing.draw(spec).arguments for _ in range(100)]
    patterns = [a["pattern"] for a in calls if a["file_name"] == "notes.txt"]
    inside = [p for p in patterns if p in "alpha beta gamma"]
    assert len(inside) > 0.7 * len(patterns) > 0


def test_an_observed_value_reaches_the_parameter_that_its_key_names(environment, car_start) -> None:
    drawing = guided(car_start)
    for city, zipcode in (("Rivermist", "83214"), ("Stonebrook", "74532")):
        call = ToolCall(name="get_zipcode_based_on_city", arguments={"city": city})
        answer = Observation(text=f'{{"zipcode": "{zipcode}"}}', status=ObservationStatus.OK)
        drawing.sightings.see_observation(call, answer)
    spec = tool(environment, "estimate_distance")
    drawn = [set(drawing.draw(spec).arguments.values()) for _ in range(50)]
    assert sum(bool(pair & {"83214", "74532"}) for pair in drawn) > 30


def test_a_refused_value_is_drawn_less(environment, files_start) -> None:
    spec = tool(environment, "cat")
    drawing = guided(files_start)
    experience = Experience()
    wary = GuidedArguments(drawing.sightings, experience, random.Random(0))
    before = sum(wary.draw(spec).arguments["file_name"] == "notes.txt" for _ in range(100))
    call = ToolCall(name="cat", arguments={"file_name": "notes.txt"})
    error = Observation(text='{"error": "cat: \'notes.txt\': No such file"}', status=ObservationStatus.ERROR)
    for _ in range(3):
        experience.learn(call, error, drawing.sightings)
    after = sum(wary.draw(spec).arguments["file_name"] == "notes.txt" for _ in range(100))
    assert after < before / 2


def test_uniform_calls_draw_every_source(environment) -> None:
    sightings = Sightings()
    sightings.see_call(ToolCall(name="f", arguments={"zipcode": "83214"}), {})
    for parameter in ("cityA", "cityB"):
        sightings.see_for("estimate_distance", parameter, "94016", frozenset())
    drawn = [uniform(sightings, seed).draw(tool(environment, "estimate_distance")).arguments for seed in range(50)]
    assert {one["cityA"] for one in drawn} == {"83214", "94016"}
    assert all(one["cityA"] != one["cityB"] for one in drawn)
    brake = tool(environment, "pressBrakePedal")
    positions = [uniform(Sightings(), seed).draw(brake).arguments["pedalPosition"] for seed in range(200)]
    assert positions.count(1.0) > 20


def uniform(sightings: Sightings, seed: int = 0) -> UniformArguments:
    return UniformArguments(sightings, random.Random(seed))


def test_no_call_is_drawn_where_nothing_fits(environment, car_start) -> None:
    sightings = Sightings()
    sightings.see_state(car_start.initial_state)
    for name in ("gallon_to_liter", "estimate_distance", "get_zipcode_based_on_city"):
        assert uniform(sightings).draw(tool(environment, name)) is None
    assert guided(car_start).draw_for(tool(environment, "gallon_to_liter"), "Convert first.") is None
    assert uniform(sightings).draw(tool(environment, "mean")) is None


def test_uniform_lists_keep_the_documented_order(environment) -> None:
    spec = tool(environment, "lockDoors")
    documented = spec.parameter("door").choices
    for seed in range(100):
        doors = uniform(Sightings(), seed).draw(spec).arguments["door"]
        assert doors == [door for door in documented if door in doors]


def shares(drawing: UniformArguments, spec: ToolSpec, draws: int = 2000) -> dict[tuple[str, object], float]:
    """How often an optional parameter is given, a list has each length, and each documented value is drawn."""
    counted: Counter[tuple[str, object]] = Counter()
    for _ in range(draws):
        arguments = drawing.draw(spec).arguments
        for parameter in spec.parameters:
            if parameter.name not in arguments:
                continue
            value = arguments[parameter.name]
            counted[parameter.name, "given"] += not parameter.required
            if isinstance(value, list):
                counted[parameter.name, f"{len(value)} items"] += 1
            elif parameter.choices or parameter.type == "boolean":
                counted[parameter.name, value] += 1
            elif parameter.type in ("integer", "float"):
                allowed = in_range(parameter)
                counted[parameter.name, "in range"] += bool(allowed) and allowed[0] <= value <= allowed[-1]
    return {key: count / draws for key, count in counted.items()}


@pytest.mark.parametrize("name", ["lockDoors", "adjustClimateControl", "setCruiseControl", "wc"])
def test_guided_and_unguided_exploration_draw_arguments_alike(environment, files_start, car_start, name: str) -> None:
    """2,000 draws each: a share of 1/2 has a standard error of 1.1 points, so 5 points are four of the difference's."""
    start = files_start if name == "wc" else car_start
    spec = tool(environment, name)
    aimed = shares(guided(start), spec)
    free = shares(uniform(guided(start).sightings, 1), spec)
    assert aimed.keys() == free.keys()
    assert {key: abs(aimed[key] - free[key]) for key in aimed if abs(aimed[key] - free[key]) > 0.05} == {}
    if name == "lockDoors":
        assert aimed["door", "4 items"] == pytest.approx(0.25, abs=0.05)


def test_a_list_is_whole_only_where_the_requirement_asks_for_all(environment, car_start) -> None:
    drawing = guided(car_start)
    drawn = [drawing.draw_for(tool(environment, "lockDoors"), "Lock a door first.").arguments for _ in range(100)]
    assert sum(len(arguments["door"]) == 4 for arguments in drawn) < 50
