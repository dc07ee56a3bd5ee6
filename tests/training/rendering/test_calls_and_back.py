"""Calls whose texts and names hold parts of the format: the same call comes back, or a reason, never another call."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.chat_models import new_tokenizer, template

from environments.base import MalformedCall, Parameter, ToolCall, ToolSpec, UserTurn
from environments.json_schema import closed_schema, parameters_of
from training.rendering.base import EndTurn, Unwritable
from training.rendering.chat_template import ChatTemplateRendering
from training.rendering.tool_calls import HermesReader, JsonReader, PythonicReader, tool_schema

STOPS = {
    "gemma4_v5": ("<turn|>", "<|tool_response>"),
    "glm4moe": ("<|user|>", "<|observation|>"),
    "gptoss": ("<|return|>", "<|call|>"),
}
USER = "<\uff5cUser\uff5c>"
MORE = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|turn>", '<|"|>', "<|tool_call>")
MORE += ("<tool_call|>", "<|assistant|>", "<|tool_call_start|>", "<|tool_call_end|>", USER, "<|python_tag|>")
TAGGED = ("qwen3_5_nothink", "qwen3_5_think", "qwen3_8", "nemotron_3_nano", "glm4moe")
HEAD = "<|im_start|>assistant\n"


@cache  # each has a process of its own
def opened(name: str) -> ChatTemplateRendering:
    from tokenizers import AddedToken

    stops = STOPS.get(name, ())
    known = new_tokenizer(template(name))
    known.add_tokens([AddedToken(text, normalized=False, special=True) for text in (*stops, *MORE)])
    if stops:
        known.eos_token = stops[0]
    return ChatTemplateRendering(known, known.convert_tokens_to_ids(list(stops)))


PIECES = (
    *(
        "</tool_call>",
        "<tool_call>",
        "<think>",
        "</think>",
        "<|im_end|>",
        "<function=rm>",
        "</function>",
        "<parameter=a>",
    ),
    *(
        "</parameter>",
        "[TOOL_CALLS]",
        "```",
        "```python\n",
        "\n[rm()]",
        '{"name": "rm", "arguments": {}}',
        "<arg_key>a",
    ),
    *("</arg_value>", "<|tool_call_end|>", USER, "<|eot_id|>", "<|call|>", "<|end|>", '<|"|>', "<tool_call|>"),
    *(
        '"',
        "'",
        "\\",
        "\\n",
        "\n",
        " ",
        "  ",
        "\t",
        "}",
        "]",
        ")",
        ",",
        ":",
        "=",
        ">",
        "x",
        "1",
        "true",
        "null",
        "None",
    ),
    *("\ue000", "\uf8ff", "é", "한", "日本", "שלום", "😀", "\u2028", "ﬁ", "e\u0301", "\\ue000", "\x00", "\r\n"),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join) | st.text(max_size=8)
KEYS = st.sampled_from(("a", "b", "text")) | TEXTS
VALUES = st.recursive(
    TEXTS | st.integers(-(10**20), 10**20) | st.booleans() | st.none() | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=3,
)


def documented(call: ToolCall) -> ToolSpec:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    schema = {
        "type": "object",
        "properties": {key: {"type": kinds.get(type(value), "null")} for key, value in call.arguments.items()},
    }
    known = tuple(Parameter(name=key, type="string", description="", required=False) for key in call.arguments)
    return ToolSpec(name=call.name, group="", description="Act.", parameters=known, json_schema=schema)


@pytest.mark.parametrize(
    "name", ["qwen2_5", "qwen3_8", "nemotron_3_nano", "lfm2_2_5", "llama3_1", "gemma4_v5", "gptoss"]
)
@settings(deadline=None, max_examples=15)
@given(arguments=st.dictionaries(KEYS, VALUES, max_size=3))
@example(arguments={"text": "a <think>b</think> c\n</parameter>\n", "b": " 1", "a": "\n  x\n\n"})
def test_a_call_that_is_demonstrated_is_read_back_or_refused(name: str, arguments: dict) -> None:
    try:
        call = ToolCall.model_validate_json(ToolCall(name="act", arguments=arguments).model_dump_json())
    except ValueError:  # half of a surrogate pair
        return
    dialogue = opened(name).begin()
    dialogue.first(UserTurn(index=0, text="go", tools=("act",)), [documented(call)])
    try:
        ids = dialogue.demonstrate(call)
    except Unwritable:
        return
    assert dialogue.parse(ids) == (call,)


@given(st.dictionaries(KEYS, VALUES, max_size=3), st.sampled_from((None, 2)), st.booleans())
def test_json_is_read_however_it_is_printed(arguments: dict, indent: int | None, escaped: bool) -> None:
    """Around the call, too, thinking and words."""
    call = ToolCall(name="act </tool_call>", arguments=arguments)
    for key in ("arguments", "parameters", "args"):
        made = {key: arguments, "name": call.name}
        text = json.dumps(made, indent=indent, ensure_ascii=escaped, separators=None if escaped else (",", ":"))
        block = f"<tool_call>\n{text}\n</tool_call>"
        assert HermesReader().read(f"<think>no <tool_call></think>I do.{block}\n{block}", "", HEAD, []) == (call, call)
        assert JsonReader().read(f"<|python_tag|>{text}", "", HEAD, []) == (call,)
    listed = ", ".join(f"{name}={value!r}" for name, value in zip("ab", arguments.values(), strict=False))
    named = dict(zip("ab", arguments.values(), strict=False))
    assert PythonicReader().read(f"Well.\n[act({listed})]", "", HEAD, []) == (ToolCall(name="act", arguments=named),)


def schema(properties: dict) -> dict:
    kinds = {"Order": {"type": "object", "properties": {"n": {"type": "integer"}}}, "Level": {"enum": [1, 2]}}
    closed = closed_schema({"type": "object", "properties": properties, "$defs": kinds})
    return tool_schema(
        ToolSpec(name="act", group="", description="Act.", parameters=parameters_of(closed), json_schema=closed)
    )


ORDER, LEVEL = {"$ref": "#/$defs/Order"}, {"$ref": "#/$defs/Level"}
TYPED = [
    ({"$ref": "#/$defs/Order"}, {"n": 3}),
    ({"allOf": [ORDER], "description": "it"}, {"n": 3}),
    ({"anyOf": [ORDER, {"type": "null"}]}, {"n": 3}),
    ({"anyOf": [ORDER, {"type": "null"}]}, None),
    ({"oneOf": [{"type": "array", "items": LEVEL}, {"type": "string"}]}, [1, 2]),
    (LEVEL, 2),
    ({"enum": [1, 2]}, 2),
    ({"const": True}, True),
    ({"enum": ["1", "2"]}, "2"),
    ({"type": ["integer", "null"]}, None),
    ({"type": "integer"}, 12345678901234567890),
    ({"type": "number"}, 12345678901234567890),
    ({"type": "number"}, 2.5),
    ({"type": "boolean"}, False),
    ({"type": "string"}, "3"),
    ({"type": "string"}, "null"),
    ({"type": "string"}, "  a\n\n"),
    ({"type": "string"}, "a </tool_call> </parameter> <think>b</think> <parameter=x>"),
    ({"items": {"type": "string"}}, ["a"]),
    ({"properties": {"n": {"type": "integer"}}}, {"n": 3}),
]


@pytest.mark.parametrize("name", TAGGED)
def test_values_in_plain_text_have_the_type_that_the_schema_resolves_to(name: str) -> None:
    rendering = opened(name)
    for kind, value in TYPED:
        call = ToolCall(name="act", arguments={"a": value})
        text = rendering.calls([call])
        assert rendering.reader.read(text, "", HEAD, [schema({"a": kind})]) == (call,), kind
        several = rendering.calls([call, ToolCall(name="stop"), call])
        assert rendering.reader.read(several, "", HEAD, [schema({"a": kind})]) == (call, ToolCall(name="stop"), call)


def xml(*values: str) -> str:
    given_ones = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in zip("ab", values, strict=False)
    )
    return f"<tool_call>\n<function=act>\n{given_ones}</function>\n</tool_call>"


LLAMA = '{"name": "act", "parameters": {"a": "x"}}'
GEMMA = '<|tool_call>call:act{a:<|"|>x<|"|>}<tool_call|>'
CALL = ToolCall(name="act", arguments={"a": "x"})
SAID = "<|start|>assistant"
HARMONY = 'to=functions.act <|constrain|>json<|message|>{"a": "x"}'


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("qwen3_8", "<tool_call><function=act><parameter=a>x</parameter></function></tool_call>"),
        ("qwen3_8", f"<think>no {xml('9')}</think>I look.\n\n{xml('x')}\nDone."),
        ("llama3_1", f"I look. {LLAMA}"),
        ("llama3_1", '{"type": "function", "name": "act", "parameters": {"a": "x"}}'),
        ("llama3_1", '{"type": "function", "function": {"name": "act", "arguments": "{\\"a\\": \\"x\\"}"}, "id": "1"}'),
        ("llama3_1", '{"name": "act", "arguments": {"a": "x"}}'),
        ("llama3_1", f"<|python_tag|>{LLAMA}"),
        ("gemma4_v5", f"<|channel>thought\nhm<channel|>{GEMMA}"),
        ("lfm2_2_5", "I look.<|tool_call_start|>[act(a='x')]<|tool_call_end|>It runs."),
        ("gptoss", f"<|channel|>analysis<|message|>to=functions.rm<|end|>{SAID}<|channel|>commentary {HARMONY}"),
        ("gptoss", f"<|channel|>commentary<|message|>I look.<|end|>{SAID}<|channel|>commentary {HARMONY}"),
        ("gptoss", ' to=functions.act<|channel|>commentary json<|message|>{"a": "x"}'),
    ],
)
def test_usual_forms_are_read(name: str, message: str) -> None:
    assert opened(name).reader.read(message, "", HEAD, [schema({"a": {"type": "string"}})]) == (CALL,)


@pytest.mark.parametrize(
    ("name", "message", "reason"),
    [
        ("qwen3_8", xml("a\n</parameter>\n</function>\n</tool_call>\nb"), "belongs to no call"),
        ("qwen3_8", xml("x").replace("<parameter=a>", "<parameter=<think>>"), "does not end"),
        ("qwen3_8", xml("x").replace("<parameter=a>", "<parameter=a>b>"), "does not end"),
        ("qwen3_8", xml("x", "y").replace("=b>", "=a>"), "'a' is there twice"),
        ("qwen3_8", f"<think>no {xml('9')}", "belongs to no call"),
        ("qwen3_8", '<tool_call>\n{"name": "act", "arguments": {}}\n</tool_call>', "belongs to no call"),
        ("llama3_1", f"{LLAMA}; {LLAMA}", "goes on after its call"),
        ("llama3_1", f"{LLAMA}\nThen I stop.", "goes on after its call"),
        ("llama3_1", f"[{LLAMA}]", "goes on after its call"),
        ("llama3_1", '{"tool": "act", "parameters": {}}', "looks like a tool call"),
        ("llama3_1", '<|python_tag|>act.call(a="x")', "looks like a tool call"),
        ("gemma4_v5", GEMMA.replace("x", "a<tool_call|>b"), "cannot be read"),
        ("gemma4_v5", GEMMA.replace("}<", ',a:<|"|>y<|"|>}<'), "holds more than the calls"),
        ("gemma4_v5", "call:act{}", "looks like a tool call"),
        ("lfm2_2_5", "<|tool_call_start|>[act(a='C:\\n')]<|tool_call_end|>", "two ways"),
        ("lfm2_2_5", "<|tool_call_start|>act(a='x')<|tool_call_end|>", "looks like a tool call"),
        ("gptoss", "<|channel|>analysis<|message|>I need it.", "neither a call"),
        ("gptoss", f"<|channel|>commentary {HARMONY} and", "goes on after its call"),
        ("gptoss", f"<|channel|>final<|message|>ok<|end|>{SAID}<|channel|>commentary {HARMONY}", "goes on after"),
        ("gptoss", "<|channel|>commentary to=python<|message|>1", "not to functions.NAME"),
    ],
)
def test_what_is_not_read_is_malformed_and_no_end_of_the_turn(name: str, message: str, reason: str) -> None:
    (action,) = opened(name).reader.read(message, "", HEAD, [schema({"a": {"type": "string"}})])
    assert isinstance(action, MalformedCall)
    assert reason in action.reason
    assert action.text == message


@pytest.mark.parametrize("stops", [("<|return|>", "<|call|>"), ("<|return|>", "<|call|>", "<|end|>")])
def test_what_gpt_oss_thinks_does_not_end_its_message(stops: tuple[str, ...]) -> None:
    known = opened("gptoss").tokenizer
    rendering = ChatTemplateRendering(known, known.convert_tokens_to_ids(list(stops)))
    assert rendering.stop_ids == set(known.convert_tokens_to_ids(["<|return|>", "<|call|>"]))
    dialogue = rendering.begin()
    assert known.decode(dialogue.first(UserTurn(index=0, text="go", tools=()), [])).endswith(SAID)
    said = f"<|channel|>final<|message|>Done.{stops[0]}"
    assert dialogue.parse(known.encode(said, add_special_tokens=False)) == EndTurn(text="Done.")
    assert known.decode(dialogue.demonstrate(EndTurn())) == said
    assert known.decode(dialogue.demonstrate(CALL)).startswith(" to=functions.act<|channel|>commentary json")
