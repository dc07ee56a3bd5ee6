"""Write user turns in the words of people, each task in one user's style: by patterns of BFCL's own training turns.

A pattern is a training turn, or one of its sentences, with the values of its reference calls replaced by slots. It is
for calls of the same functions in the same order that give the same parameters. ``human_patterns.json`` has those of
the training indices of the category base, in bfcl-eval's words (Apache-2.0); commit 2e12b467 has the rules that read
them (ours). Users have a style: terse (a short command), indirect (a question or a wish) or chatty (several sentences).

Calls without a pattern have the words of the table (``templated.wordings``) behind a beginning that people use ("Could
you"). Words of order that people use join the parts of a turn of several calls. A value that the part or the turn
before named may be "the same file" where it is the only one of its kind there (ours), and an identifier that the turn
before returned is left unsaid where a pattern does so; a value that an earlier call of the task answers is "that
zipcode" (ours). What a turn says or leaves unsaid is grounded in the texts and
answers before it.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from pydantic import JsonValue

from environments.base import Environment, InputError, Record, ToolCall
from environments.bfcl.official import all_tools
from environments.bfcl.templated import wordings
from environments.task_text import Seen, Spec, documented, is_count, leaves
from environments.verification.canonical import read_fixed
from environments.verification.replay import replay

Style = Literal["terse", "indirect", "chatty"]
STYLES: tuple[Style, ...] = get_args(Style)

Place = tuple[int, str]
"""A call of a pattern, and one of its parameters."""


class Slot(Record):
    """The places whose one value fills it; ``quoted``: the turn had the value in quotes."""

    places: tuple[Place, ...]
    quoted: bool = False


class HumanPattern(Record):
    """A text for calls of the functions ``names``. It has one part more than slots, which stand between its parts.

    ``given`` are the parameters that each call gives, ``fixed`` the values that it must have, ``unsaid`` the
    identifiers that an earlier turn must have. ``source`` is the id of the training task.
    """

    source: str
    style: Style
    names: tuple[str, ...]
    parts: tuple[str, ...]
    slots: tuple[Slot, ...] = ()
    given: tuple[frozenset[str], ...]
    fixed: tuple[tuple[Place, JsonValue], ...] = ()
    unsaid: tuple[Place, ...] = ()

    def fits(self, calls: Sequence[ToolCall]) -> bool:
        """Return whether the calls give the same parameters, the fixed values, and equal values in shared slots."""
        if tuple(call.name for call in calls) != self.names:
            return False
        values = _values_of(calls)
        if tuple(frozenset(name for k, name in values if k == place) for place in range(len(calls))) != self.given:
            return False
        shared = all(values[slot.places[0]] == values[one] for slot in self.slots for one in slot.places[1:])
        fixed = ((values[place], value) for place, value in self.fixed)
        return shared and all(one == other and isinstance(one, bool) == isinstance(other, bool) for one, other in fixed)


class HumanWords(Record):
    """``human_patterns.json``: patterns, words of order ("After that"), and how a sentence begins to ask ("Could you").

    The words of order and of asking are sorted.
    """

    order: tuple[str, ...]
    asking: tuple[str, ...]
    patterns: tuple[HumanPattern, ...]

    def of(self, calls: Sequence[ToolCall]) -> tuple[HumanPattern, ...]:
        """Return the patterns for calls of these functions in this order."""
        names = tuple(call.name for call in calls)
        return tuple(one for one in self.patterns if one.names == names)


@cache
def human_words() -> HumanWords:
    """Return what the file has. Raises InputError when it is missing or altered."""
    return read_fixed(Path(__file__).with_name("human_patterns.json"), HumanWords)


_AGAIN = 0.6  # probability that a value of the turn before is referred to, where it can be
_WHOLE = 0.7  # probability that calls which one pattern can ask for are not asked for one by one
_JOINED = 0.5  # probability that two successive calls without a pattern share a sentence
_QUESTIONS = ("Can", "Could", "Would", "May")
_OBJECT = (  # what the table has before a name: "the item", "the now empty"
    r"(?:\bthe (?:(?!(?:of|to|in|on|by|for|from|with)\b)\w+ ){0,2})?"
    r"(?:\b(?:item|file|ticket|order|directory|stock|tweet|reservation|booking|trip) )?(?<!\w)"
)
_BARE = re.compile(r"[\w.#@/-]+")

# The thing that a parameter names, for "the same file".
_THINGS = {
    "file_name": "file",
    "dir_name": "directory",
    "folder": "directory",
    "symbol": "stock",
    "stock": "stock",
    "order_id": "order",
    "ticket_id": "ticket",
    "booking_id": "booking",
    "tweet_id": "tweet",
    "message_id": "message",
}
_NAMING = re.compile(
    r"(?:\b(?:file|document|stock|order|ticket|booking|directory|folder|id|number|name|named|called|titled|as|new|under)"
    r"[\s(]*)$",
    re.IGNORECASE,
)


def render_task(environment: Environment, spec: Spec, rng: random.Random) -> Spec:
    """Return ``spec`` with its user turns written in one style, drawn with ``rng``; equal arguments give equal text.

    Raises InputError like ``templated.wordings.render_task``.
    """
    style = rng.choice(STYLES)
    flags = wordings.forced_calls(environment, spec)
    turns: list[str] = []
    before = _Before()
    several = sum(map(len, spec.reference)) > 1
    observed = [[one.text for one in turn.observations] for turn in replay(environment, spec).turns] if several else []
    for t, (calls, forced) in enumerate(zip(spec.reference, flags, strict=True)):
        answers = observed[t] if several else [""]
        said = [(call, answer) for call, answer, unsaid in zip(calls, answers, forced, strict=True) if not unsaid]
        if not said:
            raise InputError(f"turn {t + 1} of the task has no call to say: give every turn of its reference a call")
        turns.append(_written([call for call, _ in said], [answer for _, answer in said], style, before, rng))
        before = before.after(turns[-1], calls, answers)
    return spec.model_copy(update={"turns": tuple(turns)})


class _Before:
    """The texts before a part of a turn, and the values of the part or turn before by the thing that they identify.

    ``answered`` are values that the calls before answered, each with its words ("zipcode").
    """

    def __init__(
        self,
        texts: Sequence[str] = (),
        answers: Sequence[str] = (),
        named: Mapping[str, set[str]] | None = None,
        answered: Mapping[str, str] | None = None,
    ) -> None:
        self._texts, self._answers = tuple(texts), tuple(answers)
        self._named = named or {}
        self._answered = answered or {}
        self.seen = Seen((*texts, *answers))

    def after(self, text: str, calls: Sequence[ToolCall], answers: Sequence[str]) -> _Before:
        """Return what is before the next part or turn: the text, its calls and their answers are added."""
        named: defaultdict[str, set[str]] = defaultdict(set)
        answered = dict(self._answered)
        for call, answer in zip(calls, answers, strict=True):
            fields = [*_fields(call, answer)]
            identifying = [one for one in fields if one[0].endswith(_IDENTIFYING)]
            for name, value in (*call.arguments.items(), *identifying):
                named[_kind(name)].add(str(value))
            answered |= {str(value): _thing(name) for name, value in fields if not _common(value)}
        return _Before((*self._texts, text), (*self._answers, *answers), named, answered)

    def only(self, parameter: str, value: JsonValue) -> bool:
        """Return whether the value was seen, and the part or turn before has no other of the parameter's kind."""
        return self._named.get(_kind(parameter)) == {str(value)} and self.seen.has(value)

    def may_refer(self, parameter: str, value: JsonValue, rng: random.Random) -> str | None:
        """Return a reference to the value, such as "that file", where there may be one and ``rng`` wants it.

        What a call answers and nobody said is always referred to, where it is the only such thing.
        """
        answered = self._answered.get(str(value))
        if answered and [*self._answered.values()].count(answered) == 1 and not Seen(self._texts).has(value):
            return f"that {answered}"
        if parameter not in _THINGS or not self.only(parameter, value) or rng.random() >= _AGAIN:
            return None
        return f"{rng.choice(('the same', 'that'))} {_THINGS[parameter]}"


