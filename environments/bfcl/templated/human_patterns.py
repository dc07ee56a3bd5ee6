"""Learn how people ask for calls: patterns of BFCL's own training turns, read by rule at load time.

A pattern is a training turn, or one of its sentences, with the values of its reference calls replaced by slots. It is
for calls of the same functions in the same order that give the same parameters. The rules (ours):

- a value is a slot where the text has it exactly once, as a word, a number, a date or a list of items; equal values of
  several calls share a slot. A value that the text does not have must be documented (then the pattern is for that value
  alone) or be an identifier or a file's name (then the pattern is for what follows a part or turn in which it is the
  only one of its kind, and its text refers to the thing: "the flight reservation I just made");
- a sentence that has a name, a number or a quoted text of its own is left out where it has no slot and the turn has one
  call; else there is no pattern;
- a pattern has a sentence that asks for something. Where each sentence that asks is about the next call, each is a
  pattern, too;
- calls that a precondition forces are not in the text (``environments.task_text``), nor are those without a value in it
  that a later call of the turn fails without;
- words of order at the beginning ("After that,") are taken off.

Users have a style: terse (a short command), indirect (a question or a wish) or chatty (several sentences). Only
training indices of the category base are read.
"""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple

from pydantic import JsonValue

from environments.base import ToolCall
from environments.bfcl.docs import all_tools
from environments.bfcl.official import load_category
from environments.bfcl.templated import wordings
from environments.task_text import caused_errors
from environments.verification.grounding import NUMBER, documented, leaves, number_of

Style = Literal["terse", "indirect", "chatty"]
STYLES: tuple[Style, ...] = ("terse", "indirect", "chatty")

