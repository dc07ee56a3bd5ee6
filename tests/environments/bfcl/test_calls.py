"""Call texts: what is a call, what is none, and what no text can make happen."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.official_runs import format_call

from environments.base import ObservationStatus, ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.official import load_category, read_call
from environments.bfcl.simulators import Simulators
from environments.verification.replay import MAX_CHARACTERS

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**29), 10**29)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["folder", "a", "file_name", "x1"]), JSON_VALUES))
def test_what_is_formatted_is_read_back(arguments):
    call = ToolCall(name="cd", arguments=arguments)
    assert read_call(format_call(call)) == call


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("cd('x')", ToolCall(name="cd", arguments={"folder": "x"})),
        (" cd( folder = 'x' ) ", ToolCall(name="cd", arguments={"folder": "x"})),
        ("mv('a', destination='b')", ToolCall(name="mv", arguments={"source": "a", "destination": "b"})),
        ("pwd()", ToolCall(name="pwd")),
        ("absolute_value(-2.5)", ToolCall(name="absolute_value", arguments={"number": -2.5})),
        ("mean([1, 2.0])", ToolCall(name="mean", arguments={"numbers": [1, 2.0]})),
        (
            "edit_ticket(1, {'title': None})",
            ToolCall(name="edit_ticket", arguments={"ticket_id": 1, "updates": {"title": None}}),
        ),
        ("no_such_tool(a=1)", ToolCall(name="no_such_tool", arguments={"a": 1})),
        # Documented as type, cost, booking; the function takes type, booking, cost, and so does the official executor.
        (
            "purchase_insurance('t', 'full', 'b1', 5.0, 'c1')",
            ToolCall(
                name="purchase_insurance",
                arguments={
                    "access_token": "t",
                    "insurance_type": "full",
                    "booking_id": "b1",
                    "insurance_cost": 5.0,
                    "card_id": "c1",
                },
            ),
        ),
    ],
)
def test_calls(text, call):
    assert read_call(text) == call


@pytest.fixture
def episode():
    task = load_category("base", ("train",))[0]
    opened = BFCLEnvironment().open(task.spec)
    opened.start()
    return opened


@pytest.mark.parametrize(
    "name", ["__import__", "exec", "eval", "open", "print", "_load_scenario", "__init__", "getattr"]
)
def test_names_are_looked_up_among_documented_functions_only(episode, name):
    """An agent that speaks JSON brings any name past the parser."""
    answer = episode.step(ToolCall(name=name, arguments={"scenario": {}}))
    assert answer.text == f"Error during execution: name '{name}' is not defined"
    assert answer.calls == ()


@pytest.mark.parametrize("key", ["self", "__class__", "a=1) or open('x'", ""])
def test_argument_names_reach_python_as_keywords_only(episode, key):
    answer = episode.step(ToolCall(name="cd", arguments={"folder": "x", key: 1}))
    assert answer.status is ObservationStatus.ERROR
    assert "argument" in answer.text


@pytest.mark.parametrize(
    "call",
    [
        ToolCall(name="logarithm", arguments={"value": 2, "base": 10, "precision": 10**8}),
        ToolCall(name="logarithm", arguments={"value": 2, "base": 10, "precision": "99999999"}),
        ToolCall(name="logarithm", arguments={"value": "1e99999999", "base": 10, "precision": 5}),
        ToolCall(name="logarithm", arguments={"value": 2, "base": "1e-99999999", "precision": 5}),
        ToolCall(name="square_root", arguments={"number": 2, "precision": 10**9}),
        ToolCall(name="round_number", arguments={"number": 5, "decimal_places": -(10**9)}),
        ToolCall(name="power", arguments={"base": 10**20, "exponent": 10**20}),
        ToolCall(name="add", arguments={"a": math.inf, "b": 1}),
        ToolCall(name="add", arguments={"a": 10**40, "b": 1}),
        ToolCall(name="add", arguments={"a": "x" * 30_000, "b": "y"}),
        ToolCall(name="max_value", arguments={"numbers": [0] * 10_000}),
        ToolCall(name="mean", arguments={"numbers": [[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]}),
    ],
)
def test_a_call_beyond_the_caps_is_answered_at_once_and_not_run(call):
    task = next(task for task in load_category("base", ("train",)) if "MathAPI" in task.spec.classes)
    episode = BFCLEnvironment().open(task.spec)
    episode.start()
    began = time.perf_counter()
    answer = episode.step(call)
    assert time.perf_counter() - began < 5
    assert answer.status is ObservationStatus.ERROR
    assert answer.calls == ()
    assert "is not defined" not in answer.text


@pytest.mark.parametrize(
    "call",
    [
        ToolCall(name="logarithm", arguments={"value": 20, "base": 10, "precision": 1_000}),
        ToolCall(name="logarithm", arguments={"value": "ten", "base": "10", "precision": "5"}),
        ToolCall(name="power", arguments={"base": -1, "exponent": 99_999}),
        ToolCall(name="power", arguments={"base": 2.5, "exponent": 10**20}),
        ToolCall(name="add", arguments={"a": 10**29, "b": -(10**29)}),
        ToolCall(name="echo", arguments={"content": "x" * (MAX_CHARACTERS - 100), "file_name": None}),
    ],
)
def test_what_a_task_could_need_is_within_the_caps(call):
    assert Simulators(("MathAPI", "GorillaFileSystem"), {}, long_context=False).run(call).ran
