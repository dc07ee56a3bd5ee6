"""A model's own chat template as a rendering, without ever rendering the history again.

The first prompt comes from ``apply_chat_template`` with the tools as JSON schemas. What follows a sampled message (a
tool's answer, the next user turn) is found by rendering a dummy conversation and keeping what stands behind the dummy
assistant message: so the ids that were sampled stay as they are, whatever the template would have made of them.
Calls are read in the format of Qwen and Hermes, ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from environments.base import Action, InputError, MalformedCall, Observation, Parameter, ToolCall, ToolSpec, UserTurn
from training.rendering import EndTurn
from training.strict_json import read_json_at, tool_call

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "dummy_tool_of_the_differencing"
_SAID = "dummy content of the differencing"
_THINKING = re.compile(r"<think>.*?(?:</think>|$)", re.DOTALL)
_TOOL_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}

Message = dict[str, Any]


class ChatTemplateRendering:
    """Opens dialogues in the tokenizer's chat template."""

    name = "chat_template"

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises InputError for a tokenizer without a chat template or an end-of-message token."""
        if not tokenizer.chat_template:
            raise InputError(
                f"{tokenizer.name_or_path} has neither a chat template nor coevolve.json: choose an instruction-tuned "
                "model, or a starter made with python -m training.warm_start"
            )
        if tokenizer.eos_token_id is None:
            raise InputError(f"{tokenizer.name_or_path} has no end-of-message token: set its eos_token")
        self.tokenizer = tokenizer
        self.stop_ids = frozenset({int(tokenizer.eos_token_id)})

    def begin(self) -> ChatTemplateDialogue:
        """A fresh dialogue for one episode."""
        return ChatTemplateDialogue(self)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of a conversation that ends where the assistant is to speak."""
        text = self._render(messages, [tool_schema(tool) for tool in tools])
        return self.encode(text)

    def suffix(self, message: Message) -> str:
        """What the template puts behind an assistant message for ``message`` to follow and the assistant to speak."""
        call = {"type": "function", "function": {"name": _MARK, "arguments": {}}}
        said: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        if message["role"] != "tool":
            said = {"role": "assistant", "content": _MARK}
        rendered = self._render([{"role": "user", "content": _SAID}, said, message], [])
        _, mark, behind = rendered.partition(_MARK)
        _, end, suffix = behind.partition(self.tokenizer.eos_token)
        if not mark or not end:
            raise InputError(
                f"the chat template of {self.tokenizer.name_or_path} does not end an assistant message with "
                f"{self.tokenizer.eos_token!r}: its suffixes cannot be told apart, choose another model"
            )
        return suffix

    def encode(self, text: str) -> list[int]:
        """Ids of text that already holds every special token."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, add_generation_prompt=True, tokenize=False
            )
        )


class ChatTemplateDialogue:
    """One episode in a chat template (see training.rendering.Dialogue)."""

    def __init__(self, rendering: ChatTemplateRendering) -> None:
        self.stop_ids = rendering.stop_ids
        self._rendering = rendering
        self._tools: frozenset[str] = frozenset()
        self._ended = True

    def first(self, turn: UserTurn, tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of the tools' documentation and the first user message."""
        self._tools = frozenset(tool.name for tool in tools)
        return self._rendering.prompt([{"role": "user", "content": turn.text}], tools)

    def parse(self, ids: Sequence[int]) -> Action | EndTurn:
        """The tool call of a sampled message; a message without one ends the turn."""
        self._ended = bool(ids) and ids[-1] in self.stop_ids
        message = list(ids[:-1] if self._ended else ids)
        tokenizer = self._rendering.tokenizer
        text = str(tokenizer.decode(message, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        if not self._ended:
            return MalformedCall(text=text, reason="cut off: the message does not end")
        return read_message(text)

    def observe(self, observation: Observation) -> list[int]:
        """Ids of the tool's answer and the head of the next assistant message."""
        return self._encode({"role": "tool", "content": observation.text})

    def next_turn(self, turn: UserTurn, tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of the next user message. Tools that are new in this turn are documented in it, as JSON lines."""
        new = [tool for tool in tools if tool.name not in self._tools]
        self._tools |= {tool.name for tool in new}
        text = turn.text
        if new:
            schemas = "\n".join(json.dumps(tool_schema(tool)) for tool in new)
            text = f"These tools are available from now on:\n{schemas}\n\n{text}"
        return self._encode({"role": "user", "content": text})

    def _encode(self, message: Message) -> list[int]:
        """The suffix for ``message``, after the end of a message that was cut off while it was sampled."""
        end = "" if self._ended else self._rendering.tokenizer.eos_token
        self._ended = True
        return self._rendering.encode(end + self._rendering.suffix(message))


def read_message(text: str) -> Action | EndTurn:
    """What an assistant message says: its tool call, or the end of the turn when it has none.

    Thinking is left out. Several calls in one message are malformed: an action is one call.
    """
    said = _THINKING.sub("", text)
    calls = _TOOL_CALL.findall(said)
    if not calls:
        return EndTurn(text=said.strip())
    if len(calls) > 1:
        return MalformedCall(text=text, reason=f"{len(calls)} tool calls in one message: make one at a time")
    try:
        return _read_call(calls[0].strip())
    except ValueError as error:
        return MalformedCall(text=text, reason=str(error))


def _read_call(text: str) -> ToolCall:
    content, end = read_json_at(text)
    if end < len(text):
        raise ValueError(f"the tool call goes on after its JSON: {text[end : end + 12]!r}")
    if not isinstance(content, dict):
        raise ValueError("the tool call is no JSON object")
    name, arguments = content.get("name"), content.get("arguments", {})
    if not isinstance(name, str):
        raise ValueError("the tool call has no name")
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of the tool call are no JSON object")
    return tool_call(name, arguments)


def tool_schema(tool: ToolSpec) -> dict[str, Any]:
    """The tool as an OpenAI-style function schema, which is what chat templates expect."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": {
                "type": "object",
                "properties": {parameter.name: _schema(parameter) for parameter in tool.parameters},
                "required": [parameter.name for parameter in tool.parameters if parameter.required],
            },
        },
    }


def _schema(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": _JSON_TYPES.get(parameter.type, parameter.type),
        "description": parameter.description,
    }
    if parameter.default is not None:
        schema["default"] = parameter.default
    choices = {"enum": list(parameter.choices)} if parameter.choices else {}
    if parameter.type == "array":
        items = parameter.items or "string"
        return schema | {"items": {"type": _JSON_TYPES.get(items, items)} | choices}
    return schema | choices