_MARK = re.compile("\0(\\d+)\0")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_OWN_VALUE = re.compile(r"\d|[#@`“”\"]|(?<!\w)'|'(?!\w)")
_NAME = re.compile(r"(?<=[a-z,;:)\0-] )[A-Z]\w+")
_WISH = re.compile(
    r"\?|\b(?:could|would|can|may|might) (?:you|we|i|it)\b|\bI(?:'d| would) (?:like|be)\b|\bappreciate"
    r"|\bI (?:need you|want|require|could (?:really )?use)\b",
    re.IGNORECASE,
)
_ASKING = re.compile(
    r"(?:^|, )((?:(?:could|would|can) you (?:please |kindly |be able to )?|I'd (?:really )?appreciate it if you could "
    r"|I need you to |please |kindly ))[a-z]",
    re.IGNORECASE,
)
_DATE = re.compile(
    r"\b(?P<month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* (?P<day>\d{1,2})(?:st|nd|rd|th)?,? "
    r"(?P<year>\d{4})\b"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_BETWEEN_ITEMS = re.compile(r"[\s,'\"&]*(?:and)?[\s,'\"&]*")
_split = re.compile(r"\S+").findall
_ORDER = frozenset(
    _split(
        "additionally after afterwards also all done finally following it it's is lastly next once set subsequently "
        "that that's then this"
    )
)
# First words of a sentence that states something, and of one whose first clause does.
_STATES = frozenset(
    _split(
        "a all an and apparently engaging for from he her his i i'd i'll i'm i've if in it it's its just my no oh one "
        "our she something's that the there these they this those we we'd we'll we're we've what with you your"
    )
)
_SUBORDINATES = frozenset(
    _split(
        "after as because before by concerning following for from given great having hey hi if in now once reflecting "
        "since to upon when while with"
    )
)
_OPENING = re.compile(r"([A-Z][A-Za-z' ]{2,30}), ")
_QUOTES = "'\"`"
_FEWEST_LETTERS = 5  # of a documented word that is read as a value and not as a word of the sentence
_TERSE_WORDS = 14
_REFERS = r"\b(?:the|this|that|my|our|its|it|these|those)\b"
_NOUNS = {"booking": "booking|reservation|flight|trip", "tweet": "tweet|post"}

Place = tuple[int, str]
"""A call of a pattern, and one of its parameters."""
Values = Mapping[Place, JsonValue]


class Slot(NamedTuple):
    """The places whose one value fills it; ``quoted``: the turn had the value in quotes."""

    places: tuple[Place, ...]
    quoted: bool


class HumanPattern(NamedTuple):
    """A text for calls of the functions ``names``. It has one part more than slots, which stand between its parts.

    ``given`` are the parameters that each call gives, ``fixed`` the values that it must have, ``unsaid`` the
    identifiers that an earlier turn must have. ``source`` is the id of the training task.
    """

    names: tuple[str, ...]
    parts: tuple[str, ...]
    slots: tuple[Slot, ...]
    given: tuple[frozenset[str], ...]
    fixed: tuple[tuple[Place, JsonValue], ...]
    unsaid: tuple[Place, ...]
    style: Style
    source: str

    @property
    def text(self) -> str:
        """The text with {parameter} in its slots."""
        filled = (f"{{{'='.join(name for _, name in slot.places)}}}" for slot in self.slots)
        return "".join(one for pair in zip(self.parts, (*filled, ""), strict=True) for one in pair)

    def fits(self, calls: Sequence[ToolCall]) -> bool:
        """Return whether the calls give the same parameters, the fixed values, and equal values in shared slots."""
        if tuple(call.name for call in calls) != self.names:
            return False
        values = values_of(calls)
        if tuple(frozenset(name for k, name in values if k == place) for place in range(len(calls))) != self.given:
            return False
        shared = all(values[slot.places[0]] == values[one] for slot in self.slots for one in slot.places[1:])
        return shared and all(_equal(values[place], value) for place, value in self.fixed)


@cache
def patterns() -> Mapping[tuple[str, ...], tuple[HumanPattern, ...]]:
    """Return the patterns of the training turns by the functions that they ask for. Raises InputError without BFCL."""
    from environments.bfcl.environment import BFCLEnvironment

    environment = BFCLEnvironment()
    found: defaultdict[tuple[str, ...], dict[str, HumanPattern]] = defaultdict(dict)
    for task in load_category("base", ("train",)):
        flags = wordings.forced_calls(environment, task.spec)
        names = _state_names(task.spec.initial_state)
        for t, (text, calls) in enumerate(zip(task.spec.turns, task.spec.reference, strict=True)):
            said = [
                call
                for k, call in enumerate(calls)
                if not (flags[t][k] or (_is_unsaid(call, text) and caused_errors(environment, task.spec, t, k)))
            ]
            for pattern in _read(text, said, task.id, names) if said else ():
                found[pattern.names].setdefault(pattern.text, pattern)
    return {names: tuple(alike.values()) for names, alike in found.items()}


@cache
def order_words() -> tuple[str, ...]:
    """Return the openings of training sentences that are made of words of order alone, such as "After that"."""
    texts = (text for task in load_category("base", ("train",)) for text in task.spec.turns)
    openings = {opening for text in texts for part in _SENTENCE.split(text) if (opening := _opening(part))}
    return tuple(sorted(openings))


@cache
def asking_words() -> tuple[str, ...]:
    """Return how training sentences begin to ask, such as "Could you"."""
    texts = (text for task in load_category("base", ("train",)) for text in task.spec.turns)
    found = {match.strip() for text in texts for part in _SENTENCE.split(text) for match in _ASKING.findall(part)}
    return tuple(sorted({one[0].upper() + one[1:] for one in found}))


@cache
def _known_names() -> frozenset[str]:
    """Return the words that training turns have behind the beginning of a sentence, and always with a capital."""
    texts = [text for task in load_category("base", ("train",)) for text in task.spec.turns]
    small = {word for text in texts for word in re.findall(r"\b[a-z]+", text)}
    return frozenset(name for text in texts for name in _NAME.findall(text) if name.lower() not in small)


def _read(text: str, calls: Sequence[ToolCall], source: str, names: frozenset[str]) -> Iterator[HumanPattern]:
    """Yield the patterns of a turn: the whole, its sentences with slots, and those of each call where it has its own.

    ``names`` are those of the start state, which the text may have in lower case.
    """
    marked = _marked(text, calls)
    if marked is None:
        return
    body, slots, fixed, unsaid = marked
    sentences = _SENTENCE.split(body)
    plain = [one for one in sentences if not _has_own_values(one, calls, names)]
    spoken = [one for one in sentences if _MARK.search(one)]
    asking = [one for one in plain if _asks(one)]
    several = len(calls) > 1
    if not asking or not set(spoken) <= set(plain) or (several and plain != sentences):
        return
    if unsaid and not all(_refers_to(name, " ".join(plain)) for _, name in unsaid):
        return
    short = () if several or unsaid or fixed or not any(map(_asks, spoken)) else (" ".join(spoken),)
    for one in dict.fromkeys((" ".join(plain), *short)):
        yield _pattern(one, calls, range(len(calls)), slots, fixed, unsaid, source)
    own = several and len(asking) == len(calls) and set(spoken) <= set(asking) and not unsaid
    if own and all(_calls_in(one, slots) <= {k} for k, one in enumerate(asking)):
        for k, one in enumerate(asking):
            yield _pattern(one, calls, (k,), slots, fixed, (), source)


def _is_unsaid(call: ToolCall, text: str) -> bool:
    """Return whether a call has arguments, and the text has none of their values."""
    return bool(call.arguments) and not any(_spans(value, text) for value in call.arguments.values())


def _marked(
    text: str, calls: Sequence[ToolCall]
) -> tuple[str, list[Slot], list[tuple[Place, JsonValue]], list[Place]] | None:
    """Replace the calls' values by marks. Return the text, its slots, the fixed values and the unsaid identifiers."""
    found: defaultdict[tuple[int, int], list[Place]] = defaultdict(list)
    fixed: list[tuple[Place, JsonValue]] = []
    unsaid: list[Place] = []
    for place, value in values_of(calls).items():
        tool = all_tools()[calls[place[0]].name]
        parameter = tool.parameter(place[1])
        spans = _spans(value, text)
        if parameter is not None and _is_word_of_the_sentence(value, parameter.choices, spans, text):
            spans = []
        if len(spans) == 1:
            found[spans[0]].append(place)
        elif not spans and parameter is not None and all(documented(one, tool, parameter) for one in leaves(value)):
            fixed.append((place, value))
        elif not spans and (place[1].endswith(("_id", "_token")) or thing(place[1]) == "file"):
            unsaid.append(place)
        else:
            return None
    order = sorted(found)
    if any(end > start for (_, end), (start, _) in pairwise(order)):
        return None
    slots, body, last = [], "", 0
    for number, (start, end) in enumerate(order):
        quoted = start > 0 and end < len(text) and text[start - 1] in _QUOTES and text[end] == text[start - 1]
        slots.append(Slot(tuple(found[start, end]), quoted))
        body += f"{text[last : start - quoted]}\0{number}\0"
        last = end + quoted
    return body + text[last:], slots, fixed, unsaid


def _spans(value: JsonValue, text: str) -> list[tuple[int, int]]:
    """Return where the text has the value."""
    if isinstance(value, bool) or value is None or isinstance(value, dict):
        return []
    if isinstance(value, int | float):
        wanted = number_of(str(value))
        return [match.span() for match in NUMBER.finditer(text) if number_of(match.group()) == wanted]
    if isinstance(value, list):
        each = [_spans(item, text) for item in value]
        if not each or any(len(spans) != 1 for spans in each):
            return []
        spans = sorted(one for (one,) in each)
        gaps = [text[end:start] for (_, end), (start, _) in pairwise(spans)]
        return [(spans[0][0], spans[-1][1])] if all(map(_BETWEEN_ITEMS.fullmatch, gaps)) else []
    dates = [match.span() for match in _DATE.finditer(text) if _iso(match) == value]
    for form in (value, value.lstrip("#@")):
        spans = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(form)}(?!\w)", text, re.IGNORECASE)] if form else []
        if spans or dates:
            return [*spans, *dates]
    return []


