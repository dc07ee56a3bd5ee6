"""Check the text of user turns: they are plain requests, which ask for what the reference does, no more and no less.

Who writes them can be misled by what it reads: a text in the environment may ask it to repeat instructions or to close
a tag of its prompt. Turns become prompts and training text, so they are checked like arguments (``foreign_text``). The
rules (ours):

- a turn has no control, format or private-use characters beside line ends, tabs and the joiners of scripts and emoji;
- it has no markup: nothing between angle brackets, no special token of a chat template, no call in the embedded
  policy's notation. What a call of the reference takes as its value may have angle or square brackets;
- it shares no run of ``COPIED`` words with the start state or an observation, unless a call takes them as its value or
  the documentation has them, too.

Grounding (``environments.task_text``) asks whether the calls' values are in the text. ``unmet_request`` and
``unasked_call`` ask the converse (all are our choice; ``benchmarks/wrong_drafts.py`` measures what they find and what
they refuse by mistake):

- each value that a turn states (a text in quotes, or a number that is not a limit, "below 40") is taken by a call, or
  a later call can be chosen by it: an observation before the turn's last call has it;
- a documented choice that a turn states is not passed over for another that it does not state;
- a tool that a clause of a turn names by the words of its name and documentation is called;
- a turn of two steps ("..., then ...") has two calls;
- a call that no later call needs shares a word or a value with its turn, by the documentation of its tool or the
  words that the environment has for such a call (``Benchmark.render``);
- a turn has at least as many clauses as tools whose calls no later call needs. Calls that every task of the benchmark
  makes (``Benchmark.everyday_groups``) need no words.

They see words, not their meaning, and decide in the draft's favour: a paraphrase is not found wrong. Programs (a
parameter of type code) are not read: only the values that a turn states are looked up in their text.
"""

from __future__ import annotations

import json
import math
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

from pydantic import JsonValue

from environments.base import Environment, InputError, TaskSpec, ToolCall, ToolSpec
from environments.registry import benchmark_of
from environments.task_text import (
    DATE,
    DETAIL,
    NUMBER,
    SENTENCE_END,
    Seen,
    leaves,
    normal,
    number_of,
    numbers,
    stands_in,
    tools_of,
    words,
)
from environments.verification.canonical import texts_in
from environments.verification.canonical import words as plain_words
from environments.verification.replay import PlayedReference

COPIED = 6
"""Words in a row that count as copied (our choice: turns that people and templates wrote share at most four)."""

_SPECIAL = re.compile(r"<\s*+\|[^<>\n]*|\|\s*+>|<<\s*+(?:/\s*+)?\w+\s*+>>")
_MARKUP = re.compile(r"<\s*+[A-Za-z_/!?][^<>\n]*>|\[\s*+(?:/\s*+)?[A-Z][A-Z_]+\s*+\]")
_CALL = re.compile(r"(?<!\w)@(\w+)(=)?")
_PLAIN_WORD = re.compile(r"[a-z]+")
_PLAIN_CONTROLS = frozenset("\n\r\t\u200c\u200d")
_REFUSED_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Co", "Cn"))
_SHOWN = 60  # characters of a text that a phrase quotes


def foreign_text(environment: Environment, task: TaskSpec, observed: Iterable[str] = ()) -> str | None:
    """Return a phrase for the first thing in a user turn that is not a plain request; None if there is none.

    ``observed`` are the observations that the writer of the turns has read. Raises InputError for a tool that the
    environment does not have.
    """
    values = _values(task)
    for t, text in enumerate(task.turns, start=1):
        for character in text:
            if character not in _PLAIN_CONTROLS and unicodedata.category(character) in _REFUSED_CATEGORIES:
                return f"turn {t} has the invisible character U+{ord(character):04X}"
        tokens = _SPECIAL.search(text) or _MARKUP.search(_without(text, values))
        if tokens:
            return f"turn {t} has the markup {tokens.group()[:_SHOWN]!r}"
        for name, assigns in _CALL.findall(text):
            if assigns or (name in task.tools and not _PLAIN_WORD.fullmatch(name)):
                return f"turn {t} has the call notation '@{name[:_SHOWN]}{assigns}'"
    copied = _copied(environment, task, values, observed)
    return f"turn {copied[0]} repeats what the environment says: {copied[1][:_SHOWN]!r}" if copied else None


