"""Arguments against documentation: what is refused, and what must not be."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import Parameter, ToolCall, ToolSpec
from environments.verification.replay import argument_problem


def parameter(name, kind, required=False, **fields):
    return Parameter(name=name, type=kind, description="", required=required, **fields)


TOOL = ToolSpec(
    name="tool",
    group="G",
    description="",
    parameters=(
        parameter("text", "string", required=True),
        parameter("mode", "string", choices=("on", "off"), default="on"),
        parameter("count", "integer"),
        parameter("level", "float", default=1.0),
        parameter("flag", "boolean"),
        parameter("names", "array", items="string", choices=("a", "b")),
        parameter("numbers", "array", items="float"),
        parameter("options", "dict"),
        parameter("program", "code"),
        parameter("loose", "any", items="string"),
    ),
)


def problem(**arguments):
    return argument_problem(ToolCall(name="tool", arguments={"text": "x", **arguments}), TOOL)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"mode": "off"},
        {"count": 3},
        {"count": 3.0},
        {"count": None},
        {"level": 3},
        {"level": -0.5},
        {"level": sys.float_info.max},
        {"flag": False},
        {"names": []},
        {"names": ["b", "a"]},
        {"numbers": [1, 2.5]},
        {"options": {"any": [1, None]}},
        {"text": ""},
        {"program": "x = ("},
        {"loose": ["x"]},
        {"loose": 5},
    ],
)
def test_acceptable(arguments):
    assert problem(**arguments) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"text": 5}, "text=5 of tool is not of type string"),
        ({"text": None}, "not of type string"),
        ({"other": 1}, "tool has no parameter 'other'"),
        ({"mode": "ON"}, "outside the documented choices ['on', 'off']"),
        ({"mode": True}, "not of type string"),
        ({"count": 3.5}, "not of type integer"),
        ({"count": True}, "not of type integer"),
        ({"count": "3"}, "not of type integer"),
        ({"level": "3"}, "not of type float"),
        ({"level": True}, "not of type float"),
        ({"level": None}, "not of type float"),
        ({"level": float("nan")}, "not of type float"),
        ({"level": float("inf")}, "not of type float"),
        ({"count": 10**400}, "not of type integer"),
        ({"flag": 1}, "not of type boolean"),
        ({"names": "a"}, "not of type array"),
        ({"names": ["a", "c"]}, "outside the documented choices"),
        ({"names": ["a", 1]}, "item 1, which is not of type string"),
        ({"numbers": [1, "2"]}, "item '2'"),
        ({"options": []}, "not of type dict"),
        ({"program": 3}, "not of type code"),
        ({"loose": [5]}, "item 5, which is not of type string"),
    ],
)
def test_refused(arguments, words):
    found = problem(**arguments)
    assert found is not None
    assert words in found


def test_a_required_argument_may_not_be_missing():
    assert argument_problem(ToolCall(name="tool", arguments={"count": 1}), TOOL) == "tool requires 'text'"


@given(st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_number_is_a_float(value):
    assert problem(level=value) is None


@given(st.text(max_size=500))
def test_a_problem_stays_one_short_sentence(value):
    found = problem(count=value)
    assert found is not None
    assert len(found) < 160