def _is_word_of_the_sentence(
    value: JsonValue, choices: Sequence[JsonValue], spans: Sequence[tuple[int, int]], text: str
) -> bool:
    """Return whether a documented choice is a short word of the sentence ("switch on"), not a value named in it."""
    if value not in choices or isinstance(value, list):
        return False
    quoted = any(text[max(0, start - 1) : start] in tuple(_QUOTES) for start, _ in spans)
    return not quoted and len(str(value)) < _FEWEST_LETTERS


def _pattern(
    text: str,
    calls: Sequence[ToolCall],
    kept: Sequence[int],
    slots: Sequence[Slot],
    fixed: Sequence[tuple[Place, JsonValue]],
    unsaid: Sequence[Place],
    source: str,
) -> HumanPattern:
    """Return the pattern of a text with marks for the calls at ``kept``, which it numbers from 0."""
    number = {k: position for position, k in enumerate(kept)}
    opening = _opening(text)
    text = text.removeprefix(f"{opening}, ") if opening else text
    pieces = _MARK.split(text.strip())
    parts = list(pieces[::2])
    parts[-1] += "" if parts[-1].rstrip().endswith((".", "!", "?")) else "."
    chosen = [slots[int(one)] for one in pieces[1::2]]
    return HumanPattern(
        names=tuple(calls[k].name for k in kept),
        parts=tuple(parts),
        slots=tuple(
            Slot(tuple((number[k], name) for k, name in slot.places if k in number), slot.quoted) for slot in chosen
        ),
        given=tuple(frozenset(name for name, value in calls[k].arguments.items() if value is not None) for k in kept),
        fixed=tuple(((number[k], name), value) for (k, name), value in fixed if k in number),
        unsaid=tuple((number[k], name) for k, name in unsaid),
        style=_style(text),
        source=source,
    )


