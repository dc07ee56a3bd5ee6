"""Trajectories as OpenAI messages, which chat templates, fine-tuning services and trackers read.

Each action is an assistant message of its own: a record does not say which calls a policy wrote in one message, nor the
words with which it ended a turn. So a turn that the agent ended closes with an empty assistant message.
"""

from __future__ import annotations

import json
from typing import Any

from environments.base import ToolCall
from memory.records import Trajectory
from training.rendering.tool_calls import call_id

ChatMessage = dict[str, Any]


def chat_messages(trajectory: Trajectory, longest: int | None = None) -> list[ChatMessage]:
    """Return a trajectory as messages of the roles user, assistant and tool; the arguments of calls are JSON text.

    Text that was not a call is what the assistant said, and the environment's answer to it is a user's message: a
    tool's message needs a call. ``longest``: texts are cut after so many characters.
    """
    messages: list[ChatMessage] = []
    place = 0
    for turn in trajectory.turns:
        messages.append({"role": "user", "content": _cut(turn.full_text, longest)})
        for step in turn.steps:
            answer = _cut(step.observation.full_text, longest)
            if isinstance(step.action, ToolCall):
                call = _call(place, step.action, longest)
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
                messages.append(
                    {"role": "tool", "name": step.action.name, "tool_call_id": call["id"], "content": answer}
                )
                place += 1
            else:
                messages.append({"role": "assistant", "content": _cut(step.action.text, longest)})
                messages.append({"role": "user", "content": answer})
        if turn.ended:
            messages.append({"role": "assistant", "content": ""})
    return messages


def _call(place: int, call: ToolCall, longest: int | None) -> ChatMessage:
    arguments = _cut(json.dumps(call.arguments, ensure_ascii=False), longest)
    return {"id": call_id(place), "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _cut(text: str, longest: int | None) -> str:
    if longest is None or len(text) <= longest:
        return text
    return f"{text[:longest]} ... ({len(text)} characters)"
