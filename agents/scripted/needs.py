"""Find what a refused or empty call lacks: somebody signed in, a value that another tool returns, a thing to be made.

Generic over ``ToolSpec``: the rules read errors and documentation, and never a tool's name as a whole. All are ours.

signed in   the error asks to log in or to authenticate: tools of the same group whose names say so, with parameters
returned    the error names a parameter that is documented as "obtained from the ...": tools of the same group with
            those words in their names
made        the error says that something was not found, or the answer is empty: tools of the same group whose
            documentation begins with a verb of making ("Create a ticket") and shares the thing's noun
listed      the error lists the values that it would take: "Here are ...: ['a', 'b']"
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from agents.evidence import about, error_message, name_words, overlap
from environments.base import ToolCall, ToolSpec
from environments.task_text import words

_SIGN_IN = re.compile(r"\b(authenticat\w*|log(?:ged)?[ -]?in|login|sign(?:ed)?[ -]?in)\b", re.IGNORECASE)
_OBTAINED = re.compile(r"\b(?:obtained|returned) (?:from|by) (?:the )?(.+)", re.IGNORECASE)
_MISSING = re.compile(r"\b(not found|not registered|does not exist)\b", re.IGNORECASE)
_LIST = re.compile(r"\[([^\[\]]*)\]")
_QUOTED = re.compile(r"'([^']{1,80})'")
_DESCRIPTION_MARK = "Tool description:"
_MAKING = frozenset(
    words(
        "add book comment create fund make open order place post publish purchase record register schedule send write"
    )
)
_MOST_LISTED = 8


def sign_in_tools(call: ToolCall, text: str, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools that sign somebody in where the error ``text`` of ``call`` asks for it, by name."""
    if not _SIGN_IN.search(error_message(text)):
        return ()
    group = _group(call, tools)
    found = [tool for tool in tools if tool.group == group and tool.name != call.name and _signs_in(tool)]
    return tuple(sorted(found, key=lambda tool: tool.name))


def sources_of_values(call: ToolCall, text: str, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools that the documentation names as the origin of a value that the error ``text`` blames."""
    own = next((tool for tool in tools if tool.name == call.name), None)
    said = frozenset(words(error_message(text)))
    found: dict[str, ToolSpec] = {}
    for parameter in own.parameters if own is not None else ():
        origin = _OBTAINED.search(parameter.description)
        if origin is None or own is None or not name_words(parameter.name) <= said:
            continue
        named = frozenset(words(origin.group(1)))
        for tool in tools:
            if tool.group == own.group and tool.name != own.name and name_words(tool.name) & named and tool.parameters:
                found.setdefault(tool.name, tool)
    return tuple(found[name] for name in sorted(found))


def makers(call: ToolCall, text: str | None, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools that make what ``call`` did not find, best match first.

    ``text`` is its error; None for an empty answer, where the noun is in the tool's own name.
    """
    if text is None:
        wanted = name_words(call.name)
    elif _MISSING.search(error_message(text)):
        wanted = frozenset(words(error_message(text)))
    else:
        return ()
    group = _group(call, tools)
    ranked = []
    for tool in tools:
        if tool.group != group or tool.name == call.name or _verb(tool.description) not in _MAKING:
            continue
        shared = overlap(name_words(tool.name), wanted)
        if shared:
            ranked.append((-shared, -overlap(about(tool), wanted), tool.name, tool))
    return tuple(tool for *_, tool in sorted(ranked))


def listed_values(call: ToolCall, text: str) -> tuple[str, ...]:
    """Return the quoted values of lists in the error ``text`` that the call did not give."""
    given = {str(value) for value in call.arguments.values()}
    found = [value for part in _LIST.findall(error_message(text)) for value in _QUOTED.findall(part)]
    return tuple(value for value in dict.fromkeys(found) if value not in given)[:_MOST_LISTED]


def _group(call: ToolCall, tools: Sequence[ToolSpec]) -> str:
    return next((tool.group for tool in tools if tool.name == call.name), "")


def _signs_in(tool: ToolSpec) -> bool:
    name = re.sub(r"[^A-Za-z]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tool.name))
    return _SIGN_IN.search(name) is not None and any(parameter.required for parameter in tool.parameters)


@lru_cache(maxsize=4096)
def _verb(description: str) -> str:
    """Return the stem of the first word of a tool's own description."""
    return next(iter(words(description.rpartition(_DESCRIPTION_MARK)[2])), "")
