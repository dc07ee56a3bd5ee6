"""Chat completions in the forms that endpoints write, and the one form that they are read into."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agents.chat.completions import NoCompletion, read_completion


def answered(message: Any, finish: Any = "stop", **more: Any) -> bytes:
    return json.dumps({"choices": [{"finish_reason": finish, "message": message}], **more}).encode()


def read(data: bytes) -> tuple[dict[str, Any], Any]:
    whole = json.loads(read_completion(data).body)
    (choice,) = whole["choices"]
    return choice["message"], choice["finish_reason"]


@pytest.mark.parametrize(
    ("call", "name", "arguments"),
    [
        ({"function": {"name": "ls", "arguments": '{"a": 1}'}}, "ls", '{"a": 1}'),
        ({"function": {"name": "ls", "arguments": {"a": "é"}}}, "ls", '{"a": "é"}'),
        ({"function": {"name": "ls", "arguments": {}}}, "ls", "{}"),
        ({"function": {"name": "ls", "arguments": None}}, "ls", ""),
        ({"function": {"name": "ls", "arguments": "null"}}, "ls", ""),
        ({"function": {"name": "ls"}}, "ls", ""),
        ({"function": {"name": "ls", "arguments": ""}}, "ls", ""),
        ({"function": {"name": "ls", "arguments": ["a"]}}, "ls", '["a"]'),
        ({"function": {"name": "ls", "arguments": 7}}, "ls", "7"),
        ({"function": {"name": "ls", "arguments": False}}, "ls", "false"),
        ({"function": {"name": "ls", "arguments": {"a": float("nan")}}}, "ls", '{"a": NaN}'),
        ({"function": {"name": "ls", "arguments": {"a": "\ud800"}}}, "ls", '{"a": "\\ud800"}'),
        ({"function": {"name": "ls", "parameters": {"a": 1}}}, "ls", '{"a": 1}'),
        ({"function": {"name": "ls", "args": {"a": 1}}}, "ls", '{"a": 1}'),
        ({"function": "ls", "arguments": {"a": 1}}, "ls", '{"a": 1}'),
        ({"name": "ls", "arguments": {"a": 1}}, "ls", '{"a": 1}'),
        ({"id": None, "index": None, "type": None, "function": {"name": "ls", "arguments": "{}", "x": 1}}, "ls", "{}"),
        ({"type": "custom", "custom": {"name": "ls", "input": "-l"}}, "ls", "-l"),
        ({"function": {"arguments": "{}"}}, "", '{"function": {"arguments": "{}"}}'),
        ({"function": {"name": None, "arguments": "{}"}}, "", '{"function": {"name": null, "arguments": "{}"}}'),
        ({"function": None}, "", '{"function": null}'),
        ({}, "", "{}"),
        (None, "", ""),
        ("ls()", "", "ls()"),
        (7, "", "7"),
    ],
)
def test_a_call_is_read_or_kept_as_text(call: Any, name: str, arguments: str) -> None:
    message, _ = read(answered({"role": "assistant", "content": None, "tool_calls": [call, call]}))
    assert [one["function"] for one in message["tool_calls"]] == [{"name": name, "arguments": arguments}] * 2
    assert len({one["id"] for one in message["tool_calls"]}) == 2


@pytest.mark.parametrize(
    ("message", "content", "calls"),
    [
        ({"content": "hi"}, "hi", 0),
        ({"role": None, "content": "hi", "tool_calls": None, "reasoning_content": "hm", "audio": {}}, "hi", 0),
        ({"role": "", "content": None, "tool_calls": []}, None, 0),
        ({}, None, 0),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, "c"]}, "abc", 0),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"text": "a"}]}, "a", 0),
        ({"content": [{"type": "image_url", "image_url": {}}, {"text": None}, None]}, "", 0),
        ({"content": {"type": "text", "text": "a"}}, "a", 0),
        ({"content": "half of \ud83d"}, "half of \\ud83d", 0),
        ({"content": "", "tool_calls": {"function": {"name": "ls"}}}, "", 1),
        ({"content": "", "tool_calls": "ls()"}, "", 1),
        ({"content": "", "function_call": {"name": "ls", "arguments": {}}}, "", 1),
    ],
)
def test_a_message_is_read(message: dict[str, Any], content: str | None, calls: int) -> None:
    found, _ = read(answered(message))
    assert (found["role"], found["content"], len(found.get("tool_calls", ()))) == ("assistant", content, calls)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}, (9, 3)),
        ({"prompt_tokens": 9.0, "completion_tokens": 2.5}, (9, 3)),
        ({"prompt_tokens": "9", "completion_tokens": 3}, (9, 3)),
        ({"prompt_tokens": 9, "completion_tokens": None, "total_tokens": 12}, (9, 3)),
        ({"prompt_tokens": None, "completion_tokens": 3, "total_tokens": 12}, (9, 3)),
        ({"prompt_tokens": 9}, (9, 0)),
        ({"total_tokens": 12}, (12, 0)),
        ({"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached": None}}, (9, 3)),
        ({"prompt_tokens": None, "completion_tokens": None}, None),
        ({}, None),
        (None, None),
        ("unknown", None),
        ([], None),
    ],
)
def test_a_usage_is_read(usage: Any, tokens: tuple[int, int] | None) -> None:
    assert read_completion(answered({"content": "hi"}, usage=usage)).tokens == tokens


@pytest.mark.parametrize(
    ("finish", "read_as", "ended"),
    [
        ("stop", "stop", None),
        ("tool_calls", "tool_calls", None),
        (None, None, None),
        ("", None, None),
        (7, "7", None),
        ("eos_token", "eos_token", None),
        ("length", "length", None),
        ("MAX_TOKENS", "length", None),
        ("content_filter", "content_filter", None),
        ("content_filter: PROHIBITED_CONTENT", "content_filter", None),
        ("SAFETY", "content_filter", None),
        ("sensitive", "content_filter", None),
        ("guardrail_intervened", "content_filter", None),
        ("model_context_window_exceeded", "full", "full"),
        ("model_length", "full", "full"),
        ("error", "failed", "failed"),
        ("network_error", "failed", "failed"),
    ],
)
def test_why_a_reply_ended_is_read(finish: Any, read_as: str | None, ended: str | None) -> None:
    assert read(answered({"content": "hi"}, finish))[1] == read_as
    assert read_completion(answered({"content": "hi"}, finish)).ended == ended


def test_what_a_filter_or_gemini_leaves_out() -> None:
    assert read(answered(None, "content_filter")) == ({"role": "assistant", "content": None}, "content_filter")
    message, _ = read(answered({"content": ""}, "function_call_filter: MALFORMED_FUNCTION_CALL"))
    assert message["tool_calls"][0]["function"]["name"] == "", "a call that counts as malformed"
    assert read_completion(answered({"content": "half"}, "stop", error={"code": 502})).ended == "failed"
    refused, _ = read(answered({"content": None, "refusal": "I will not."}))
    assert refused["refusal"] == "I will not."
    assert "refusal" not in read(answered({"content": "a", "refusal": ""}))[0]


@pytest.mark.parametrize(
    "data",
    [b"", b"<html>", b"[" * 100_000, b"7", b"null", b"[]", b"{}", b'{"choices": null}', b'{"choices": [7]}',
     answered(None), answered("hi"), answered({"content": 7}), answered({"role": "system", "content": "x"}),
     answered({"content": "x"}, usage={"prompt_tokens": -1}), answered({"content": "x"}, usage={"prompt_tokens": "x"})],
)  # fmt: skip
def test_what_holds_no_reply_is_told(data: bytes) -> None:
    with pytest.raises(NoCompletion):
        read_completion(data)
