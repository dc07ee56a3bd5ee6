"""Check grounding: arguments of a reference come from the text that the agent sees, and user turns from nowhere else.

Every argument appears in text that the agent has seen before the call.

An agent sees the user turns so far, the observations of its earlier calls and the documentation of its tools; it
never sees the setup. The rule (our choice):

- a string is found when it appears in a user turn or an observation as a whole, ignoring case and the amount of white
  space, and not as a part of a longer word; or when it is a choice or the default of the parameter, or appears in
  quotes in the description of the parameter or of the call's tool;
- a number is found by value (30 is 30.0, and "1,500" is 1500) in a user turn or an observation; or when it is a choice
  or the default of the parameter, or appears in its description; the parts of an ISO date do not count, or
  birthdays would ground the small ids that apps count with;
- booleans and null are always documented; items of lists and values of objects are looked up one by one;
- of a program (a parameter of type code) the literals are looked up one by one (``verification.programs`` has the
  rule); an argument of a tool is also found where that tool's documentation states it for the parameter, and a string
  where it is the group of a tool that the reference's programs call.

The environment's text before the first turn (``UserTurn.preface``) does not count as seen.

User turns are plain requests (``foreign_text``). Who writes them can be misled by what it reads: a text in the
environment may ask it to repeat instructions or to close a tag of its prompt. Turns become prompts and training text,
so they are checked like arguments. The rules (ours):

- a turn has no control, format or private-use characters beside line ends, tabs and the joiners of scripts and emoji;
- it has no markup: nothing between angle brackets, no special token of a chat template, no call in the embedded
  policy's notation. What a call of the reference takes as its value may have angle or square brackets;
- it shares no run of ``COPIED`` words with the start state or an observation, unless a call takes them as its value or
  the documentation has them, too.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation

from pydantic import JsonValue

from environments.base import Environment, Parameter, TaskSpec, ToolSpec
from environments.verification.canonical import texts_in, words

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?")
DATE = re.compile(r"(?<!\d)\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?)?(?!\d)")
_LITERAL = re.compile(r'"(?:[^"\\]|\\[\s\S])*+(?:"|\\?\Z)')  # an open one ends the text: it is read once
_QUOTED = re.compile(r"(?<!\w)(?:\"([^\"]+)\"|'([^']+)'|`([^`]+)`)(?!\w)")


class Seen:
    """The texts that an agent has read, ready for look-ups."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts: list[str] = []
        self._numbers: set[Decimal] = set()
        for text in texts:
            self.read(text)

    def read(self, text: str) -> None:
        """Add a user turn or an observation; for JSON text or literals also the strings without escapes."""
        for version in (text, *_unescaped(text)):
            self._texts.append(normal(version))
            self._numbers.update(numbers(version))

    def has(self, value: JsonValue) -> bool:
        """Return whether the string or number appears in a text that was read; False for any other value."""
        if isinstance(value, str):
            wanted = normal(value)
            return bool(wanted) and any(stands_in(wanted, text) for text in self._texts)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.has_number(Decimal(str(value)))

    def has_number(self, number: Decimal) -> bool:
        """Return whether the number appears in a text that was read."""
        return number in self._numbers


def documented(value: JsonValue, tool: ToolSpec, parameter: Parameter) -> bool:
    """Return whether the documentation of ``tool`` states ``value`` (not a list or an object) for ``parameter``.

    What is documented within an object or an array counts for the whole parameter.
    """
    if value is None or isinstance(value, bool):
        return True
    return any(_states(value, tool, one) for one in parameter.nested())


def _states(value: JsonValue, tool: ToolSpec, parameter: Parameter) -> bool:
    stated = [*parameter.choices, *leaves(parameter.default)]
    if any(value == known and not isinstance(known, bool) for known in stated):
        return True
    if isinstance(value, str):
        quoted = (*_quotes(tool.description), *_quotes(parameter.description))
        return any(normal(value) == normal(text) for text in quoted)
    return isinstance(value, int | float) and Decimal(str(value)) in numbers(parameter.description)


def leaves(value: JsonValue) -> Iterator[JsonValue]:
    """Yield the items of lists and the values of objects, however deep; any other value itself."""
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def _unescaped(text: str) -> tuple[str, ...]:
    if "\\" not in text:
        return ()
    try:
        return tuple(leaf for leaf in leaves(json.loads(text)) if isinstance(leaf, str))
    except (ValueError, RecursionError):
        return tuple(_literals(text))


def _literals(text: str) -> Iterator[str]:
    """Yield the JSON string literals in a text, without their escapes; templated turns quote values this way."""
    for literal in _LITERAL.findall(text):
        try:
            yield json.loads(literal)
        except ValueError:
            continue


def normal(text: str) -> str:
    """Return ``text`` in lower case with single blanks."""
    return " ".join(text.casefold().split())


def numbers(text: str) -> set[Decimal]:
    """Return the numbers in ``text``; the parts of an ISO date do not count."""
    return {number for match in NUMBER.findall(DATE.sub(" ", text)) if (number := number_of(match)) is not None}


def number_of(match: str) -> Decimal | None:
    """Return the number that ``NUMBER`` found: "1,500" is 1500. None for an exponent that no number here has."""
    try:
        return Decimal(match.replace(",", ""))
    except InvalidOperation:
        return None


def _quotes(text: str) -> Iterator[str]:
    for groups in _QUOTED.findall(text):
        yield from filter(None, groups)


def stands_in(wanted: str, text: str) -> bool:
    """Return whether ``wanted`` occurs in ``text`` with no letter, digit or underscore right before or after it."""
    start = text.find(wanted)
    while start != -1:
        end = start + len(wanted)
        if not (start > 0 and _in_word(text[start - 1])) and not (end < len(text) and _in_word(text[end])):
            return True
        start = text.find(wanted, start + 1)
    return False


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"


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
    """Return ``text`` with a line end for each of the values in it."""
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
    found = words(text)
    return (found[k : k + COPIED] for k in range(len(found) - COPIED + 1))