def _values(task: TaskSpec) -> list[str]:
    """Return the values that calls of the reference take, longest first, as they are and as JSON writes them."""
    calls = [call for turn in task.reference for call in turn]
    found = {str(leaf) for call in calls for value in call.arguments.values() for leaf in leaves(value)}
    return sorted({one for text in found if text for one in (text, json.dumps(text)[1:-1])}, key=len, reverse=True)


def _without(text: str, values: Iterable[str]) -> str:
    for value in values:
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "\n", text, flags=re.IGNORECASE)
    return text


def _copied(
    environment: Environment, task: TaskSpec, values: list[str], observed: Iterable[str]
) -> tuple[int, str] | None:
    """Return the turn, from 1, and the first run of words that an observation or the start state has, too."""
    own: dict[tuple[str, ...], int] = {}
    for t, text in enumerate(task.turns, start=1):
        for piece in _without(text, values).split("\n"):
            own.update(dict.fromkeys(_runs(piece), t))
    if not own:
        return None
    for tool in environment.tools(task.tools):
        for text in (tool.description, *(parameter.description for parameter in tool.parameters)):
            for run in _runs(text):
                own.pop(run, None)
    for text in (*texts_in(task.initial_state), *observed):
        for run in _runs(text):
            if run in own:
                return own[run], " ".join(run)
    return None


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    found = plain_words(text)
    return (found[k : k + COPIED] for k in range(len(found) - COPIED + 1))


NAMED = 0.7
"""Share of a tool's words, weighted by rarity among the tools on offer, that names it in a clause (our choice)."""

OF_ITS_OWN = 0.3
"""Share of them that no called tool's documentation has, too (our choice)."""

_QUOTED = re.compile(
    r"\"(?:[^\"\\]|\\[\s\S])*+(?:\"|(?P<open>\\?\Z))"
    r"|(?<!\w)(?:'[^'\n]+'|`[^`\n]+`|\u2018[^\u2018\u2019\n]+\u2019|\u201c[^\u201c\u201d\n]+\u201d)(?!\w)"
)
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)\b")
_LIMIT = re.compile(
    r"\b(?:below|under|over|above|than|least|most|between|exceed\w*|max\w*|min\w*|limit|budget)\W+(?:\w+\W+){0,2}$",
    re.IGNORECASE,
)
_BEFORE = 40  # characters in which a word before a number makes it a limit
_CLAUSE = re.compile(r"(?<=\w)[.;!?:](?=\s|$)|,|\band\b|\bthen\b|\bafter that\b", re.IGNORECASE)
_THEN = re.compile(r"\bthen\b|\bafter that\b", re.IGNORECASE)
_CONDITION = re.compile(r"\b(?:if|when|once|unless)\b", re.IGNORECASE)
_ASIDE = re.compile(r"\([^()]*\)")
_WORDINGS = 8  # of a call that are tried
_TRIMMED = " .,;:!?"


def unmet_request(played: PlayedReference) -> str | None:
    """Return a phrase for the first thing that a user turn asks for and no call does; None if nothing is found.

    Raises InputError for a tool that the environment does not have.
    """
    task, tools, seen = played.task, tools_of(played.environment, played.task), Seen()
    taken = [value for turn in task.reference for call in turn for value in _taken(call, tools[call.name])]
    for t, (text, turn) in enumerate(zip(task.turns, played.full.turns, strict=True), start=1):
        calls, observations = turn.calls, [observation.text for observation in turn.observations]
        for observed in observations[:-1]:
            seen.read(observed)
        values, prose = quotes(_without_documentation(text, calls, tools))
        for value in values:
            if not any(_is_text(value, given) for given in taken) and not seen.has(value.strip(_TRIMMED)):
                return f"turn {t} states {value!r:.80}, and no call takes it"
        for number in _plain_numbers(prose):
            if not any(_is_number(number, given) for given in taken) and not seen.has_number(number):
                return f"turn {t} states {number}, and no call takes it"
        for observed in observations[-1:]:
            seen.read(observed)
        if any(_runs_program(call, tools) for call in calls):
            continue
        passed_over = next(_passed_over(prose, calls, tools), None)
        if passed_over:
            return f"turn {t} states {passed_over}"
        named = _named(prose, task, calls, tools)
        if named:
            return f"turn {t} asks for {named}, which it does not call"
        steps = _steps(prose)
        if steps > len(calls):
            return f"turn {t} asks for {steps} steps, one after the other, and its calls are {len(calls)}"
    return None


