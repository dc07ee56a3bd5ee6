"""Blocks of Python in a message as actions: which count, and where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chat_models import template, tokenizer

from environments.base import MalformedCall, Observation, ObservationStatus, Parameter, ToolCall, ToolSpec, UserTurn
from training.rendering.base import EndTurn
from training.rendering.chat_template import ChatTemplateRendering
from training.rendering.tool_calls import block_action, takes_blocks, tool_schema


def parameter(name: str, kind: str = "code", required: bool = True) -> Parameter:
    return Parameter(name=name, type=kind, description="", required=required)


def tool(name: str, *parameters: Parameter) -> ToolSpec:
    return ToolSpec(name=name, group="G", description="", parameters=parameters)


PYTHON = tool("python", parameter("code"))
F = "```"


def run(code: str) -> ToolCall:
    return ToolCall(name="python", arguments={"code": code})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"{F}python\nx = 1\n{F}", "x = 1"),
        (f"I look it up.\n\n{F}python\nx = 1\n\nprint(x)\n{F}\nThen I go on.", "x = 1\n\nprint(x)"),
        (f"{F}Py  \nx = 1\n{F} ", "x = 1"),
        (f"{F}{F}python\ns = '''\n{F}\n'''\n{F}{F}", f"s = '''\n{F}\n'''"),
        (f"{F}python\nx = 1\n\nprint(x)", "x = 1\n\nprint(x)"),
        (f"1. First\n   {F}python\n   if x:\n       y()\n   {F}", "if x:\n    y()"),
        (f"{F}python\r\nx = 1\r\n{F}\r\n", "x = 1"),
        (f"{F}json\n{{}}\n{F}\n{F}python\nx = 1\n{F}\n{F}\nx\n{F}", "x = 1"),
        (f"{F}text\n{F}{F}python\n{F}\n{F}python\nx = 1\n{F}", "x = 1"),
        (f"{F}python\n{F}", ""),
        (f"{F}python\nprint('{F}')\n{F}", f"print('{F}')"),
    ],
)
def test_a_block_is_an_action(text: str, code: str) -> None:
    assert block_action(text) == run(code)


@pytest.mark.parametrize(
    "text",
    [
        "All done.",
        "",
        f"{F}\nx = 1\n{F}",
        f"{F}bash\nls\n{F}",
        f"{F}pythonic\nx\n{F}",
        f"Write {F}python x = 1{F} for it.",
        "``python\nx = 1\n``",
        f"> {F}python\n> x = 1\n> {F}",
        f"{F}text\n{F}python\nx = 1\n{F}",
    ],
)
def test_other_text_is_none(text: str) -> None:
    assert block_action(text) is None


def test_two_blocks_are_malformed_and_told_so() -> None:
    text = f"{F}python\nx = 1\n{F}\nIt worked.\n{F}python\ny = 2"
    action = block_action(text)
    assert isinstance(action, MalformedCall)
    assert action.text == text
    assert action.reason.startswith("2 blocks of Python in one message, nothing was run")


@given(st.lists(st.sampled_from(["```", "````", "python", "\n", " ", "x = 1", "\r", "text"]), max_size=20).map("".join))
def test_whatever_is_written_is_read(text: str) -> None:
    action = block_action(text)
    assert action is None or type(action).model_validate_json(action.model_dump_json()) == action


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ((PYTHON,), True),
        ((tool("a.b", parameter("x", "string")), PYTHON), True),
        ((tool("python", parameter("code", "string"), parameter("seconds", "integer", required=False)),), True),
        ((tool("run", parameter("code")),), False),
        ((tool("python", parameter("text")),), False),
        ((tool("python", parameter("code", "integer")),), False),
        ((tool("python", parameter("code"), parameter("seconds", "integer")),), False),
        ((tool("python", parameter("code", required=False)),), False),
        ((tool("python"),), False),
        ((), False),
    ],
)
def test_blocks_count_with_the_tool_python_alone(tools: tuple[ToolSpec, ...], expected: bool) -> None:
    assert takes_blocks([tool_schema(one) for one in tools]) is expected


@pytest.mark.parametrize(("name", "stop"), [("qwen2_5", "<|im_end|>"), ("llama3_1", "<|eot_id|>")])
def test_a_policy_acts_by_blocks_in_any_template(name: str, stop: str) -> None:
    """Beside the template's own calls, which come first; the answer stands where a tool's does."""
    known = tokenizer(template(name))
    rendering = ChatTemplateRendering(known)
    block = f"I look.\n{F}python\nprint(1)\n{F}"
    dialogue = rendering.begin()
    dialogue.first(UserTurn(index=0, text="do", tools=("python",)), (PYTHON,))
    said = known.encode(block + stop, add_special_tokens=False)
    assert dialogue.parse(said) == (run("print(1)"),)
    suffix = known.decode(dialogue.observe([Observation(text="it is 1", status=ObservationStatus.OK)]))
    assert suffix.rstrip("\n") == rendering.answers(["python"], ["it is 1"])[1].removeprefix(stop).rstrip("\n")
    assert dialogue.parse(known.encode(f"It is 1.{stop}", add_special_tokens=False)) == EndTurn(text="It is 1.")
    assert isinstance(dialogue.parse(known.encode(block, add_special_tokens=False))[0], MalformedCall)  # cut off

    other = rendering.begin()
    other.first(UserTurn(index=0, text="do", tools=("run",)), (tool("run", parameter("code")),))
    assert other.parse(said) == EndTurn(text=block)


def test_a_call_beside_a_block_is_the_action() -> None:
    known = tokenizer(template("qwen2_5"))
    dialogue = ChatTemplateRendering(known).begin()
    dialogue.first(UserTurn(index=0, text="do", tools=("python",)), (PYTHON,))
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "a()"}}\n</tool_call>'
    text = f"<think>{F}python\nno()\n{F}</think>{F}python\nb()\n{F}\n{call}<|im_end|>"
    assert dialogue.parse(known.encode(text, add_special_tokens=False)) == (run("a()"),)
    text = f"<think>{F}python\nno()\n{F}</think>Done.<|im_end|>"
    assert dialogue.parse(known.encode(text, add_special_tokens=False)) == EndTurn(text="Done.")


def test_what_the_strings_of_a_block_spell_is_text() -> None:
    code = 'print("a <think>b</think> <tool_call>", {"name": "python", "arguments": {}})'
    for name, stop in (("qwen2_5", "<|im_end|>"), ("llama3_1", "<|eot_id|>")):
        known = tokenizer(template(name))
        dialogue = ChatTemplateRendering(known).begin()
        dialogue.first(UserTurn(index=0, text="do", tools=("python",)), (PYTHON,))
        text = f"<think>hm</think>I look.\n{F}python\n{code}\n{F}{stop}"
        assert dialogue.parse(known.encode(text, add_special_tokens=False)) == (run(code),)
