"""Write one user turn as lines that a small language model reads and writes (ours).

There are two directions. Each is conditional on the documentation of a few tools, one line per tool, so that a model
can be asked about tools that it never saw::

    writer    tools, known values, calls so far  ->  the next calls, then the user's words
    reader    tools, calls so far, the user's words  ->  the next calls

A call is one line of Python with literal arguments. A value that the user does not say because an earlier answer has it
is written as ``FOUND``: a writer sees no looked-up value, and so cannot put it into the user's mouth.

Everything is cut to limits: what servers and models say goes into these lines.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from environments.base import ToolCall, ToolSpec
from environments.python_calls import call_of, expression
from environments.task_text import Seen, is_count, leaves
from environments.tool_lines import tool_line

Direction = Literal["writer", "reader"]
Adapter = Direction | Literal["untaught"]
"""Which weights answer: those that were taught one of the two directions, or the model as it was before."""

FOUND = "<found>"
"""Written in place of a value that an earlier answer gives."""

CALLS, WORDS = "Calls:\n", "Words:"

_TOOL = 170  # characters of one tool's line
_VALUE = 40  # of one known value
_KNOWN = 240  # of all known values
_ANSWER = 80  # of the answer of one call
_DONE = 3  # calls so far
_TEXT = 400  # of the user's words
_ARGUMENT = 200  # of one text argument
_DEEP = 8  # levels of a state that are read

Answered = tuple[ToolCall, str]
"""A call and the text of its answer."""

KnownFact = tuple[str, str]
"""The name under which a value was seen, and the value."""


@dataclass(frozen=True)
class TurnView:
    """What is given before a user turn: some ``tools``, values that are ``known``, and the calls so far (``done``)."""

    tools: tuple[ToolSpec, ...]
    known: tuple[KnownFact, ...] = ()
    done: tuple[Answered, ...] = ()

    def lines(self) -> str:
        """Return the tools, the known values and the latest calls, in lines."""
        text = "Tools:\n" + "".join(f"{_cut(tool_line(tool), _TOOL)}\n" for tool in self.tools)
        if self.known:
            text += f"Known: {_known(self.known)}\n"
        if self.done:
            text += "Done:\n"
        for call, answer in self.done[-_DONE:]:
            text += f"{call_line(call)} -> {_cut(answer, _ANSWER)}\n"
        return text


def writer_prompt(view: TurnView) -> str:
    """Return what a writer continues with the next calls, and then with the user's words."""
    return view.lines() + CALLS


def words_prompt(view: TurnView, calls: Sequence[ToolCall]) -> str:
    """Return what a writer continues with the words of a user who asks for ``calls``."""
    return f"{writer_prompt(view)}{calls_text(calls)}{WORDS}"


def reader_prompt(view: TurnView, words: str) -> str:
    """Return what a reader continues with the calls that ``words`` ask for."""
    return f"{view.lines()}{WORDS} {one_line(words)}\n{CALLS}"


def calls_text(calls: Sequence[ToolCall]) -> str:
    """Return the calls, one in each line."""
    return "".join(f"{call_line(call)}\n" for call in calls)


def call_line(call: ToolCall) -> str:
    """Return a call as one line of Python."""
    return f"{call.name}({', '.join(f'{name}={_literal(value)}' for name, value in call.arguments.items())})"


def one_line(words: str) -> str:
    """Return the user's words in one line, cut to the limit."""
    return _cut(words, _TEXT)


def read_calls(text: str, tools: Collection[str], most: int) -> tuple[ToolCall, ...] | None:
    """Read the calls that a model wrote, up to the line of the user's words.

    None where a line is not a call of ``tools``, without a call, and with more than ``most``. ``FOUND`` stays an
    argument.
    """
    calls: list[ToolCall] = []
    for line in text.partition(f"\n{WORDS}")[0].split("\n"):
        if not line.strip() or line.startswith(WORDS):
            break
        if len(calls) == most:
            return None
        try:
            name, arguments = call_of(expression(line), lambda _: None)
        except ValueError:
            return None
        if name not in tools:
            return None
        calls.append(ToolCall(name=name, arguments=arguments))
    return tuple(calls) or None


def with_found(
    calls: Sequence[ToolCall], answers: Sequence[str], words: str, before: Sequence[str]
) -> tuple[ToolCall, ...]:
    """Return the calls with ``FOUND`` for each argument that an answer gives and the user does not say.

    ``answers`` are those of the calls, in order; ``before`` are the texts of earlier answers that may be used.
    """
    said, seen = Seen([words]), Seen(before)
    shown = []
    for call, answer in zip(calls, answers, strict=True):
        given = {name: FOUND if _is_found(value, said, seen) else value for name, value in call.arguments.items()}
        shown.append(call.model_copy(update={"arguments": given}))
        seen.read(answer)
    return tuple(shown)


def _is_found(value: JsonValue, said: Seen, seen: Seen) -> bool:
    parts = [leaf for leaf in leaves(value) if _is_telling(leaf)]
    return bool(parts) and all(seen.has(leaf) and not said.has(leaf) for leaf in parts)


def _is_telling(value: JsonValue) -> bool:
    if isinstance(value, str):
        return len(value.strip()) > 1
    return isinstance(value, int | float) and not is_count(value)


def known_values(state: Mapping[str, JsonValue]) -> tuple[KnownFact, ...]:
    """Return the values in a state with the key under which each is, in order, without repetition.

    The key of an object within an object is a value, too: a file in a folder, an order by its number.
    """
    return tuple(dict.fromkeys((name, " ".join(str(value).split())) for name, value in _facts("", dict(state), 0)))


def _facts(name: str, value: JsonValue, depth: int) -> Iterator[tuple[str, str | int | float]]:
    if depth > _DEEP or value is None or isinstance(value, bool):
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, dict) and name:
                yield name, key
            yield from _facts(str(key), inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _facts(name, inner, depth + 1)
    elif name and str(value).strip():
        yield name, value


def chosen_facts(
    facts: Sequence[KnownFact], wanted: Collection[str], rng: random.Random, most: int
) -> tuple[KnownFact, ...]:
    """Draw ``most`` of the ``facts`` in a drawn order; those with a value or a name of ``wanted`` first."""
    first = [fact for fact in facts if fact[1] in wanted or fact[0] in wanted]
    rest = [fact for fact in facts if fact not in first]
    chosen = rng.sample(first, min(most, len(first)))
    chosen += rng.sample(rest, min(most - len(chosen), len(rest)))
    rng.shuffle(chosen)
    return tuple(chosen)


def _known(facts: Sequence[KnownFact]) -> str:
    named: dict[str, list[str]] = {}
    for name, value in facts:
        named.setdefault(_cut(name, _VALUE), []).append(_cut(value, _VALUE))
    return _cut("; ".join(f"{name}: {', '.join(values)}" for name, values in named.items()), _KNOWN)


def _literal(value: JsonValue) -> str:
    if isinstance(value, str):
        return json.dumps(value[:_ARGUMENT], ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        fields = (f"{json.dumps(key, ensure_ascii=False)}: {_literal(inner)}" for key, inner in value.items())
        return f"{{{', '.join(fields)}}}"
    return json.dumps(value)


def _cut(text: str, most: int) -> str:
    # Without dots for what is left out: a model learns to write them.
    return " ".join(text.split())[:most].rstrip()
