"""JSON Schemas of strangers: closed, read into nested parameters, and what is drawn from these passes the schema."""

import json
import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.chat.transcript import _tool_text
from agents.scripted.arguments import UniformArguments
from agents.scripted.values import Sightings
from environments.base import Parameter, ToolCall, ToolSpec
from environments.json_schema import closed_schema, parameters_of, schema_problem
from environments.task_text import Seen, clause, documented, leaves
from environments.tool_lines import tool_line
from environments.verification.replay import argument_problem
from training.rendering.tool_calls import tool_schema

ITEM = {
    "type": "object",
    "description": "one order",
    "properties": {
        "label": {"type": "string", "description": "label of the parcel"},
        "van": {"$ref": "#/$defs/van"},
        "inner": {"$ref": "#/$defs/item"},
    },
    "required": ["label", "van"],
}
VAN = {"enum": ["north", "south"], "description": "the van"}
SCHEMA = {
    "type": "object",
    "properties": {
        "orders": {"type": "array", "items": {"$ref": "#/$defs/item"}, "description": "the orders"},
        "weight": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}], "default": None},
        "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    },
    "required": ["orders"],
    "$defs": {"item": ITEM, "van": VAN},
}


def tool_of(schema) -> ToolSpec:
    closed = closed_schema(schema)
    parameters = parameters_of(closed)
    return ToolSpec(name="act", group="g", description="Act.", parameters=parameters, json_schema=closed)


def test_references_alternatives_and_nesting_are_read():
    orders, weight, grid = tool_of(SCHEMA).parameters
    assert (orders.type, orders.items, orders.required) == ("array", "dict", True)
    assert [one.name for one in orders.item.fields] == ["label", "van", "inner"]
    assert orders.item.fields[1].choices == ("north", "south")
    assert orders.item.fields[2].fields[0].name == "label"
    assert (weight.type, weight.description, weight.required) == ("integer", "weight (between 1 and 9)", False)
    assert (grid.items, grid.item.items) == ("array", "float")


def test_renderings_show_nested_parameters():
    tool = tool_of(SCHEMA)
    assert tool_line(tool).startswith('act(orders: {label: string, van: "north"|"south", inner?: {label: string, van: ')
    assert "grid?: float[][]" in tool_line(tool)
    assert tool_schema(tool)["function"]["parameters"] == tool.json_schema
    few = {"properties": {"o": {"type": "array", "items": ITEM}}, "$defs": SCHEMA["$defs"]}
    text = _tool_text(tool_of(few))
    assert "  o (array of dict, default null): o\n    label (string, required): label of the parcel" in text


def test_words_and_documentation_reach_into_objects():
    tool = tool_of(SCHEMA)
    call = ToolCall(name="act", arguments={"orders": [{"label": "lamp", "van": "north"}]})
    said = clause(call, {"act": tool}, random.Random(1))
    assert said.endswith('act (the orders (label of the parcel "lamp", the van north))')
    assert documented("north", tool, tool.parameters[0])
    assert not documented("lamp", tool, tool.parameters[0])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"orders": []}, None),
        ({"orders": [{"label": "a", "van": "north", "inner": {"label": "b", "van": "south"}}]}, None),
        ({"orders": [{"label": "a"}]}, "orders[0] of act: 'van' is a required property"),
        ({"orders": [{"label": "a", "van": "up"}]}, "orders[0].van of act: 'up' is not one of"),
        ({"orders": [], "weight": 12}, "weight of act: 12 is not valid"),
        ({"orders": [], "grid": [[1], ["x"]]}, "grid[1][0] of act: 'x' is not of type 'number'"),
        ({"orders": [], "more": 1}, "act has no parameter 'more'"),
        ({}, "act requires 'orders'"),
    ],
)
def test_calls_are_checked_against_the_whole_schema(arguments, problem):
    found = argument_problem(ToolCall(name="act", arguments=arguments), tool_of(SCHEMA))
    assert found == problem if problem is None else problem in found


names = st.sampled_from(["a", "b", "first_name", "pattern", "items", "enum"])
plain = st.one_of(
    st.just({"type": "string"}),
    st.just({"type": "integer"}),
    st.just({"type": "number"}),
    st.just({"type": "boolean"}),
    st.just({"enum": ["x", "y"]}),
    st.just({"type": ["string", "null"]}),
)


def objects(inner):
    return st.dictionaries(names, inner, max_size=3).flatmap(
        lambda found: st.sets(st.sampled_from(sorted(found)) if found else st.nothing()).map(
            lambda required: {"type": "object", "properties": found, "required": sorted(required)}
        )
    )


