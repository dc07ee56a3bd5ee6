"""Chat completions as endpoints write them, read into one form before a client library sees them.

Servers differ in what stands where: arguments of a call as a text, an object or null, a call without ``function``, a
content in parts, a usage in part or as floats. Whatever a model wrote is passed on: arguments that are no text become
their JSON, and a call that cannot be read keeps its text, so that it counts as malformed. Only a response that is no
completion, or whose generation failed, is the endpoint's fault.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from agents.spending import encodable
from memory.jsonl import complaint

MOST_TOKENS = 10**9
"""Largest plausible token count of one request (ours): a number beyond any model's context is not a count."""
FILTERED, CUT = "content_filter", "length"
_ENDED: dict[str, tuple[str, ...]] = {
    FILTERED: (
        FILTERED, "content_filtered", "safety", "blocked", "blocklist", "prohibited_content", "recitation", "spii",
        "sensitive", "guardrail_intervened", "refusal", "moderation",
    ),
    CUT: (CUT, "max_tokens", "max_output_tokens", "max_length", "token_limit"),
    "full": ("model_context_window_exceeded", "context_window_exceeded", "context_length_exceeded", "model_length"),
    "failed": ("error", "network_error", "insufficient_system_resource", "abort", "aborted", "failed"),
}  # fmt: skip
"""How endpoints say why a reply ended: as filtered, as cut off, at the end of the context, by a failure of theirs."""


class NoCompletion(Exception):
    """A response of success that holds no reply; the message says why."""


class Completion(NamedTuple):
    """A completion in the form of OpenAI's: ``body`` has one choice.

    ``tokens`` of prompt and reply, None where the response has neither. ``ended``: ``full`` at the end of the model's
    context, ``failed`` where the endpoint says that the generation failed, ``error`` has its words; else None.
    """

    body: bytes
    tokens: tuple[int, int] | None
    ended: str | None
    error: object


def _as_text(value: object) -> str:
    """Return what should be a text: null is an empty one, any other value its JSON."""
    return encodable(value or "" if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _as_function(call: object) -> object:
    """Return a call with ``function``: calls without one have the name beside the arguments, or are of another kind."""
    unread = {"function": {"arguments": _as_text(call)}}
    if not isinstance(call, dict):
        return unread
    function = call.get("function", call.get("custom", call))
    if isinstance(function, str):
        function = {**call, "name": function}
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return unread
    keys = ("arguments", "input", "parameters", "args")
    given = next((function[key] for key in keys if key in function), None)
    return {"function": {"name": function["name"], "arguments": None if given == "null" else given}}


def _as_calls(value: object) -> object:
    if not value:
        return []
    return value if isinstance(value, list) else [value]


def _as_content(value: object) -> object:
    """Join the parts of a content, without those of thinking and of other media."""
    if isinstance(value, dict | list):
        parts = value if isinstance(value, list) else [value]
        texts = (one.get("text") if isinstance(one, dict) else one for one in parts)
        value = "".join(one for one in texts if isinstance(one, str))
    return encodable(value) if isinstance(value, str) else value


def _as_count(value: object) -> object:
    return math.ceil(value) if isinstance(value, float) and math.isfinite(value) else value


_Text = Annotated[str, BeforeValidator(_as_text)]
_Count = Annotated[Annotated[int, Field(ge=0, le=MOST_TOKENS)] | None, BeforeValidator(_as_count)]


class _Function(BaseModel):
    name: _Text = ""
    arguments: _Text = ""


class _Call(BaseModel):
    function: _Function


class _Message(BaseModel):
    role: Annotated[Literal["assistant"], BeforeValidator(lambda role: role or "assistant")] = "assistant"
    content: Annotated[str | None, BeforeValidator(_as_content)] = None
    refusal: Annotated[str | None, BeforeValidator(lambda told: _as_text(told) if told else None)] = None
    tool_calls: Annotated[list[Annotated[_Call, BeforeValidator(_as_function)]], BeforeValidator(_as_calls)] = []
    function_call: Any = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: Any = None
    error: Any = None


class _Usage(BaseModel):
    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    total_tokens: _Count = None


class _Response(BaseModel):
    choices: list[_Choice]
    usage: Annotated[_Usage | None, BeforeValidator(lambda told: told if isinstance(told, dict) else None)] = None
    error: Any = None


def read_completion(data: bytes) -> Completion:
    """Read a response of success. Raises NoCompletion."""
    try:
        content = json.loads(data.decode(errors="replace"), strict=False)
    except (ValueError, RecursionError) as error:
        raise NoCompletion(f"Invalid JSON: {error}") from None
    if isinstance(content, dict):
        _fill_filtered(content.get("choices"))
    try:
        response = _Response.model_validate(content)
        tokens = _tokens(response.usage)
    except (ValidationError, RecursionError) as error:
        raise NoCompletion(
            complaint(error) if isinstance(error, ValidationError) else "it is nested too deeply"
        ) from None
    if not response.choices:
        return Completion(b"", tokens, "failed" if response.error else None, response.error)
    choice = response.choices[0]
    reason = "failed" if choice.error or response.error else _reason(choice.finish_reason)
    written = {
        "id": "",
        "object": "chat.completion",
        "created": 0,
        "model": "",
        "choices": [{"index": 0, "finish_reason": reason or None, "message": _message(choice.message, reason)}],
        "usage": tokens and {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
    }
    whole = json.dumps(written).encode()
    return Completion(whole, tokens, reason if reason in ("full", "failed") else None, choice.error or response.error)


def _fill_filtered(choices: object) -> None:
    """Add the message that a filtered choice may be without."""
    for choice in choices if isinstance(choices, list) else ():
        if (
            isinstance(choice, dict)
            and choice.get("message") is None
            and _reason(choice.get("finish_reason")) == FILTERED
        ):
            choice["message"] = {}


def _reason(told: object) -> str:
    """Return why a reply ended, in one of our words or the endpoint's own."""
    word = str(told or "").lower()
    first = word.partition(":")[0].strip()  # Gemini: "content_filter: PROHIBITED_CONTENT"
    return next((kind for kind, words in _ENDED.items() if first in words), word)


def _message(message: _Message, reason: str) -> dict[str, Any]:
    functions = [call.function.model_dump() for call in message.tool_calls]
    if not functions and message.function_call:
        functions = [_Call.model_validate(_as_function({"function": message.function_call})).function.model_dump()]
    if not functions and "malformed" in reason:  # Gemini keeps what the model wrote to itself
        functions = [{"name": "", "arguments": reason}]
    calls = [{"id": f"call{n:05d}", "type": "function", "function": one} for n, one in enumerate(functions)]
    written: dict[str, Any] = {"role": "assistant", "content": message.content}
    return (
        written | ({"refusal": message.refusal} if message.refusal else {}) | ({"tool_calls": calls} if calls else {})
    )


def _tokens(usage: _Usage | None) -> tuple[int, int] | None:
    """Return the tokens of prompt and reply; a count that is missing is what the total leaves, else 0."""
    if usage is None or (
        usage.prompt_tokens is None and usage.completion_tokens is None and usage.total_tokens is None
    ):
        return None
    prompt, reply, total = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens or 0
    if prompt is None:
        prompt = max(0, total - (reply or 0))
    return prompt, max(0, total - prompt) if reply is None else reply
