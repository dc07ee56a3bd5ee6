"""Reads a fenced block of Python as an action, AppWorld's way to act without a tool call.

It counts where the tool ``python`` requires one text, its ``code``, and nothing else. The rule (ours; the benchmark's
own agents differ): a block begins at a line of three or more backticks and ``python`` or ``py``, and ends at the next
line of as many backticks, or with the message; common indentation is removed. Two blocks are a malformed action and
none of them runs: the second was written before the first one's output was seen.
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
    """Report whether blocks count with these tools, given as OpenAI-style function schemas."""
    for tool in tools:
        function = tool["function"]
        parameters = function.get("parameters", {})
        if function["name"] == TOOL and parameters.get("required") == [_CODE]:
            return bool(parameters["properties"][_CODE].get("type") == "string")
    return False


def block_action(text: str) -> Action | None:
    """Return the action of the text's block, or None for a text without one."""
    blocks = list(_blocks(text))
    if not blocks:
        return None
    if len(blocks) > 1:
        reason = f"{len(blocks)} blocks of Python in one message, nothing was run: write one and read what it prints"
        return MalformedCall(text=text, reason=reason)
    return ToolCall(name=TOOL, arguments={_CODE: blocks[0]})


def block_text(call: ToolCall) -> str:
    """Return the block of Python that ``block_action`` reads as ``call``."""
    return f"```python\n{call.arguments.get(_CODE, '')}\n```"


def _blocks(text: str) -> Iterator[str]:
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