def unasked_call(played: PlayedReference) -> str | None:
    """Return a phrase for the first call that its turn does not ask for; None if nothing is found.

    A call is needed where a later call fails, answers otherwise or has a value that cannot be found without it. Every
    other call is asked for. Raises InputError like ``Environment.open``.
    """
    environment, task = played.environment, played.task
    tools = tools_of(environment, task)
    everyday = benchmark_of(environment).everyday_groups
    for t, (text, calls) in enumerate(zip(task.turns, task.reference, strict=True)):
        if any(_runs_program(call, tools) for call in calls):
            continue
        prose = quotes(text)[1]
        # A value may be a clause of its own: 'make the folders "a" and "b"' asks for two calls.
        clauses = sum(
            bool(words(part)) for part in _CLAUSE.split(_ASIDE.sub(" ", _QUOTED.sub(" value ", _closed(text))))
        )
        said, seen = frozenset(words(prose)), Seen([text])
        strange = [
            said.isdisjoint(words(_documentation(tools[call.name])))
            and not any(seen.has(value) for argument in call.arguments.values() for value in leaves(argument))
            and said.isdisjoint(_own_words(environment, task, call))
            for call in calls
        ]
        if len(calls) <= clauses and not any(strange):
            continue
        unneeded = [
            c for c, call in enumerate(calls) if tools[call.name].group not in everyday and not _is_needed(played, t, c)
        ]
        for c in unneeded:
            if strange[c]:
                return f"turn {t + 1} has no word for {calls[c].name}, its call {c + 1}, and no later call needs it"
        several = len({calls[c].name for c in unneeded})  # one clause may ask for several calls of one tool
        if several > clauses:
            return f"turn {t + 1} calls {several} tools that no later call needs, and asks for {clauses} at most"
    return None


def _own_words(environment: Environment, task: TaskSpec, call: ToolCall) -> Iterator[str]:
    """Yield words that the environment has for a call; none for one that it cannot put into words."""
    alone = task.model_copy(update={"turns": ("",), "reference": ((call,),), "setup": (), "withheld": {}})
    benchmark = benchmark_of(environment)
    for seed in range(_WORDINGS):
        try:
            written = benchmark.render(environment, alone, random.Random(seed))
        except InputError:
            return
        yield from words(quotes(written.turns[0])[1])


def _runs_program(call: ToolCall, tools: Mapping[str, ToolSpec]) -> bool:
    return any(parameter.type == "code" for parameter in tools[call.name].parameters)


def _taken(call: ToolCall, tool: ToolSpec) -> Iterator[JsonValue]:
    """Yield the values of a call: its arguments, their keys, and the defaults of those that it leaves out."""
    for parameter in tool.parameters:
        if parameter.name not in call.arguments:
            yield from leaves(parameter.default)
    for argument in call.arguments.values():
        yield from leaves(argument)
        yield from argument if isinstance(argument, dict) else ()


def _without_documentation(text: str, calls: Iterable[ToolCall], tools: Mapping[str, ToolSpec]) -> str:
    """Return ``text`` without phrases of the called tools' documentation: "fan speed from 0 to 100" states no value."""
    for tool in {call.name: tools[call.name] for call in calls}.values():
        for description in (tool.description, *(parameter.description for parameter in tool.parameters)):
            phrase = DETAIL.split(description.strip(), maxsplit=1)[0]
            if len(words(phrase)) > 1 and re.search(r"[\d'\"`]", phrase):
                text = re.sub(re.escape(phrase), " ", text, flags=re.IGNORECASE)
    return text


def quotes(text: str) -> tuple[tuple[str, ...], str]:
    """Return the texts in quotes, and the prose around them. A double quote that nothing closes is left out."""
    found, text = [], _closed(text)
    for one in _QUOTED.finditer(text):
        quoted = one.group()
        try:
            value = json.loads(quoted)
        except ValueError:
            value = quoted[1:-1]
        if value.strip(_TRIMMED):
            found.append(value)
    return tuple(found), _QUOTED.sub(" ", text)