nested = st.recursive(
    plain,
    lambda inner: st.one_of(
        objects(inner),
        inner.map(lambda one: {"type": "array", "items": one}),
        inner.map(lambda one: {"anyOf": [{"type": "null"}, one]}),
    ),
    max_leaves=6,
)


@settings(max_examples=120, deadline=None)
@given(objects(nested), st.integers(0, 5))
def test_what_explorers_draw_passes_the_schema_and_can_be_said(schema, seed):
    tool = tool_of(schema)
    sightings = Sightings()
    for parameter in (one for top in tool.parameters for one in top.nested()):
        for value in ("lamp", 3):
            sightings.see_for("act", parameter.name, value, frozenset())
    call = UniformArguments(sightings, random.Random(seed)).draw(tool)
    if call is None:
        return
    assert argument_problem(call, tool) is None
    said = Seen([clause(call, {"act": tool}, random.Random(seed))])
    for name, value in call.arguments.items():
        parameter = tool.parameter(name)
        for leaf in leaves(value):
            assert documented(leaf, tool, parameter) or said.has(leaf), (call, leaf)


KEYWORDS = ["type", "properties", "required", "items", "$ref", "anyOf", "allOf", "enum", "$defs", "default", "not"]
keys = st.sampled_from(KEYWORDS) | st.text(max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(json_values, json_values)
def test_any_schema_is_read_or_refused_and_any_call_is_answered(schema, arguments):
    try:
        tool = tool_of({"type": "object", "properties": {"a": schema}})
    except ValueError:
        return
    assert all(isinstance(one, Parameter) for one in tool.parameters)
    json.dumps(tool_schema(tool))
    tool_line(tool)
    problem = argument_problem(ToolCall.model_construct(name="act", arguments={"a": arguments}), tool)
    assert problem is None or isinstance(problem, str)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ([], "is no object"),
        ({"type": "array"}, "its arguments are no object"),
        ({"properties": []}, "is not JSON Schema ([] is not of type 'object')"),
        ({"properties": {"a": {"$ref": "https://example.org/a.json"}}}, "refers outside itself"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "which it does not have"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "go round in a circle"),
        ({"properties": {"a": {"$dynamicRef": "#x"}}}, "has $dynamicRef"),
        ({"properties": {"a": {"type": 5}}}, "is not JSON Schema"),
        ({"properties": {"a": {"enum": float("nan")}}}, "no JSON of at most"),
        ({"properties": {}, "required": ["a"]}, "does not document"),
        ({"properties": {f"p{i}": {} for i in range(301)}}, "more than 300 parameters"),
        ({"properties": {"a": {"description": "x" * 60_000}}}, "longer than 50000 characters"),
    ],
)
def test_a_schema_beyond_the_limits_is_refused_with_the_reason(schema, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        tool_of(schema)


@pytest.mark.slow
def test_a_schema_that_multiplies_is_read_in_bounded_time():
    wide = {f"p{i}": {"$ref": "#/$defs/x"} for i in range(60)}
    started = time.process_time()
    tool = tool_of({"properties": wide, "$defs": {"x": {"type": "object", "properties": wide}}})
    assert sum(1 for one in tool.parameters for _ in one.nested()) <= 300
    bomb = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(11)} | {"d11": {"type": "string"}}
    many = tool_of({"properties": {"a": {"items": {"$ref": "#/$defs/d0"}}}, "$defs": bomb})
    assert "could not be checked" in schema_problem("act", {"a": [1] * 2000}, many.json_schema)
    assert time.process_time() - started < 20


NEVER_ENDS = {"type": "string", "pattern": "^(a+)+$"}
LISTED = {"type": "array", "items": [{}], "additionalItems": NEVER_ENDS}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": NEVER_ENDS}, "patternProperties": {"^(b+)+$": {}}, "additionalProperties": False},
        {"properties": {"a": {"$ref": "#/x"}}, "x": NEVER_ENDS},
        {"properties": {"a": {}}, "allOf": [{"patternProperties": {"^(a+)+$": {}}}], "unevaluatedProperties": False},
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "properties": {"a": {}, "b": LISTED}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {}, "b": LISTED}},
    ],
)
def test_no_regular_expression_of_a_schema_is_matched(schema):
    tool = tool_of(schema)
    endless = "a" * 40 + "!"
    given = {"a": endless} | ({"b": [1, endless]} if "b" in schema["properties"] else {})
    started = time.process_time()
    assert argument_problem(ToolCall(name="act", arguments=given), tool) is None
    assert time.process_time() - started < 1
