"""What a sampled message says: calls in the order they were written, and why a broken one is none."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_models import CALL_FORMATS, template, tokenizer

from environments.base import Action, MalformedCall, ToolCall
from training.rendering.base import EndTurn
from training.rendering.chat_template import ChatTemplateRendering
from training.rendering.template_readers import ResponseTemplateReader
from training.rendering.tool_calls import HermesReader, call_message

HEAD = "<|im_start|>assistant\n"
CALL = '<tool_call>\n{"name": "pwd", "arguments": {}}\n</tool_call>'
PWD = ToolCall(name="pwd")
CD = ToolCall(name="cd", arguments={"folder": "ü"})
MARKED = ToolCall(name="cd", arguments={"folder": "<think>a</think> </tool_call>"})


@cache  # each has a process of its own
def opened(name: str) -> ChatTemplateRendering:
    return ChatTemplateRendering(tokenizer(template(name)))


def read(text: str, head: str = HEAD) -> tuple[Action, ...] | EndTurn:
    return HermesReader().read(text, "<|im_end|>", head, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("All done.", EndTurn(text="All done.")),
        ("", EndTurn()),
        ("<think>call pwd? <tool_call>no</tool_call></think>Done", EndTurn(text="Done")),
        ("<think>without end", EndTurn()),
        (f"<think>no {CALL}</think>I {CALL} <think>{CALL}</think>", (PWD,)),
        ('<tool_call>{"name": "cd", "arguments": {"folder": "<think>a</think> </tool_call>"}}</tool_call>', (MARKED,)),
        ('<tool_call>{"name": "cd", "parameters": {"folder": "ü"}}</tool_call>', (CD,)),
        ('<tool_call>{"name": "cd", "args": {"folder": "ü"}, "arguments": {"folder": "ü"}}</tool_call>', (CD,)),
        ('<tool_call>{"name": "cd", "arguments": "{\\"folder\\": \\"ü\\"}"}</tool_call>', (CD,)),
        ('<tool_call>{"type": "function", "function": {"name": "pwd"}, "id": "call_1"}</tool_call>', (PWD,)),
        ('<tool_call>{"name": "pwd", "arguments": null}</tool_call></tool_call>', (PWD,)),
        ('{"city": "Oslo"}', EndTurn(text='{"city": "Oslo"}')),
        (f"I look. {CALL}", (PWD,)),
        (f"<think>hm</think>\n{CALL}", (PWD,)),
        ('<tool_call>{"name": "cd", "arguments": {"folder": "ü"}}</tool_call>', (CD,)),
        ('<tool_call>\n{"arguments": {"folder": "ü"}, "name": "cd"}', (CD,)),
        ('<tool_call>{"name": "pwd"}</tool_call>', (PWD,)),
        (CALL + CALL, (PWD, PWD)),
        (f'{CALL}\nand\n<tool_call>{{"name": "cd", "arguments": {{"folder": "ü"}}}}</tool_call>', (PWD, CD)),
    ],
)
def test_messages_are_read(text: str, expected: tuple[Action, ...] | EndTurn) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<tool_call>pwd()</tool_call>", "Expecting value"),
        ('<tool_call>{"name": "pwd"} and more</tool_call>', "goes on after its JSON"),
        ("<tool_call>[]</tool_call>", "no JSON object"),
        ('<tool_call>{"arguments": {}}</tool_call>', "has no name"),
        ('<tool_call>{"name": 3}</tool_call>', "has no name"),
        ('<tool_call>{"function": "pwd", "arguments": {}}</tool_call>', "has no name"),
        ('<tool_call>{"name": "cd", "folder": "ü"}</tool_call>', "has the key 'folder'"),
        ('<tool_call>{"name": "cd", "input": {"folder": "ü"}}</tool_call>', "has the key 'input'"),
        ('<tool_call>{"function": {"name": "cd"}, "arguments": {"a": 1}}</tool_call>', "has the key 'arguments'"),
        ('<tool_call>{"type": "text", "name": "cd"}</tool_call>', "of the type 'text'"),
        ('<tool_call>{"name": "f", "arguments": {}, "parameters": {"a": 1}}</tool_call>', "two different objects"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}, "args": {"a": true}}</tool_call>', "two different objects"),
        ('<tool_call>{"name": "f", "arguments": "a"}</tool_call>', "a text that is no JSON object"),
        ('<tool_call>{"name": "f", "name": "g"}</tool_call>', "a key is there twice"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>', "a key is there twice"),
        (f"<think>without end {CALL}", "in thinking that does not end"),
        (f"{CALL} <think>without end {CALL}", "in thinking that does not end"),
        (f"The tag <think> begins it. {CALL}", "in thinking that does not end"),
        (f'<tool_call>{{"name": "w", "arguments": {{"t": "{CALL} and {CALL}"}}}}</tool_call>', "Invalid control"),
        (f"<tool_call>ls(</tool_call> and {CALL}", "Expecting value"),
        ('{"name": "pwd", "arguments": {}}', "looks like a tool call"),
        ('Sure:\n{"name": "pwd", "arguments": {}}', "looks like a tool call"),
        ('```json\n[{"tool": "pwd", "parameters": {}}]\n```', "looks like a tool call"),
        ('{"name": "pwd", "arguments": {}}\n</tool_call>', "looks like a tool call"),
        ("<function=pwd>\n</function>", "looks like a tool call"),
        ('[TOOL_CALLS] [{"name": "pwd"}]', "looks like a tool call"),
        ('[cd(folder="x")]', "looks like a tool call"),
        ('<tool_call>{"name": "pwd", "arguments": []}</tool_call>', "arguments of the tool call are no JSON object"),
        ('<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "not a JSON value"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>', "too large"),
        ('<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>', "surrogate"),
        ('<tool_call>{"name": "f", "arguments": ' + '{"a":' * 400 + "1" + "}" * 401 + "</tool_call>", "too deeply"),
        ('<tool_call>{"name": "f", "arguments": ' + '{"a":' * 9000 + "</tool_call>", "too deeply"),
    ],
)
def test_malformed_messages_say_why(text: str, reason: str) -> None:
    (action,) = read(text)
    assert isinstance(action, MalformedCall)
    assert reason in action.reason
    assert action.text == text


def test_a_broken_call_does_not_hide_its_neighbours() -> None:
    first, second, third = read(f"<think>x</think>{CALL}\n<tool_call>\nls(\n</tool_call>\n{CALL}")
    assert (first, third) == (PWD, PWD)
    assert isinstance(second, MalformedCall)
    assert second.text == "\nls(\n"


def test_a_thinking_block_that_the_prompt_opened_is_left_out() -> None:
    assert read(f"I could {CALL}</think>No.", HEAD + "<think>\n") == EndTurn(text="No.")
    assert read(f"I could {CALL}</think>No.", HEAD + "<think>\n\n</think>\n\n") == (PWD,)


NAMES = st.text("abcdefgh_", min_size=1, max_size=12)
# Without tags and without edge spaces: formats that write values as plain text cannot tell those.
TEXTS = st.text(st.sampled_from("abcÜ0123 .,:/@"), min_size=1, max_size=20).map(str.strip).filter(bool)
VALUES = st.one_of(TEXTS.map(lambda text: "t" + text), st.integers(-(10**6), 10**6), st.booleans())
CALLS = st.lists(
    st.builds(ToolCall, name=NAMES, arguments=st.dictionaries(NAMES, VALUES, max_size=3)), min_size=1, max_size=3
)


def schemas(calls: list[ToolCall]) -> list[dict[str, object]]:
    kinds = {bool: "boolean", int: "integer", str: "string"}
    return [
        {
            "type": "function",
            "function": {
                "name": call.name,
                "parameters": {
                    "type": "object",
                    "properties": {key: {"type": kinds[type(value)]} for key, value in call.arguments.items()},
                },
            },
        }
        for call in calls
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", CALL_FORMATS)
@settings(deadline=None, max_examples=40)
@given(calls=CALLS, said=st.sampled_from(["", "I look."]))
def test_what_a_template_writes_is_read_back(name: str, calls: list[ToolCall], said: str) -> None:
    """Over formats: JSON in tags, bare JSON, XML with raw values."""
    calls = list({call.name: call for call in calls}.values())
    rendering = opened(name)
    if not rendering.several:
        calls = calls[:1]
        said = ""  # Llama 3's template drops it
    entries = [call_message(i, call.name, dict(call.arguments)) for i, call in enumerate(calls)]
    asked = [{"role": "user", "content": "x"}]
    before = rendering.render(asked, ask=False)
    head = rendering.render(asked)[len(before) :]
    written = rendering.render([*asked, {"role": "assistant", "content": said, "tool_calls": entries}], ask=False)
    stop = rendering.tokenizer.eos_token
    message, _, _ = written[len(before) :].removeprefix(head).partition(stop)
    assert rendering.reader.read(message, stop, before + head, schemas(calls)) == tuple(calls)


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=12),
            st.sampled_from(["<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "f"', "<function=f>"]),
            st.sampled_from(["<parameter=a>\n", "\n</parameter>", "</function>", '"arguments": {"a": NaN}}', "<|im_"]),
        ),
        max_size=8,
    ).map("".join)
)
@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "llama3_1"])
def test_whatever_is_sampled_is_read_and_can_be_recorded(name: str, text: str) -> None:
    rendering = opened(name)
    said = rendering.reader.read(text, rendering.tokenizer.eos_token, rendering.prompt("x", [])[1], [])
    actions = (said,) if isinstance(said, EndTurn) else said
    assert actions
    for action in actions:
        assert type(action).model_validate_json(action.model_dump_json()) == action


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3"])
@settings(deadline=None, max_examples=60)
@given(calls=CALLS, said=st.sampled_from(["", "I look.\n", "<think>\nhm\n</think>\n\n"]))
def test_our_reader_agrees_with_the_parser_of_transformers(name: str, calls: list[ToolCall], said: str) -> None:
    from trl.chat_template_utils import add_response_schema

    known = tokenizer(template(name))
    add_response_schema(known)
    blocks = [f"<tool_call>\n{json.dumps({'name': c.name, 'arguments': c.arguments})}\n</tool_call>" for c in calls]
    text = said + "\n".join(blocks)
    theirs = ResponseTemplateReader(known).read(text, "<|im_end|>", HEAD, [])
    assert theirs == HermesReader().read(text, "<|im_end|>", HEAD, []) == tuple(calls)


def test_a_call_that_the_parser_cannot_read_is_malformed() -> None:
    reader = ChatTemplateRendering(tokenizer(template("llama3_1"))).reader
    text = '{"name": "pwd", "parameters": {"a": }}'
    (action,) = reader.read(text, "<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n", [])
    assert isinstance(action, MalformedCall)
    assert action.text == text
    assert "cannot be read" in action.reason
