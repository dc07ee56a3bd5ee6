"""Calls as a list in Python, ``[cd(folder="document"), ls()]``: the format of BFCL's own prompt and of Llama 4.

A list counts at the beginning of a line: ``[``, a name and ``(``. It reaches to the end of the message, a code fence
aside. Arguments are literals, JSON's true, false and null among them; positional ones have the parameters' names in
the order of the documentation. A message without a list ends the turn. The rules are ours.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from environments.base import Action, MalformedCall, ToolCall
from environments.python_calls import call_of, expression
from training.rendering.base import EndTurn
from training.rendering.strict_json import tool_call
from training.rendering.tool_calls import Schema, block_action, takes_blocks, without_thinking

MAX_CHARACTERS = 20_000
"""Characters of a list of calls (our choice): a longer one is malformed."""

MOST_CALLS = 200
"""Calls of one message (our choice), far above what an episode allows in a user turn."""

_BEGIN = re.compile(r"^[ \t]*\[\s*[^\W\d][\w.]*\s*\(", re.MULTILINE)


class PythonicReader:
    """Reads a list of calls in Python."""

    def read(self, message: str, stop: str, head: str, tools: Sequence[Schema]) -> tuple[Action, ...] | EndTurn:
        """See CallReader. A list that is not Python is one MalformedCall, a part that is not a call one of its own."""
        said = without_thinking(message, head)
        begin = _BEGIN.search(said)
        if begin is None or (takes_blocks(tools) and block_action(said) is not None):
            return EndTurn(text=said.strip())
        text = said[begin.start() :].strip("` \t\r\n")
        try:
            if len(text) > MAX_CHARACTERS:
                raise ValueError(f"the list of calls is longer than {MAX_CHARACTERS} characters")
            tree = expression(text)
            if not isinstance(tree, ast.List):
                raise ValueError("the message is not one list of calls, as in [name(parameter=value)]")
            if len(tree.elts) > MOST_CALLS:
                raise ValueError(f"the list has more than {MOST_CALLS} calls")
        except ValueError as error:
            return (MalformedCall(text=message, reason=str(error)),)
        parameters = {tool["function"]["name"]: tuple(tool["function"]["parameters"]["properties"]) for tool in tools}
        whole = message if len(tree.elts) == 1 else None
        return tuple(
            _action(node, whole or ast.get_source_segment(text, node) or text, parameters) for node in tree.elts
        )


def _action(node: ast.expr, text: str, parameters: dict[str, tuple[str, ...]]) -> ToolCall | MalformedCall:
    """Return the call that a part of the list is; ``text`` is what a MalformedCall shows."""
    try:
        return tool_call(*call_of(node, parameters.get))
    except ValueError as error:
        return MalformedCall(text=text, reason=str(error))