def _written(
    calls: Sequence[ToolCall], answers: Sequence[str], style: Style, before: _Before, rng: random.Random
) -> str:
    """Write a turn: in parts, each of a pattern or of successive calls that have none."""
    text = ""
    place = 0
    while place < len(calls):
        lengths = [n for n in range(len(calls) - place, 0, -1) if _options(calls[place : place + n], before)]
        length = (lengths[0] if rng.random() < _WHOLE else lengths[-1]) if lengths else 1
        wanted, part = calls[place : place + length], None
        # The table counts as one more pattern, or a function with one would always be asked for in its words.
        if rng.random() * (len(_options(wanted, before)) + 1) > 1:
            part = _pattern_text(wanted, style, before, rng)
        if part is None:
            pair = calls[place : place + 2]
            patternless = length == 1 and len(pair) == 2 and not any(human_words().of((call,)) for call in pair)
            length = 2 if patternless and rng.random() < _JOINED else 1
            part = _from_table(calls[place : place + length], answers[place : place + length], style, before, rng)
        place += length
        before = before.after(part, calls[place - length : place], answers[place - length : place])
        text += f" {_in_order(part, last=place == len(calls), rng=rng)}" if text else part
    return text


def _in_order(part: str, *, last: bool, rng: random.Random) -> str:
    """Return a further part behind a word of order; "Finally" is for the last one."""
    words = [one for one in human_words().order if last or not one.startswith("Final")]
    keeps = part.startswith(("I ", "I'"))
    return f"{rng.choice(words)}, {part if keeps else part[0].lower() + part[1:]}"


