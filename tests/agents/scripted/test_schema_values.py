"""What is drawn from a schema: a call that it takes, with known values, and the old draw wherever that fits."""

import random
import re
import time

import pytest

from agents.scripted.arguments import UniformArguments
from agents.scripted.values import Sightings
from environments.base import ToolSpec
from environments.json_schema import documented_tool
from environments.verification.replay import argument_problem

KNOWN = ["lamp", 3, "notes", "vase", "tools", "a blue lamp shade", "by"]
S, INT = {"type": "string"}, {"type": "integer"}
PAIR = {"type": "object", "properties": {"a": S, "b": S}}
VALUES = {
    "places": {"type": "array", "prefixItems": [{"type": "number"}, INT], "items": False, "minItems": 2},
    "places of draft 7": {"type": "array", "items": [S, {"type": "boolean"}], "minItems": 2},
    "several": {"type": "array", "items": S, "minItems": 4, "uniqueItems": True},
    "one within": {"type": "array", "contains": {"const": 9}},
    "above": {"type": "integer", "minimum": 1000},
    "below": {"type": "number", "maximum": -5},
    "strictly within": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
    "strictly by draft 4": {"type": "integer", "minimum": 7, "exclusiveMinimum": True, "maximum": 8},
    "one point": {"type": "number", "minimum": 0.3, "maximum": 0.3},
    "huge": {"type": "number", "minimum": 1e308},
    "step": {"type": "integer", "minimum": 50, "maximum": 500, "multipleOf": 50},
    "long": {"type": "string", "minLength": 12},
    "short": {"type": "string", "minLength": 1, "maxLength": 2},
    "values": {"anyOf": [{"const": 7}, {"enum": [10, 20]}], "not": {"const": 7}},
    "map": {"type": "object", "additionalProperties": INT, "minProperties": 2},
    "map of some names": {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "minProperties": 1},
    "kinds": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": k}, k: INT}, "required": ["kind", k]}
            for k in ("x", "y")
        ]
    },
    "tree": {"$ref": "#/$defs/tree"},
}
ROOTS = {
    "exactly one": PAIR | {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "not both": PAIR | {"minProperties": 1, "not": {"required": ["a", "b"]}},
    "with another": PAIR | {"dependentRequired": {"a": ["b"]}, "required": ["a"]},
    "condition": PAIR
    | {"required": ["a"], "if": {"properties": {"a": {"const": "lamp"}}}, "then": {"required": ["b"]}, "else": False},
    "any name": {"type": "object", "additionalProperties": S, "minProperties": 1},
}
TREE = {
    "type": "object",
    "properties": {"v": INT, "k": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "required": ["k"],
}


def tool_of(schema) -> ToolSpec:
    return documented_tool("act", "g", "Act.", schema, 100)


def calls(tool, seeds=15):
    sightings = Sightings()
    for name in ("a", "b", "k", "v", "n", "t", "x", "y", ""):
        for value in KNOWN:
            sightings.see_for("act", name, value, frozenset())
    return [UniformArguments(sightings, random.Random(seed)).draw(tool) for seed in range(seeds)]


def of_value(schema) -> ToolSpec:
    root = {"type": "object", "properties": {"a": schema}, "required": ["a"], "$defs": {"tree": TREE}}
    return tool_of(root | ({"$defs": {}} if "tree" not in str(schema) else {}))


@pytest.mark.parametrize("kind", [*VALUES, *ROOTS])
def test_most_calls_that_are_drawn_fit_the_schema(kind):
    tool = of_value(VALUES[kind]) if kind in VALUES else tool_of(ROOTS[kind])
    problems = [argument_problem(call, tool) if call else "nothing drawn" for call in calls(tool)]
    assert problems.count(None) >= 10, problems


@pytest.mark.parametrize(
    ("form", "like"),
    [
        ("date", r"20\d\d-\d\d-\d\d"),
        ("date-time", r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
        ("time", r"\d\d:\d\d:\d\dZ"),
        ("email", r"\w+@example\.org"),
        ("uri", r"https://.*"),
        ("uuid", r"[0-9a-f-]{36}"),
        ("ipv4", r"[\d.]+"),
        ("ipv6", r"2001:.*"),
    ],
)
def test_texts_are_of_the_format_that_is_named(form, like):
    text = {"type": "string", "format": form}
    for call in calls(of_value({"type": "array", "items": text}), 5) + calls(of_value(text), 5):
        for drawn in [call.arguments["a"]] if isinstance(call.arguments["a"], str) else call.arguments["a"]:
            assert re.fullmatch(like, drawn)


def test_known_values_come_first_and_a_draw_that_fits_stays():
    bounded = {"type": "object", "properties": {"n": INT | {"minimum": 2, "maximum": 50}, "t": S | {"minLength": 5}}}
    drawn = [call.arguments for call in calls(tool_of(bounded | {"required": ["n", "t"]}), 60)]
    assert {one["t"] for one in drawn} >= {"notes"}
    assert 3 in {one["n"] for one in drawn}
    plain = tool_of(PAIR | {"required": ["a"]})
    free = plain.model_copy(update={"json_schema": {}})
    assert calls(plain, 40) == calls(free, 40)


@pytest.mark.parametrize("bound", [{"minLength": 10**9}, {"type": "array", "minItems": 10**9}, {"minimum": 10**400}])
def test_what_cannot_be_drawn_ends(bound):
    started = time.process_time()
    calls(of_value({"type": "string"} | bound if "minLength" in bound else bound), 3)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "schema", [S, INT, {"type": "number"}, {"type": "array", "items": S, "minItems": 1}, S | {"pattern": "^[a-z]{3}$"}]
)
def test_nothing_is_drawn_where_nothing_is_known_and_the_schema_has_no_range(schema):
    assert UniformArguments(Sightings(), random.Random(0)).draw(of_value(schema)) is None
