"""A model's wish to call a tool as an action: a call of a tool that it was offered, or a malformed call."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pydantic import JsonValue

from environments.base import Action, MalformedCall, ToolCall

_MAX_NAME = 80


def offered(name: str, arguments: Mapping[str, JsonValue], tools: Collection[str]) -> Action:
    """The call, or a malformed one where ``name`` is none of ``tools``: that is answered, and nothing runs."""
    if name in tools:
        return ToolCall(name=name, arguments=dict(arguments))
    shown = name[:_MAX_NAME]
    return MalformedCall(text=shown, reason=f"{shown!r} is none of the tools")
