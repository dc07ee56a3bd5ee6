"""Tool documentation against the simulators it documents."""

import inspect

import pytest

from environments.base import InputError
from environments.bfcl.official import (
    CLASSES,
    all_tools,
    documented_choices,
    mutable_defaults,
    positional_names,
    simulator_class,
    tool_names,
    tool_specs,
)


def test_there_are_128_functions_and_no_name_twice():
    assert len(all_tools()) == 128
    assert sum(len(tool_specs(name)) for name in CLASSES) == 128
    assert sum(len(spec.parameters) for spec in all_tools().values()) == 185


@pytest.mark.parametrize("class_name", CLASSES)
def test_every_public_method_is_documented_with_its_own_parameters(class_name):
    methods = {
        name: method
        for name, method in inspect.getmembers(simulator_class(class_name), inspect.isfunction)
        if not name.startswith("_")
    }
    assert set(methods) == set(tool_names([class_name]))
    for spec in tool_specs(class_name):
        signature = dict(inspect.signature(methods[spec.name]).parameters)
        del signature["self"]
        assert positional_names(spec.name) == tuple(signature)
        assert spec.group == class_name
        for parameter in spec.parameters:
            default = signature[parameter.name].default
            assert parameter.required == (default is inspect.Parameter.empty)
            if not parameter.required:
                assert parameter.default == default


def test_only_lists_of_a_tweet_are_shared_defaults():
    shared = {name: mutable_defaults(name) for name in all_tools() if mutable_defaults(name)}
    assert shared == {"post_tweet": {"tags": [], "mentions": []}}


@pytest.mark.parametrize(
    ("tool", "parameter", "choices"),
    [
        ("startEngine", "ignitionMode", ("START", "STOP")),
        ("setHeadlights", "mode", ("on", "off", "auto")),
        ("lockDoors", "door", ("driver", "passenger", "rear_left", "rear_right")),
        ("adjustClimateControl", "unit", ("celsius", "fahrenheit")),
        ("adjustClimateControl", "fanSpeed", ()),
        ("wc", "mode", ("l", "w", "c")),
        ("get_flight_cost", "travel_class", ("economy", "business", "first")),
        ("authenticate_travel", "grant_type", ("read_write", "read", "write")),
        ("cd", "folder", ()),
    ],
)
def test_choices_stand_in_descriptions(tool, parameter, choices):
    assert all_tools()[tool].parameter(parameter).choices == choices


def test_choices_that_are_not_json_are_separated_by_commas():
    choices = all_tools()["compute_exchange_rate"].parameter("base_currency").choices
    assert choices[0] == "USD"
    assert choices[-1] == "MXN"
    assert len(choices) == 11
    cities = all_tools()["get_nearest_airport_by_city"].parameter("location").choices
    assert "Crescent Hollow" in cities
    assert len(cities) == 23


@pytest.mark.parametrize("description", ["", "The name of the file.", "Position between 0 and 1.", "Default is 50."])
def test_no_choices_where_none_are_listed(description):
    assert documented_choices(description) == ()


def test_parameters_with_choices_are_known():
    found = {(s.name, p.name) for s in all_tools().values() for p in s.parameters if p.choices}
    assert found == {
        ("activateParkingBrake", "mode"),
        ("adjustClimateControl", "mode"),
        ("adjustClimateControl", "unit"),
        ("authenticate_travel", "grant_type"),
        ("compute_exchange_rate", "base_currency"),
        ("compute_exchange_rate", "target_currency"),
        ("displayCarStatus", "option"),
        ("get_flight_cost", "travel_class"),
        ("get_nearest_airport_by_city", "location"),
        ("lockDoors", "door"),
        ("setHeadlights", "mode"),
        ("startEngine", "ignitionMode"),
        ("wc", "mode"),
    }


def test_types_are_those_of_the_contract():
    types = {p.type for s in all_tools().values() for p in s.parameters}
    assert types == {"string", "integer", "float", "boolean", "array", "dict"}
    assert all((p.items is not None) == (p.type == "array") for s in all_tools().values() for p in s.parameters)


def test_an_unknown_class_is_the_users_mistake():
    with pytest.raises(InputError, match="'WebSearchAPI' is not a class of BFCL multi-turn"):
        tool_specs("WebSearchAPI")
