"""Schemas as servers write them: which calls each takes, what it documents, and why another one cannot be used."""

import re
import time

import pytest

from environments.base import ToolCall, ToolSpec
from environments.json_schema import documented_tool, notes_of_left_out
from environments.verification.replay import argument_problem
from training.rendering.tool_calls import tool_schema

S, INT = {"type": "string"}, {"type": "integer"}
D4, D7 = "http://json-schema.org/draft-04/schema#", "https://json-schema.org/draft-07/schema"
D19 = "https://json-schema.org/draft/2019-09/schema"


def obj(*required: str, **properties) -> dict:
    return {"type": "object", "properties": properties, "required": list(required)}


def one(schema, **beside) -> dict:
    return {"type": "object", "properties": {"a": schema}, **beside}


def tool_of(schema) -> ToolSpec:
    return documented_tool("act", "g", "Act.", schema, 100)


KIND_A, KIND_B = obj("kind", "x", kind={"const": "a"}, x=S), obj("kind", kind={"const": "b"})
MODES = obj("m", m={"enum": ["a", "b"]}) | {
    "if": {"properties": {"m": {"const": "a"}}},
    "then": obj("x", x=S),
    "else": obj("y", y=INT),
}
NAMED_AS_KEYWORDS = obj("type", **dict.fromkeys(["$ref", "required", "type", "enum", "id", "$id", "items", "allOf"], S))
SAMPLES = {
    "example": {"$ref": "#/x", "id": 7},
    "examples": [{"$id": 1}],
    "default": {"$ref": 1},
    "x-order": {"id": "a"},
}
CASES = {
    "alternatives at the root": ({"anyOf": [obj("a", a=S), obj("b", b=S)]}, [{"a": "x"}, {"b": "x"}], [{"a": 1}, {}]),
    "of which one is an object": ({"oneOf": [S, obj("a", a=S)]}, [{"a": "x"}], [{"a": 1}]),
    "by kind": ({"oneOf": [KIND_A, KIND_B]}, [{"kind": "a", "x": "1"}, {"kind": "b"}], [{"kind": "a"}, {"kind": "c"}]),
    "nested": (
        {"anyOf": [{"allOf": [obj(a=S), {"oneOf": [obj("b", b=INT), obj("c", c=INT)]}]}, obj("d", d=S)]},
        [{"a": "x", "b": 1}, {"d": "x"}],
        [{"a": "x"}],
    ),
    "one of two required": (obj(a=S, b=S) | {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": "x"}], [{}]),
    "only required": ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": 1}, {"b": "x"}], [{"c": 1}]),
    "conditions": (MODES, [{"m": "a", "x": "q"}, {"m": "b", "y": 1}], [{"m": "a"}, {"m": "b", "y": "q"}]),
    "dependent": (obj(a=S) | {"dependentSchemas": {"a": obj("b", b=INT)}}, [{}, {"a": "x", "b": 1}], [{"a": "x"}]),
    "reference at the root": ({"$ref": "#/$defs/A", "$defs": {"A": obj("a", a=S)}}, [{"a": "x"}], [{"a": 1}, {}]),
    "itself": (obj(v=INT, child={"$ref": "#"}), [{"child": {"child": {"v": 2}}}], [{"child": {"v": "x"}}]),
    "another one is not named": (obj(a=S), [{"a": "x"}], [{"a": "x", "b": 1}]),
    "others": (one(S, additionalProperties=True), [{"a": "x", "z": [1]}], [{"a": 1}]),
    "others by a schema": (one(S, additionalProperties=INT), [{"a": "x", "z": 1}], [{"z": "x"}]),
    "others required": ({"required": ["q"], "additionalProperties": S}, [{"q": "x"}], [{"q": 1}, {}]),
    "others by a pattern": (one(S, patternProperties={"^_": INT}, additionalProperties=False), [{"_b": 1}], [{"a": 1}]),
    "others by their names": (one(S, propertyNames={"enum": ["a", "b"]}), [{"b": 1}], [{"c": 1}]),
    "others unevaluated": ({"allOf": [obj(a=S)], "unevaluatedProperties": INT}, [{"a": "x", "z": 1}], [{"z": "x"}]),
    "no others": (
        {"oneOf": [KIND_A, KIND_B], "unevaluatedProperties": False},
        [{"kind": "b"}],
        [{"kind": "b", "x": "1"}],
    ),
    "silence": ({"type": "object"}, [{}, {"q": 1}], []),
    "nothing": ({}, [{}, {"q": 1}], []),
    "pointer into a list": (
        obj(b={"$ref": "#/anyOf/0/properties/a"}) | {"anyOf": [obj(a=S)]},
        [{"b": "x"}],
        [{"b": 1}],
    ),
    "escapes": (
        obj(**{"a/b": S, "c": {"$ref": "#/properties/a~1b"}, "d": {"$ref": "#/$defs/x%25 y"}})
        | {"$defs": {"x% y": INT}},
        [{"c": "x", "d": 1}],
        [{"c": 1}, {"d": "x"}],
    ),
    "true": (obj(a={"$ref": "#/$defs/T"}) | {"$defs": {"T": True}}, [{"a": 1}, {"a": "x"}], []),
    "anchor": (obj(a={"$ref": "#n"}) | {"$defs": {"A": S | {"$anchor": "n"}}}, [{"a": "x"}], [{"a": 1}]),
    "keyword of OpenAPI": (
        one({"$ref": "#/components/schemas/A"}, components={"schemas": {"A": S | {"pattern": "^(a+)+$"}}}),
        [{"a": "a" * 40 + "!"}],
        [{"a": 1}],
    ),
    "a name without use": (one(S | {"$id": "https://x.org/a"}), [{"a": "x"}], [{"a": 1}]),
    "names": (
        {"$id": "https://x.org/s.json"}
        | obj(a={"$ref": "s.json#/$defs/A"}, b={"$ref": "inner"})
        | {"$defs": {"A": S, "B": {"$id": "inner", "$ref": "#/$defs/A", "$defs": {"A": INT}}}},
        [{"a": "x", "b": 1}],
        [{"a": 1}, {"b": "x"}],
    ),
    "names of draft 7": (
        {"$schema": D7} | one({"$ref": "#n"}, definitions={"A": S | {"$id": "#n"}}),
        [{"a": "x"}],
        [{"a": 1}],
    ),
    "samples": (one(S | SAMPLES), [{"a": "x"}], [{"a": 1}]),
    "parameters named as keywords": (NAMED_AS_KEYWORDS, [{"type": "x", "$ref": "y", "allOf": "z"}], [{"type": 1}, {}]),
    "draft 4": ({"$schema": D4} | one(INT | {"minimum": 0, "exclusiveMinimum": True}), [{"a": 1}], [{"a": 0}]),
    "draft 4 unsaid": (one(INT | {"minimum": 0, "exclusiveMinimum": True}), [{"a": 1}], [{"a": 0}]),
    "draft 7 unsaid": (one({"type": "array", "items": [S, INT]}), [{"a": ["x", 1]}], [{"a": [1]}]),
    "draft 2019-09": (
        {"$schema": D19} | one({"type": "array", "items": [S], "additionalItems": False}),
        [{"a": ["x"]}],
        [{"a": ["x", 2]}],
    ),
    "unknown dialects": ({"$schema": "urn:mine"} | one(S | {"$schema": "urn:yours"}), [{"a": "x"}], [{"a": 1}]),
    "nullable": (one({"type": "string", "nullable": True, "enum": ["x"]}), [{"a": None}, {"a": "x"}], [{"a": "y"}]),
    "slips": (
        one(S | {"enum": None, "title": 5, "examples": {"one": {}}, "required": True}, required=None),
        [{"a": "x"}],
        [{}, {"a": 1}],
    ),
    "type any": (one({"type": "any"}), [{"a": None}, {"a": [1]}], []),
    "not a pattern": (one({"not": {"$ref": "#/$defs/A"}}, **{"$defs": {"A": {"pattern": "^x"}}}), [{"a": "y"}], []),
    "one of two patterns": (one({"oneOf": [S | {"pattern": "^a"}, S | {"pattern": "^b"}]}), [{"a": "a"}], [{"a": 1}]),
    "a pattern as condition": (
        obj(a=S, b=INT) | {"if": {"properties": {"a": {"pattern": "(("}}}, "then": {"required": ["b"]}},
        [{"a": "y"}],
        [{"a": 1}],
    ),
    "forbidden": (obj(a=S, b=False), [{"a": "x"}], [{"b": 1}]),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_call_that_the_schema_takes_reaches_the_server_and_no_other_does(kind):
    schema, taken, refused = CASES[kind]
    tool = tool_of(schema)
    assert [argument_problem(ToolCall(name="act", arguments=given), tool) for given in taken] == [None] * len(taken)
    assert all(argument_problem(ToolCall(name="act", arguments=given), tool) for given in refused)
    assert tool_schema(tool)["function"]["parameters"]["properties"].keys() >= {one.name for one in tool.parameters}


DOCUMENTED = {
    "alternatives at the root": [("a", "string", False, ()), ("b", "string", False, ())],
    "by kind": [("kind", "string", True, ("a", "b")), ("x", "string", False, ())],
    "nested": [
        ("a", "string", False, ()),
        ("b", "integer", False, ()),
        ("c", "integer", False, ()),
        ("d", "string", False, ()),
    ],
    "conditions": [("m", "string", True, ("a", "b")), ("x", "string", False, ()), ("y", "integer", False, ())],
    "reference at the root": [("a", "string", True, ())],
    "others required": [("q", "string", True, ())],
    "forbidden": [("a", "string", False, ())],
    "slips": [("a", "string", True, ())],
    "silence": [],
}


@pytest.mark.parametrize("kind", DOCUMENTED)
def test_alternatives_are_documented_together(kind):
    tool = tool_of(CASES[kind][0])
    assert [(one.name, one.type, one.required, one.choices) for one in tool.parameters] == DOCUMENTED[kind]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (one({"$ref": "file:///etc/passwd"}), "refers outside itself"),
        (one({"$ref": "#/anyOf/7"}, anyOf=[{}]), "which it does not have"),
        (one({"$ref": "#/title"}, title="x"), "which is no schema that is read"),
        (one({"$ref": "#/x"}, x={"type": 7}), "is not JSON Schema"),
        (one({"anyOf": [S, {"$ref": "#/properties/a"}]}), "go round in a circle"),
        (
            one(
                {"$ref": "#/$defs/0"},
                **{"$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(150)} | {"150": S}},
            ),
            "in a row",
        ),
        ({"anyOf": [S, {"type": "array"}]}, "its arguments are no object"),
        (obj(coin=S, required=["coin"]), "is not JSON Schema"),
        (obj("a-b", **{"a-b": S}), "it requires 'a-b', whose name is not of"),
        (obj("b") | {"additionalProperties": False}, "it requires 'b', which it does not document"),
    ],
)
def test_a_schema_that_cannot_be_used_has_its_true_reason(schema, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        tool_of(schema)


@pytest.mark.parametrize("name", ["Notion-Version", "fields[users]", "$top", "größe", "", "a b", "x" * 80])
def test_an_optional_parameter_with_another_name_is_left_out_and_can_be_given(name):
    tool = tool_of(obj("q", q=S, **{name: S}))
    assert [one.name for one in tool.parameters] == ["q"]
    assert argument_problem(ToolCall(name="act", arguments={"q": "x", name: "y"}), tool) is None
    assert argument_problem(ToolCall(name="act", arguments={"q": "x", name: 1}), tool)
    assert f"of act {name!r:.60}: a name not of" in notes_of_left_out([tool], {})[0]


@pytest.mark.slow
def test_what_multiplies_is_read_in_bounded_time():
    started = time.process_time()

    def doubled(levels):
        parts = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(levels)}
        return {"$ref": "#/$defs/d0", "$defs": parts | {f"d{levels}": obj(a=S)}}

    assert [one.name for one in tool_of(doubled(10)).parameters] == ["a"]
    with pytest.raises(ValueError, match="combine one another in more than 10,000 ways"):
        tool_of(doubled(30))
    values = {"anyOf": [{"enum": list(range(n, n + 2500))} for n in (0, 2000)]}
    assert len(tool_of(one(values)).parameters[0].choices) == 4500
    tool_of({"oneOf": [obj(**{f"p{i}": INT}) for i in range(200)]})
    assert time.process_time() - started < 10