def _options(calls: Sequence[ToolCall], before: _Before) -> list[HumanPattern]:
    values = _values_of(calls)
    fitting = (one for one in human_words().of(calls) if one.fits(calls))
    return [one for one in fitting if all(before.only(name, values[k, name]) for k, name in one.unsaid)]


def _pattern_text(calls: Sequence[ToolCall], style: Style, before: _Before, rng: random.Random) -> str | None:
    """Fill a pattern, of the style where there is one; None where the text would not hold the calls' values."""
    options = _options(calls, before)
    pattern = rng.choice([one for one in options if one.style == style] or options)
    values = _values_of(calls)
    text = pattern.parts[0]
    for slot, part in zip(pattern.slots, pattern.parts[1:], strict=True):
        name, value = slot.places[0][1], values[slot.places[0]]
        reference = None if _NAMING.search(text) else before.may_refer(name, value, rng)
        text += f"{reference or _said(value, slot.quoted)}{part}"
    seen = Seen((text,))
    for (k, name), value in values.items():
        tool = all_tools()[calls[k].name]
        parameter = tool.parameter(name)
        for leaf in leaves(value):
            known = parameter is not None and documented(leaf, tool, parameter)
            if not (known or seen.has(leaf) or before.seen.has(leaf)):
                return None
    return text[0].upper() + text[1:]


def _fields(call: ToolCall, answer: str) -> Iterator[tuple[str, JsonValue]]:
    """Yield the scalars at the top of a call's answer, by name: an "id" is that of the call's last word."""
    try:
        fields = json.loads(answer)
    except ValueError:
        return
    for key, value in fields.items() if isinstance(fields, dict) else ():
        name = f"{call.name.rpartition('_')[2]}_id" if key == "id" else key
        for leaf in value if isinstance(value, list) else [value]:
            if isinstance(leaf, str | int | float):
                yield name, leaf


_IDENTIFYING = ("_id", "_token")


def _thing(name: str) -> str:
    return re.sub(r"_|(?<=[a-z])(?=[A-Z])", " ", re.sub(r"_(?:id|list)$", "", name)).lower()


def _common(value: JsonValue) -> bool:
    """Return whether many answers have a value by chance: a boolean, a small number, a status."""
    if isinstance(value, int | float):
        return is_count(value)
    return isinstance(value, str) and not _BARE.fullmatch(value)


def _kind(parameter: str) -> str:
    """Return what a parameter names: "file" of file_name and file_name1, "order" of order_id."""
    thing = re.sub(r"_?(?:name|id)?\d*$", "", parameter).replace("_", " ")
    return _THINGS.get(parameter) or thing or parameter


def _values_of(calls: Sequence[ToolCall]) -> dict[Place, JsonValue]:
    """Return the arguments by place; one that is null counts as not given."""
    return {(k, name): v for k, call in enumerate(calls) for name, v in call.arguments.items() if v is not None}


def _said(value: JsonValue, quoted: bool) -> str:
    """Write a value as people do: numbers bare, texts in quotes where the turn had them or a reader needs them."""
    if isinstance(value, list):
        items = [_said(item, quoted) for item in value]
        return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value)
    if not quoted and _BARE.fullmatch(text) and isinstance(value, str | int | float):
        return text
    return f'"{text}"' if "'" in text else f"'{text}'"


def _from_table(
    calls: Sequence[ToolCall], answers: Sequence[str], style: Style, before: _Before, rng: random.Random
) -> str:
    """Write calls in the words of the table, with references, and texts in single quotes where they have none."""
    clauses = []
    for call, answer in zip(calls, answers, strict=True):
        clause = wordings.clause(call, rng)
        for name, value in call.arguments.items():
            said = json.dumps(value, ensure_ascii=False)
            reference = before.may_refer(name, value, rng) if clause.count(said) == 1 else None
            found = re.search(rf"{_OBJECT}{re.escape(said)}(?!\w)", clause) if reference else None
            if found:
                clause = f"{clause[: found.start()]}{reference}{clause[found.end() :]}"
        clauses.append(clause if "\\" in clause or "'" in clause else clause.replace('"', "'"))
        before = before.after(clause, [call], [answer])
    text = rng.choice((" and ", " and then ", ", then ")).join(clauses)
    if style == "terse":
        return f"{text[0].upper()}{text[1:]}."
    opening = rng.choice(human_words().asking)
    return f"{opening} {text}{'?' if opening.startswith(_QUESTIONS) else '.'}"
