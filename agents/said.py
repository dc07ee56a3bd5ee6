"""Tell what a user says of calls and what an earlier answer gives, and whether words say it (ours).

This is for calls that a language model words: on this machine (``agents.local``) or behind an endpoint
(``agents.chat.wording``).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from itertools import islice

from pydantic import JsonValue

from agents.scripted.values import scalar_leaves
from environments.answers import decoded, rounded
from environments.base import ToolCall, ToolSpec
from environments.task_text import Seen, documented, leaves, normal, with_own_descriptions
from environments.tool_lines import highest_ranked
from environments.turn_lines import FOUND, one_line, with_found
from environments.verification.replay import Replay

_SHORTEST = 10  # characters of a wording
_NAME = 3  # characters of a value that is not there by chance
_NO_WORD = re.compile(rf"{re.escape(FOUND)}|\w+_\w+\(?|\w+\(")  # a tool's name, or a call
_MOST_VALUES = 1000  # of one answer
_LINE = 120  # characters of an answer in words that is about one thing


def words_of(text: str) -> str:
    """Return the first line of what a writer wrote, as a user would send it: without quotes around the whole."""
    line = one_line(next((line for line in text.splitlines() if line.strip()), ""))
    return line[1:-1] if len(line) > 1 and line[0] == line[-1] == '"' and line.count('"') == 2 else line


def unsaid(words: str, calls: Sequence[ToolCall], tools: Mapping[str, ToolSpec]) -> str | None:
    """Return why words do not ask for ``calls``; None where they say all that is neither found nor documented.

    A small writer circles around a value. People say one more often than their calls have it in 6 of 167 turns.
    """
    if len(words) < _SHORTEST:
        return "it is too short"
    parts = [leaf for call in calls for value in call.arguments.values() for leaf in leaves(value)]
    texts = [part.casefold() for part in parts if isinstance(part, str) and part != FOUND and len(part) >= _NAME]
    values = "|".join(map(re.escape, sorted(set(texts), key=len, reverse=True)))
    rest = re.sub(values, " ", words, flags=re.IGNORECASE) if values else words  # a value may look like a tool's name
    if named := _NO_WORD.search(rest):
        return f"it has {named.group()[:_LINE]!r}, which no user would write"
    if rest.count('"') % 2:
        return "a quotation mark is missing"
    return _repeated(words.casefold(), texts) or _missing(words, calls, tools)


def _repeated(words: str, texts: Sequence[str]) -> str | None:
    called = "\n".join(texts)  # a path has the name of its file
    for text in dict.fromkeys(texts):
        alone = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
        if len(alone.findall(words)) > len(alone.findall(called)):
            return f"it says {text[:_LINE]!r} more often than the calls do"
    return None


def _missing(words: str, calls: Sequence[ToolCall], tools: Mapping[str, ToolSpec]) -> str | None:
    seen = Seen([words])
    for call in calls:
        tool = tools[call.name]
        for name, value in call.arguments.items():
            parameter = tool.parameter(name)
            for leaf in leaves(value):
                if leaf == FOUND or seen.has(leaf) or (parameter is not None and documented(leaf, tool, parameter)):
                    continue
                return f"it has to say {str(leaf)[:_LINE]!r}, whole and as the calls do"
    return None


def shown_calls(played: Replay) -> tuple[ToolCall, ...]:
    """Return the calls of a played turn, with ``FOUND`` for each value that its user need not say."""
    (turn,) = played.turns
    return hidden_values(turn.calls, [observation.text for observation in turn.observations])


def around(wanted: Sequence[ToolSpec], tools: Sequence[ToolSpec], count: int) -> tuple[ToolSpec, ...]:
    """Return ``count`` tools: the wanted ones, then those whose documentation is most like theirs."""
    named = {tool.name for tool in wanted}
    others = [tool for tool in tools if tool.name not in named]
    text = " ".join(f"{tool.name} {tool.description} {' '.join(p.name for p in tool.parameters)}" for tool in wanted)
    more = count - len(wanted)
    near = highest_ranked(text, others, more) if more > 0 and others else frozenset()
    return (*wanted, *(tool for tool in others if tool.name in near))


def own_tools(tools: Sequence[ToolSpec]) -> dict[str, ToolSpec]:
    """Return the tools by name, without the sentences that their whole group shares."""
    return {tool.name: tool for tool in with_own_descriptions(tools)}


def shuffled(tools: Sequence[ToolSpec], rng: random.Random) -> tuple[ToolSpec, ...]:
    """Return the tools in a drawn order."""
    return tuple(rng.sample(tools, len(tools)))


def keyed(answer: str) -> list[tuple[str, JsonValue]]:
    """Return the plain values in an answer of JSON with their keys; an item of a list has the key of the list."""
    return [(leaf.key, leaf.value) for leaf in islice(scalar_leaves(decoded(answer)), _MOST_VALUES)]


def hidden_values(calls: Sequence[ToolCall], answers: Sequence[str]) -> tuple[ToolCall, ...]:
    """Return the calls with ``FOUND`` for each value that an earlier answer gives, without others of its kind.

    Of several files, orders or people in one answer a user has to say which; the only one need not be named.
    """
    hidden = []
    for place, (call, shown) in enumerate(zip(calls, with_found(calls, answers, "", ()), strict=True)):
        given = dict(shown.arguments)
        for name in [name for name, value in given.items() if value == FOUND]:
            parts = list(leaves(call.arguments[name]))
            if not any(all(_is_only(part, answer) for part in parts) for answer in answers[:place]):
                given[name] = call.arguments[name]
        hidden.append(call.model_copy(update={"arguments": given}))
    return tuple(hidden)


def _is_only(value: JsonValue, answer: str) -> bool:
    """Return whether an answer gives the value and no other one under the same key, or is a line with it."""
    if isinstance(decoded(answer), dict | list):
        found = keyed(answer)
        keys = {key for key, one in found if one == value}
        return any(len({str(one) for key, one in found if key == own}) == 1 for own in keys)
    return len(answer) <= _LINE and "\n" not in answer and str(value) in answer


def same_calls(left: Sequence[ToolCall], right: Sequence[ToolCall]) -> bool:
    """Return whether two sequences ask for the same: names, and values apart from case, blanks and kinds of numbers."""
    return len(left) == len(right) and all(map(_same, left, right))


def _same(left: ToolCall, right: ToolCall) -> bool:
    return left.name == right.name and _plain(rounded(dict(left.arguments))) == _plain(rounded(dict(right.arguments)))


def _plain(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else normal(str(value))
