"""Call texts: what is a call, what is none, and what no text can make happen."""

import math
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.official_runs import format_call

from environments.base import MalformedCall, ObservationStatus, ToolCall
from environments.bfcl.calls import MAX_CHARACTERS, beyond_caps, parse_call
from environments.bfcl.environment import BFCLEnvironment
from environments.bfcl.official import load_category

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
    assert parse_call(format_call(call)) == call


@given(st.text(max_size=60))
def test_every_text_is_a_call_or_malformed(text):
    assert isinstance(parse_call(text), ToolCall | MalformedCall)


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
    assert parse_call(text) == call


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a Python expression"),
        ("hello there", "not a Python expression"),
        ("cd('x'", "not a Python expression"),
        ("x = cd('x')", "not a Python expression"),
        ("cd('x'); pwd()", "not a Python expression"),
        ("cd('\0')", "not a Python expression"),
        ("pwd", "not one plain call"),
        ("[pwd()]", "not one plain call"),
        ("pwd() or pwd()", "not one plain call"),
        ("os.system('id')", "not one plain call"),
        ("pwd()()", "not one plain call"),
        ("(lambda: 1)()", "not one plain call"),
        ("__import__('os').system('id')", "not one plain call"),
        ("cd(folder=__import__('os'))", "not a literal"),
        ("cd(folder=pwd())", "not a literal"),
        ("cd(folder=open)", "not a literal"),
        ("cd(folder=f'{1}')", "not a literal"),
        ("cd(folder=''.__class__)", "not a literal"),
        ("cd(folder=2**10)", "not a literal"),
        ("cd(folder=[x for x in 'ab'])", "not a literal"),
        ("cd(*['x'])", "not a literal"),
        ("cd(**{'folder': 'x'})", "`**` is not allowed"),
        ("cd('x', folder='y')", "given twice"),
        ("cd(folder='x', folder='y')", "given twice"),
        ("cd('x', 'y')", "at most 1 arguments"),
        ("no_such_tool(1)", "not documented"),
        ("mean((1, 2))", "not a JSON value"),
        ("mean({1, 2})", "not a JSON value"),
        ("mean({1: 2})", "not a JSON value"),
        ("cd(b'x')", "not a JSON value"),
        ("cd(1j)", "not a JSON value"),
        ("cd(...)", "not a JSON value"),
        ("cd(1e999)", "not finite"),
        ("cd('\\ud800')", "UTF-8"),
        (f"cd({10**30})", "30 digits"),
        (f"cd({'9' * 5000})", "not a Python expression"),
        ("cd('" + "x" * MAX_CHARACTERS + "')", "longer than"),
        ("cd(" + "[" * 150 + "]" * 150 + ")", "levels"),
        ("cd(" + "(" * 5000 + ")" * 5000 + ")", "not a Python expression"),
        ("cd(" + "-" * 15000 + "1)", "not a"),
        ("mean([" + "1," * 5000 + "])", "2000 values"),
        ("logarithm(10, 10, 20000)", "precision is beyond"),
        ("power(99999, 99999)", "bits"),
    ],
)
def test_no_calls(text, reason):
    read = parse_call(text)
    assert isinstance(read, MalformedCall)
    assert reason in read.reason
    assert len(read.text) <= MAX_CHARACTERS


INJECTIONS = [
    "__import__('builtins').setattr(__import__('sys'), 'bfcl_was_here', 1)",
    "(lambda: setattr(__import__('sys'), 'bfcl_was_here', 1))()",
    "cd(folder=setattr(__import__('sys'), 'bfcl_was_here', 1))",
    "setattr(sys, 'bfcl_was_here', 1)",
    "exec('import sys; sys.bfcl_was_here = 1')",
    "eval(\"setattr(__import__('sys'), 'bfcl_was_here', 1)\")",
    "globals()",
    "cd(folder='x') if setattr(__import__('sys'), 'bfcl_was_here', 1) else 0",
    "cd(**{'folder': setattr(__import__('sys'), 'bfcl_was_here', 1)})",
    "cd(folder=[setattr(__import__('sys'), 'bfcl_was_here', 1) for _ in 'a'])",
    "pwd.__globals__['__builtins__'].exec('import sys; sys.bfcl_was_here = 1')",
    "_load_scenario({})",
    "__init__()",
    "cd(self=1, folder='x')",
]


@pytest.fixture
def episode():
    task = load_category("base", ("train",))[0]
    opened = BFCLEnvironment().open(task.spec)
    opened.start()
    return opened


@pytest.mark.parametrize("text", INJECTIONS)
def test_nothing_injected_runs(episode, text):
    before = episode.state()
    answer = episode.step(parse_call(text))
    assert answer.status in (ObservationStatus.ERROR, ObservationStatus.MALFORMED)
    assert answer.text.startswith("Error during execution: ")
    assert episode.state() == before
    assert not hasattr(sys, "bfcl_was_here")


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
        ToolCall(name="max_value", arguments={"numbers": [0] * 3_000}),
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
    assert beyond_caps(call) in answer.text


@pytest.mark.parametrize(
    "call",
    [
        ToolCall(name="logarithm", arguments={"value": 20, "base": 10, "precision": 1_000}),
        ToolCall(name="logarithm", arguments={"value": "ten", "base": "10", "precision": "5"}),
        ToolCall(name="power", arguments={"base": -1, "exponent": 99_999}),
        ToolCall(name="power", arguments={"base": 2.5, "exponent": 10**20}),
        ToolCall(name="add", arguments={"a": 10**29, "b": -(10**29)}),
        ToolCall(name="echo", arguments={"content": "x" * MAX_CHARACTERS, "file_name": None}),
    ],
)
def test_what_a_task_could_need_is_within_the_caps(call):
    # The names of the arguments are text as well, so the longest content leaves room for them.
    if call.name == "echo":
        call = ToolCall(name="echo", arguments={"content": "x" * (MAX_CHARACTERS - 20), "file_name": None})
    assert beyond_caps(call) is None