def _closed(text: str) -> str:
    """Return ``text`` with blanks for a double quote that nothing closes, and for all after it."""
    at = next((one.start() for one in _QUOTED.finditer(text) if one["open"] is not None), len(text))
    return text[:at] + text[at:].replace('"', " ")


def _plain_numbers(prose: str) -> Iterator[Decimal]:
    prose = _ORDINAL.sub(" ", DATE.sub(" ", prose))
    for found in NUMBER.finditer(prose):
        number = number_of(found.group())
        if number is not None and not _LIMIT.search(prose[max(0, found.start() - _BEFORE) : found.start()]):
            yield number


def _is_text(said: str, given: JsonValue) -> bool:
    """Return whether an argument is the said text, a part of it, or holds it."""
    if isinstance(given, bool) or given is None:
        return False
    if not isinstance(given, str):
        return Decimal(str(given)) in numbers(said) if isinstance(given, int | float) else False
    wanted, value = normal(said).strip(_TRIMMED), normal(given)
    return wanted == value or stands_in(wanted, value) or (bool(value) and stands_in(value, wanted))


def _is_number(said: Decimal, given: JsonValue) -> bool:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        return False
    return str(said) in given if isinstance(given, str) else Decimal(str(given)) == said


def _passed_over(prose: str, calls: tuple[ToolCall, ...], tools: Mapping[str, ToolSpec]) -> Iterator[str]:
    """Yield a phrase for each choice that the text states while a call takes one that it does not state."""
    text = f" {' '.join(words(prose))} "
    names = frozenset(word for call in calls for word in words(call.name))

    def stated(value: JsonValue) -> bool:
        stems = words(value) if isinstance(value, str) else ()
        return bool(stems) and not names.issuperset(stems) and f" {' '.join(stems)} " in text

    taken = [value for call in calls for argument in call.arguments.values() for value in leaves(argument)]
    for call in calls:
        for parameter in tools[call.name].parameters:
            given = [*leaves(call.arguments.get(parameter.name))]
            if not parameter.choices or not given or any(map(stated, given)):
                continue
            for choice in parameter.choices:
                if choice not in taken and stated(choice):
                    yield f"{choice!r:.80}, and {call.name} takes {given[0]!r:.80}"


def _named(prose: str, task: TaskSpec, calls: Iterable[ToolCall], tools: Mapping[str, ToolSpec]) -> str | None:
    """Return the first tool on offer that a clause names and the turn does not call."""
    called = {call.name for call in calls}
    titles = {name: f"{name} {SENTENCE_END.split(tools[name].description)[0]}" for name in task.tools}
    own = {name: frozenset(word for word in words(title) if len(word) > 1) for name, title in titles.items()}
    among = Counter(word for stems in own.values() for word in stems)
    explained = frozenset(word for name in called for word in words(_documentation(tools[name])))

    def weight(stems: Iterable[str]) -> float:
        return math.fsum(math.log((len(own) + 1) / among[word]) for word in stems)

    for said in dict.fromkeys(frozenset(words(clause)) for clause in _CLAUSE.split(prose)):
        for name, stems in own.items():
            if name in called or not stems:
                continue
            whole, hit = weight(stems), stems & said
            if len(hit) > 1 and weight(hit) >= NAMED * whole and weight(hit - explained) >= OF_ITS_OWN * whole:
                return name
    return None


def _documentation(tool: ToolSpec) -> str:
    return " ".join((tool.name, tool.description, *(f"{one.name} {one.description}" for one in tool.parameters)))


def _steps(prose: str) -> int:
    """Return how many steps the text asks for, one after the other; a sentence with a condition counts as none."""
    steps = 1
    for sentence in SENTENCE_END.split(prose):
        if not _CONDITION.search(sentence):
            steps += max(0, sum(bool(words(part)) for part in _THEN.split(sentence)) - 1)
    return steps


def _is_needed(played: PlayedReference, turn: int, call: int) -> bool:
    rest = played.rest(turn, call)
    position = sum(map(len, played.task.reference[:turn])) + call
    before = [observation for one in played.full.turns for observation in one.observations][position + 1 :]
    after = [observation for one in rest.turns for observation in one.observations][position:]
    return before != after or not played.is_grounded(rest)
