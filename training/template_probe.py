"""What a model's chat template can do, found out by rendering dummy conversations when the model is loaded.

A template that cannot say what an episode needs is refused here with what is missing, instead of giving episodes in
which no call is ever recognised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from environments.base import InputError, ToolCall
from training.rendering import EndTurn
from training.tool_calls import (
    DUMMY_TOOL,
    CallReader,
    HermesReader,
    Message,
    call_id,
    call_message,
    response_template_reader,
)

if TYPE_CHECKING:
    from training.chat_template import ChatTemplateRendering

_CALL = ToolCall(name=DUMMY_TOOL["function"]["name"], arguments={"city": "Oslo", "days": 3})
_SAID = "dummy answer of the probe"
_ASKED: Message = {"role": "user", "content": "dummy question of the probe"}
_CAN_CALL = "choose a model that was trained to call tools"


def check_thinking(rendering: ChatTemplateRendering) -> None:
    """Raises InputError when the template renders the same with and without thinking."""
    if rendering.render([_ASKED], enable_thinking=True) == rendering.render([_ASKED], enable_thinking=False):
        raise InputError(
            f"policy.thinking: the chat template of {rendering.model} has no option enable_thinking: leave it null"
        )


def choose_reader(rendering: ChatTemplateRendering) -> tuple[CallReader, bool]:
    """The reader that gets a rendered tool call back, and whether the template takes several calls in a message.

    Raises InputError for a template that documents no tools, drops their answers, does not end messages with a stop
    token, or writes calls in a format that no reader knows.
    """
    schema = DUMMY_TOOL
    if _CALL.name not in rendering.render([_ASKED], [schema]):
        raise InputError(f"the chat template of {rendering.model} does not document tools: {_CAN_CALL}")
    if _SAID not in rendering.answers([_CALL.name], [_SAID])[1]:
        raise InputError(f"the chat template of {rendering.model} drops the answers of tools: {_CAN_CALL}")
    rendering.suffix([_ASKED])
    said = call_of(_CALL.name, dict(_CALL.arguments))
    answer = {"role": "tool", "name": _CALL.name, "tool_call_id": call_id(0), "content": _SAID}
    head, message, stop = written(rendering, said, [answer])
    for reader in (HermesReader(), response_template_reader(rendering.tokenizer)):
        if reader is not None and reader.read(message, stop, head, [schema]) == (_CALL,):
            return reader, _takes_several(rendering)
    raise InputError(
        f"the chat template of {rendering.model} writes a tool call as {message!r}, which cannot be read back: choose "
        "a model that writes <tool_call>{JSON}</tool_call> (Qwen2.5, Qwen3), or save a response_template with its "
        "tokenizer"
    )


def takes_system(rendering: ChatTemplateRendering) -> bool:
    """Whether the template shows a system message, with tools: some refuse one, some drop it."""
    try:
        return _SAID in rendering.render([{"role": "system", "content": _SAID}, _ASKED], [DUMMY_TOOL])
    except InputError:
        return False


def check_writing(rendering: ChatTemplateRendering) -> None:
    """Raises InputError when a call or an end of the turn that the template writes last cannot be read back."""
    done: Message = {"role": "assistant", "content": _SAID}
    for said, expected in (
        (call_of(_CALL.name, dict(_CALL.arguments)), (_CALL,)),
        (done, EndTurn(text=_SAID)),
    ):
        head, message, stop = written(rendering, said)
        if not stop or rendering.reader.read(message, stop, head, [DUMMY_TOOL]) != expected:
            raise InputError(
                f"training.lend_reference: the chat template of {rendering.model} writes an assistant's last message "
                f"as {message + stop!r}, which cannot be read back: set it to none, or choose another model"
            )


def call_of(name: str, arguments: dict[str, Any]) -> Message:
    """An assistant message with one call and nothing else."""
    return {"role": "assistant", "content": "", "tool_calls": [call_message(0, name, arguments)]}


def written(rendering: ChatTemplateRendering, said: Message, following: Sequence[Message] = ()) -> tuple[str, str, str]:
    """How the template writes the assistant message ``said``: what stands before it, the message, its stop token.

    Between a dummy question and ``following``; some templates write a message otherwise when none follows. The stop
    token is empty when the template does not end the message with one.
    """
    before = rendering.render([_ASKED], [DUMMY_TOOL], ask=False)
    head = rendering.render([_ASKED], [DUMMY_TOOL])[len(before) :]
    text = rendering.render([_ASKED, said, *following], [DUMMY_TOOL])[len(before) :]
    shared = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(head, text, strict=False)))
    # A head may close a thinking block that the rendered history does not show: keep the whole tags they share.
    begin = max(shared.rfind(">"), shared.rfind("\n")) + 1
    end = re.search(rendering.stop, text[begin:])
    message = text[begin : begin + end.start()] if end else text[begin:]
    return before + shared[:begin], message, end[0] if end else ""


def _takes_several(rendering: ChatTemplateRendering) -> bool:
    try:
        rendering.answers([_CALL.name] * 2, [_SAID] * 2)
    except InputError:
        return False
    return True
