"""Trajectories and tools as OpenAI messages, which chat templates and fine-tuning services read.

Each action is an assistant message of its own: a record does not say which calls a policy wrote in one message, nor the
words with which it ended a turn. So a turn that the agent ended closes with an empty assistant message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from environments.base import Environment, TaskSpec, ToolCall
from memory.records import Trajectory
from training.rendering.tool_calls import call_id, tool_schema

__all__ = ["ChatMessage", "chat_messages", "offered_tools", "strict_json", "tool_schemas"]

ChatMessage = dict[str, Any]


def chat_messages(trajectory: Trajectory) -> list[ChatMessage]:
    """Return a trajectory as messages of the roles user, assistant and tool; the arguments of calls are JSON text.

    Text that was not a call is what the assistant said, and the environment's answer to it is a user's message: a
    tool's message needs a call.
    """
    messages: list[ChatMessage] = []
    place = 0
    for turn in trajectory.turns:
        messages.append({"role": "user", "content": turn.full_text})
        for step in turn.steps:
            answer = step.observation.full_text
            if isinstance(step.action, ToolCall):
                call = _call(place, step.action)
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
                messages.append(
                    {"role": "tool", "name": step.action.name, "tool_call_id": call["id"], "content": answer}
                )
                place += 1
            else:
                messages.append({"role": "assistant", "content": step.action.text})
                messages.append({"role": "user", "content": answer})
        if turn.ended:
            messages.append({"role": "assistant", "content": ""})
    return messages


def offered_tools(task: TaskSpec) -> tuple[str, ...]:
    """Return the names of the tools that a task has in any of its turns, those withheld at first included."""
    withheld = (name for names in task.withheld.values() for name in names)
    return tuple(dict.fromkeys((*task.tools, *withheld)))


def tool_schemas(environment: Environment, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return OpenAI function schemas of the named tools. Raises InputError for a tool that is not the environment's."""
    return [tool_schema(tool) for tool in environment.tools(names)]


def strict_json(value: object) -> str:
    """Return ``value`` as JSON text that every parser and UTF-8 take.

    Raises ValueError for a number that is not finite, and for half of a surrogate pair.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()  # raises UnicodeEncodeError, a ValueError
    return text


def _call(place: int, call: ToolCall) -> ChatMessage:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call_id(place), "type": "function", "function": {"name": call.name, "arguments": arguments}}