def _style(text: str) -> Style:
    if len(_SENTENCE.split(text.strip())) > 1:
        return "chatty"
    if _WISH.search(text):
        return "indirect"
    return "terse" if len(text.split()) <= _TERSE_WORDS else "chatty"


def _opening(sentence: str) -> str:
    found = _OPENING.match(sentence)
    return found.group(1) if found and _ORDER.issuperset(found.group(1).lower().split()) else ""


def _calls_in(sentence: str, slots: Sequence[Slot]) -> set[int]:
    return {k for mark in _MARK.findall(sentence) for k, _ in slots[int(mark)].places}


def _has_own_values(sentence: str, calls: Sequence[ToolCall], names: frozenset[str]) -> bool:
    """Return whether a sentence has values beside its marks: numbers, quotes, or names that no documentation has."""
    bare = _MARK.sub("\0", sentence)
    words = re.findall(r"[A-Za-z][\w'-]*", bare)
    if _OWN_VALUE.search(bare) or not names.isdisjoint(word.lower() for word in words):
        return True
    if any(" " in name and name in bare.lower() for name in names):
        return True
    known = " ".join(f"{call.name} {all_tools()[call.name].description}" for call in calls).lower()
    capitals = [*_NAME.findall(bare), *(word for word in words[:1] if word in _known_names())]
    return any(name.lower() not in known for name in capitals)


def _asks(sentence: str) -> bool:
    """Return whether a sentence is a question, a wish or a command: one does not begin like a statement."""
    if _WISH.search(sentence):
        return True
    words = sentence.lower().split()
    if words and words[0] in _SUBORDINATES and "," in sentence:
        words = sentence.lower().split(",", 1)[1].split()
    return bool(words) and not words[0].startswith("\0") and words[0] not in _STATES


def _state_names(initial_state: JsonValue) -> frozenset[str]:
    """Return the names of the files and directories of a start state, with and without their endings."""
    found: set[str] = set()
    for name, child in initial_state.items() if isinstance(initial_state, dict) else ():
        if isinstance(child, dict) and "type" in child:
            stem = name.lower().partition(".")[0]
            found |= {name.lower(), stem, stem.replace("_", " ")}
        found |= _state_names(child)
    return frozenset(found)


def _refers_to(parameter: str, text: str) -> bool:
    """Return whether the text refers to what an identifier identifies; an access token needs no words."""
    noun = thing(parameter)
    nouns = _NOUNS.get(noun, noun)
    return (
        noun == "access token"
        or re.search(rf"{_REFERS}(?: (?!first\b)[\w-]+){{0,3}}? (?:{nouns})\b", text, re.IGNORECASE) is not None
    )


def thing(parameter: str) -> str:
    """Return what a parameter names: "file" of file_name and file_name1, "order" of order_id."""
    return re.sub(r"_?(?:name|id)?\d*$", "", parameter).replace("_", " ") or parameter


def values_of(calls: Sequence[ToolCall]) -> dict[Place, JsonValue]:
    """Return the arguments by place; one that is null counts as not given."""
    return {(k, name): v for k, call in enumerate(calls) for name, v in call.arguments.items() if v is not None}


def _equal(left: JsonValue, right: JsonValue) -> bool:
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _iso(match: re.Match[str]) -> str:
    try:
        date = datetime.date(int(match["year"]), _MONTHS.index(match["month"]) + 1, int(match["day"]))
    except ValueError:
        return ""
    return date.isoformat()
