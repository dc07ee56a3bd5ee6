"""Reads an error message: whether it blames an argument or asks for another call first, and of which tool.

A message with the words of another tool's name asks for that tool ("All doors must be locked before starting the
engine", in answer to startEngine, asks for lockDoors). The thresholds on shares of words are our choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agents.evidence import error_message
from agents.scripted.words import about, name_words, share, words
from environments.base import ToolCall, ToolSpec

_ENOUGH_WORDS = 2
_ENOUGH_SHARE = 0.5


def remedies(call: ToolCall, text: str, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return tools that the error ``text`` of ``call`` asks for, best match first; empty if it blames a value.

    Among tools whose names match equally, the one whose documentation has more words of the message comes first.
    """
    message = error_message(text)
    said = frozenset(words(message))
    ranked = []
    for tool in tools:
        named = name_words(tool.name)
        if tool.name == call.name or len(named & said) < _ENOUGH_WORDS:
            continue
        ranked.append((share(named, said), share(said, about(tool)), tool))
    ranked.sort(key=lambda entry: (-entry[0], -entry[1], entry[2].name))
    if ranked and ranked[0][0] < 1.0 and blames_argument(call, message):
        return ()
    return tuple(tool for named_share, _, tool in ranked if named_share >= _ENOUGH_SHARE)


def blames_argument(call: ToolCall, message: str) -> bool:
    """Whether an error message names a parameter of the call in words, or quotes one of its text values."""
    said = frozenset(words(message))
    for name, value in call.arguments.items():
        if name_words(name) and name_words(name) <= said:
            return True
        if isinstance(value, str) and value and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", message):
            return True
    return False
