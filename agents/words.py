"""Words of names, documentation and messages, so that rules can compare them without knowing any tool.

All scripted rules that pick tools or values use shared words (``environments.words``).

``remedies`` reads an error message: whether it blames an argument or asks for another call first, and of which tool. A
message with the words of another tool's name asks for that tool ("All doors must be locked before starting the engine",
in answer to startEngine, asks for lockDoors). The thresholds on shares of words are our choice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache

from agents.evidence import error_message
from environments.base import ToolCall, ToolSpec
from environments.words import words

_ENOUGH_WORDS = 2
_ENOUGH_SHARE = 0.5
_DESCRIPTION_MARK = "Tool description:"
_ENUM = re.compile(r"\[Enum\].*$", re.DOTALL)

_SHORTEST_ABBREVIATION = 3


@lru_cache(maxsize=4096)
def name_words(name: str) -> frozenset[str]:
    """Stems of the words that make up a tool's or a parameter's name."""
    return frozenset(words(name))


def about(tool: ToolSpec) -> frozenset[str]:
    """Stems of a tool's name and of its own description, without the sentence that its whole group shares."""
    return _about(tool.name, tool.description)


@lru_cache(maxsize=4096)
def _about(name: str, description: str) -> frozenset[str]:
    return name_words(name) | frozenset(words(description.rpartition(_DESCRIPTION_MARK)[2]))


@lru_cache(maxsize=4096)
def head_word(description: str) -> str:
    """Return the first content word of a parameter's description ("The zipcode of the first city": zipcode)."""
    return next(iter(words(_ENUM.sub("", description))), "")


@lru_cache(maxsize=4096)
def parameter_words(description: str) -> frozenset[str]:
    """Stems of a parameter's description, without its list of documented values."""
    return frozenset(words(_ENUM.sub("", description)))


def overlap(left: Collection[str], right: Collection[str]) -> int:
    """Count the words of ``left`` that are in ``right``, abbreviations ("dir" of "directory") included."""
    return sum(1 for word in left if word in right or any(_abbreviates(word, other) for other in right))


def share(left: Collection[str], right: Collection[str]) -> float:
    """Return the share of ``left`` that is in ``right``, from 0 to 1; 0 for no words at all."""
    return overlap(left, right) / len(left) if left else 0.0


@lru_cache(maxsize=262144)
def _abbreviates(short: str, long: str) -> bool:
    return len(short) == _SHORTEST_ABBREVIATION and len(long) > len(short) and long.startswith(short)


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
    """Return whether an error message names a parameter of the call in words, or quotes one of its text values."""
    said = frozenset(words(message))
    for name, value in call.arguments.items():
        if name_words(name) and name_words(name) <= said:
            return True
        if isinstance(value, str) and value and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", message):
            return True
    return False
