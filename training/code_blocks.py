"""Reads fenced blocks of Python in a message as actions: the benchmark's way to act in AppWorld, without a tool call.

A block counts where the tool ``python`` is at hand and requires one text, its ``code``, and nothing else. The rule
(ours, where the benchmark's own agents differ among themselves):

- a block begins at a line of three or more backticks and the word ``python`` or ``py``, in any case, and ends at the
  next line of as many backticks and nothing else; one that never ends reaches to the end of the message;
- a block may be indented, as in a list: the white space that all of its lines begin with is taken off;
- blocks of another language, or of none, are words;
- two blocks are a malformed action and nothing of them runs: the second was written without having seen what the
  first one prints, and the agent has to be told so.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from environments.base import Action, MalformedCall, ToolCall

TOOL = "python"
_CODE = "code"
_OPENING = re.compile(r"[ \t]*(?P<fence>`{3,})[ \t]*(?P<language>\w*)[ \t]*")
_LANGUAGES = frozenset({"python", "py"})


def takes_blocks(tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether blocks count with these tools, given as OpenAI-style function schemas."""
    for tool in tools:
        function = tool["function"]
        parameters = function.get("parameters", {})
        if function["name"] == TOOL and parameters.get("required") == [_CODE]:
            return bool(parameters["properties"][_CODE].get("type") == "string")
    return False


def block_action(text: str) -> Action | None:
    """The action that the text's block is, or None for a text without one."""
    blocks = list(_blocks(text))
    if not blocks:
        return None
    if len(blocks) > 1:
        reason = f"{len(blocks)} blocks of Python in one message, nothing was run: write one and read what it prints"
        return MalformedCall(text=text, reason=reason)
    return ToolCall(name=TOOL, arguments={_CODE: blocks[0]})


def _blocks(text: str) -> Iterator[str]:
    """The code of each block of Python."""
    lines = iter(text.split("\n"))
    for line in lines:
        opening = _OPENING.fullmatch(line.rstrip("\r"))
        if opening is None:
            continue
        closing = re.compile(rf"[ \t]*`{{{len(opening['fence'])},}}[ \t]*\r?")
        code = []
        for inside in lines:
            if closing.fullmatch(inside):
                break
            code.append(inside.rstrip("\r"))
        if opening["language"].lower() in _LANGUAGES:
            yield textwrap.dedent("\n".join(code))
