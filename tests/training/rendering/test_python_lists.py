"""Calls written as a list in Python: what is read, what is malformed, and that no text can do more than that."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import MalformedCall, Parameter, ToolCall, ToolSpec
from training.rendering.base import EndTurn
from training.rendering.tool_calls import MAX_CHARACTERS, MOST_CALLS, PythonicReader, tool_schema


def tool(name: str, *parameters: str) -> ToolSpec:
    made = tuple(Parameter(name=one, type="string", description="what", required=True) for one in parameters)
    return ToolSpec(name=name, group="g", description="Do it.", parameters=made)


TOOLS = [tool_schema(one) for one in (tool("cd", "folder"), tool("mv", "source", "destination"), tool("ls"))]


def read(message: str, head: str = "<|im_start|>assistant\n", tools: list = TOOLS):
    return PythonicReader().read(message, "<|im_end|>", head, tools)


def call(name: str, /, **arguments: object) -> ToolCall:
    return ToolCall.model_validate({"name": name, "arguments": arguments})


@pytest.mark.parametrize(
    ("message", "calls"),
    [
        ('[cd(folder="document"), ls()]', [call("cd", folder="document"), call("ls")]),
        ("  [ cd ( folder='x' ) ,\n ls() ] \n", [call("cd", folder="x"), call("ls")]),
        ("I look.\n[ls()]", [call("ls")]),
        ("```python\n[ls()]\n```", [call("ls")]),
        ("<think>[cd(</think>[ls()]", [call("ls")]),
        ('[cd(folder="a <think>b</think> [rm()]")]', [call("cd", folder="a <think>b</think> [rm()]")]),
        (
            '[set(a=-1, b=[1.5, true, None], c={"k": null, "é": "x"}, d=False)]',
            [call("set", a=-1, b=[1.5, True, None], c={"k": None, "é": "x"}, d=False)],
        ),
        ('[files.cd(folder="x")]', [ToolCall(name="files.cd", arguments={"folder": "x"})]),
        ("[mv('a', destination='b')]", [call("mv", source="a", destination="b")]),
        ('[no_such_tool(a="1")]', [call("no_such_tool", a="1")]),
    ],
)
def test_a_list_is_read_call_by_call(message: str, calls: list[ToolCall]) -> None:
    assert read(message) == tuple(calls)


@pytest.mark.parametrize(
    "message", ["", "Done.", "It is [see 3].", "[]", "[1, 2]", "['ls()']", "ls()", "The list [a(b)] is empty.", "[ls"]
)
def test_a_message_without_a_list_ends_the_turn(message: str) -> None:
    assert read(message) == EndTurn(text=message)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("[ls(", "not a Python expression"),
        ('[cd(folder="x")', "not a Python expression"),
        ("[ls()] and then?", "not a Python expression"),
        ("[ls()][0]", "not one list of calls"),
        ("<think>[ls()]", "in thinking that does not end"),
        ('[{"name": "ls", "arguments": {}}]', "looks like a tool call"),
        ("[cd(\uff46older='x')]", "written in other characters"),
        ("[ls() for _ in range(3)]", "not one list of calls"),
        ("[cd(folder=__import__('os').getcwd())]", "'folder' is not a literal"),
        ("[cd(folder=f'{1}')]", "'folder' is not a literal"),
        ("[cd(folder=ls())]", "'folder' is not a literal"),
        ("[cd(folder=('x',))]", "'folder' is not a JSON value"),
        ("[cd(folder={1: 2})]", "'folder' is not a JSON value"),
        ("[cd(folder=b'x')]", "'folder' is not a JSON value"),
        ("[cd(folder=1e999)]", "not finite"),
        ("[cd(folder=0x" + "f" * 2000 + ")]", "4096 bits"),
        ("[cd(folder=" + "9" * 5000 + ")]", "not a Python expression"),
        ("[cd(folder='\\ud800')]", "UTF-8"),
        ("[cd(folder='\ud800')]", "not a Python expression"),
        ("[cd(folder='x', folder='y')]", "'folder' is given twice"),
        ("[cd('x', folder='y')]", "'folder' is given twice"),
        ("[cd(**{'folder': 'x'})]", "`**` is not allowed"),
        ("[cd(*'x')]", "is not a literal"),
        ("[cd('x', 'y')]", "at most 1 arguments"),
        ("[unheard_of('x')]", "not documented"),
        ("[ls()()]", "not one plain call"),
        ("[cd(folder=" + "[" * 40 + "]" * 40 + ")]", "levels deep"),
        ("[cd(folder=" + "-" * 9000 + "1)]", "not a"),
        ("[cd(folder=" + "(" * 5000 + ")" * 5000 + ")]", "not a Python expression"),
        ("[" + "a." * 9000 + "ls()]", "not a"),
        ("[ls(), " + "x" * MAX_CHARACTERS + "]", "longer than"),
        ("[" + "ls()," * (MOST_CALLS + 1) + "]", "more than 200 calls"),
    ],
)
def test_what_begins_like_a_list_and_cannot_be_read_is_malformed_with_the_reason(message: str, reason: str) -> None:
    (found,) = read(message)
    assert isinstance(found, MalformedCall)
    assert reason in found.reason
    assert found.text == message


def test_a_part_that_is_not_a_call_leaves_its_neighbours() -> None:
    first, second, third = read("[ls(), cd(folder=x), ls(), ]")
    assert (first, third) == (call("ls"), call("ls"))
    assert second == MalformedCall(text="cd(folder=x)", reason="argument 'folder' is not a literal")


def test_a_block_of_python_is_left_to_the_tool_that_runs_it() -> None:
    code = "```python\n[print(x) for x in (1, 2)]\n```"
    assert isinstance(read(code), tuple)
    assert read(code, tools=[tool_schema(tool("python", "code"))]) == EndTurn(text=code)


PIECES = [
    "[",
    "]",
    "(",
    ")",
    "cd(",
    "folder=",
    "'x'",
    '"',
    "\\",
    "{",
    "}",
    ":",
    ",",
    "1",
    "-",
    "true",
    "\n",
    "```",
    "a.b",
]


@given(
    st.text(max_size=40)
    | st.lists(st.sampled_from(PIECES), max_size=20).map("".join)
    | st.lists(st.sampled_from(PIECES), max_size=20).map(lambda pieces: "[cd(" + "".join(pieces))
    | st.text(max_size=30).map(lambda text: f"[cd(folder={text})]")
)
def test_every_text_gives_actions_that_a_record_holds(text: str) -> None:
    found = read(text)
    if isinstance(found, EndTurn):
        return
    assert found
    for action in found:
        if isinstance(action, ToolCall):
            assert ToolCall.model_validate_json(action.model_dump_json()) == action


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**29), 10**29)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["folder", "a", "x1"]), JSON_VALUES))
def test_arguments_in_json_and_in_python_are_read_back(arguments: dict) -> None:
    for write in (repr, lambda value: json.dumps(value, ensure_ascii=False)):
        listed = ", ".join(f"{name}={write(value)}" for name, value in arguments.items())
        assert read(f"[cd({listed})]") == (call("cd", **arguments),)
