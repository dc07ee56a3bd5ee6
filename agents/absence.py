"""Make tasks in which nothing can be called at first out of finished drafts of one user turn (ours).

The papers have no such tasks. A draft becomes a task of two turns, whose first has an empty reference and whose second
has the draft's calls:

- *missing detail*: the first turn asks for the calls without the value of an argument that the first call requires;
  the second gives the value, as people answer to a question back. The abstractor words the first turn
  (``Wording.reworded``), because it has the words of the whole;
- *withheld tool*: the first turn has the draft's words, and the tool of the first call is on offer from the second on,
  which says that it can be done now.

It is the first call that lacks something, so that no step of the request can be made before the second turn.
Verification decides whether it really does (``environments.verification.absence``).
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from pydantic import JsonValue

from environments.base import Environment, Parameter, ToolCall, ToolSpec
from environments.task_text import DETAIL, Seen, documented, first_sentence
from memory.records import Draft, FailureContext, Interaction


class Wording(Protocol):
    """An abstractor that can word the calls of its drafts without one of their values."""

    async def abstract(
        self, context: FailureContext, interactions: Sequence[Interaction], environment: Environment, seed: int
    ) -> tuple[Draft, ...]:
        """Return drafts of one user turn or several."""
        ...

    def reworded(self, draft: Draft, missing: JsonValue, environment: Environment, rng: random.Random) -> Draft | None:
        """Return ``draft`` with words that ask for its calls without the value ``missing``; None without such words."""
        ...


class AbsenceAbstractor:
    """Abstractor of another one's drafts, a ``share`` of which become tasks in which something is missing at first."""

    def __init__(self, inner: Wording, share: float) -> None:
        self.inner = inner
        self._share = share

    async def abstract(
        self, context: FailureContext, interactions: Sequence[Interaction], environment: Environment, seed: int
    ) -> tuple[Draft, ...]:
        """Return the drafts in their order, with their ids and parents. Equal arguments give equal drafts."""
        drafts = await self.inner.abstract(context, interactions, environment, seed)
        return await asyncio.to_thread(self._changed, drafts, environment, random.Random(seed))

    def _changed(self, drafts: Sequence[Draft], environment: Environment, rng: random.Random) -> tuple[Draft, ...]:
        return tuple(
            (rng.random() < self._share and with_absence(draft, self.inner, environment, rng)) or draft
            for draft in drafts
        )


def with_absence(draft: Draft, wording: Wording, environment: Environment, rng: random.Random) -> Draft | None:
    """Return ``draft`` as a task in which a detail or a tool is missing at first; None where neither can be.

    Which of the two is tried first is drawn. Programs are left out: they find missing details themselves.
    """
    if len(draft.turns) != 1 or draft.withheld or draft.played:
        return None
    (tool,) = environment.tools((draft.reference[0][0].name,))
    if tool.program is not None:
        return None

    def of_detail() -> Draft | None:
        return without_detail(draft, tool, wording, environment, rng)

    def of_tool() -> Draft | None:
        return without_tool(draft, rng)

    first, second = rng.sample((of_detail, of_tool), 2)
    return first() or second()


_NOW = (
    "You should be able to do that now, please go ahead.",
    "That should be possible now. Please go ahead with it.",
    "It should work now, could you do it?",
    "You can do that now, please.",
)


def without_tool(draft: Draft, rng: random.Random) -> Draft | None:
    """Return ``draft`` with the tool of its first call on offer from a second turn on; None where no tool is left."""
    name = draft.reference[0][0].name
    if not set(draft.tools) - {name}:
        return None
    return _in_two(draft, draft.turns[0], rng.choice(_NOW)).model_copy(update={"withheld": {1: (name,)}})


def without_detail(
    draft: Draft, tool: ToolSpec, wording: Wording, environment: Environment, rng: random.Random
) -> Draft | None:
    """Return ``draft`` with a value of its first call said in a second turn; None where no value can be left out."""
    (words,) = draft.turns
    details = [*_details(draft.reference[0][0], tool, words)]
    for parameter, value in rng.sample(details, len(details)):
        said = places_of(value, words)
        rest = wording.reworded(draft, value, environment, rng) if said else None
        if rest is not None and not Seen(rest.turns).has(value):
            return _in_two(rest, rest.turns[0], _answer(parameter, tool, words[slice(*said[0])], rng))
    return None


def without_value(calls: Sequence[ToolCall], value: JsonValue) -> tuple[ToolCall, ...]:
    """Return the calls without the arguments that are ``value``."""

    def is_it(other: JsonValue) -> bool:
        return other == value and isinstance(other, str) is isinstance(value, str) and not isinstance(other, bool)

    return tuple(
        call.model_copy(update={"arguments": {name: one for name, one in call.arguments.items() if not is_it(one)}})
        for call in calls
    )


def _details(call: ToolCall, tool: ToolSpec, words: str) -> Iterator[tuple[Parameter, JsonValue]]:
    """Yield the parameters that a call has to be given, with the values that its words have and nothing else states."""
    seen = Seen([words])
    for parameter in tool.parameters:
        value = call.arguments.get(parameter.name)
        if parameter.required and seen.has(value) and not documented(value, tool, parameter):
            yield parameter, value


def _in_two(draft: Draft, words: str, answer: str) -> Draft:
    return draft.model_copy(update={"turns": (words, answer), "reference": ((), *draft.reference)})


def places_of(value: JsonValue, text: str) -> list[tuple[int, int]]:
    """Return where ``text`` has ``value``, from and to, with the quotes around it."""
    forms = {str(value), json.dumps(value, ensure_ascii=False).strip('"')}
    if isinstance(value, float) and value.is_integer():
        forms.add(str(int(value)))
    written = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
    bare = rf"(?:{written})(?!\w|[.,]\d)"
    found = re.finditer(rf"(?<!\w)(?:(?P<mark>[\"'])(?:{written})(?P=mark)|{bare})", text, re.IGNORECASE)
    return [one.span() for one in found]


_AFTER = (  # what may follow a gap: an end, or a word that does not need the value
    r"(?=\s*(?:$|[.,;:?!])|\s+(?:and(?=\s+\w)|then|after|before|in|into|inside|to|onto|from|with|for|on|at|as|by|under|using|when|"
    r"please)\b)"
)
_NAMED = re.compile(r"(?:\s*,)?\s+(?:by\s+)?(?:called|named|titled|labelled|saying)\s*$", re.IGNORECASE)
_BEHIND = re.compile(  # only close behind an object: "look for x" and "get rid of x" say nothing without it
    r"(?P<said>.*(?:[\"'](?!\w)|\d|\b(?:the|an?|my|its|this|that|them|one|some)\b)(?:\W+\w+){0,3}?)"
    r"\s+(?:over\s+)?(?:to|into|inside|under|from|with|for|at|as|by|of)\s*$",
    re.IGNORECASE | re.DOTALL,
)
_THING = re.compile(
    r"\b(?:the|my|that|this)\s+(?!(?:last|first|next|same|other)\b)(?:(?!(?:of|to|in|on|by|for|from|with|as|at)\b)[a-z]+\s+)"
    r"{1,2}$",
    re.IGNORECASE,
)
_UNIT = re.compile(r"\s+[a-z]+")


def cut_out(text: str, value: JsonValue) -> str | None:
    """Return ``text`` without ``value``; None where it has it twice, or a sentence would not be whole without it.

    The value goes with the word that brings it ("named", "to", with a unit behind a number), or alone behind a thing
    that it names ("the file notes.txt").
    """
    places = places_of(value, text)
    if len(places) != 1:
        return None
    ((start, end),) = places
    before, after = text[:start], text[end:]
    behind = _BEHIND.fullmatch(before)
    unit = _UNIT.match(after) if behind is not None and not isinstance(value, str) else None
    if unit is not None and not re.match(_AFTER, after) and re.match(_AFTER, after[unit.end() :]):
        after = after[unit.end() :]
    if not re.match(_AFTER, after):
        return None
    if named := _NAMED.search(before):
        before = before[: named.start()]
    elif behind is not None:
        before = behind["said"]
    elif _THING.search(before):
        before = before.rstrip()
    else:
        return None
    return before + after


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ARTICLE = re.compile(r"^(?:the|a|an|your)\s+", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z]+(?: [A-Za-z]+){0,4}")
_NOT_A_THING = re.compile(r"\b(?:whether|is|are|if|to|that|which)\b|\b(?:from|to|of|in|by|for|at|on)$", re.IGNORECASE)


def thing_of(parameter: Parameter, tool: ToolSpec) -> str | None:
    """Return the words for what a parameter is ("label", "file name"); None where documentation has no short ones.

    The words of its name, where documentation has each of them, are what people say. A plural is not said of one value.
    """
    name = " ".join(_WORD.findall(parameter.name)).lower()
    said = first_sentence(parameter.description)
    known = {word.lower() for word in _WORD.findall(f"{parameter.description} {tool.description}")} | {"id"}
    if name and known.issuperset(name.split()) and not (name.endswith("s") or _NOT_A_THING.search(name)):
        return name
    phrase = _ARTICLE.sub("", DETAIL.split(said.strip().rstrip("."), maxsplit=1)[0])
    if not _PLAIN.fullmatch(phrase) or _NOT_A_THING.search(phrase) or phrase == tool.name:
        return None
    return phrase if phrase[1:2].isupper() else phrase[0].lower() + phrase[1:]


def _answer(parameter: Parameter, tool: ToolSpec, value: str, rng: random.Random) -> str:
    """Return a message of a user who was asked for ``value``."""
    forms = [f"It's {value}.", f"{value}, please.", f"Sorry, I forgot to say: {value}."]
    if thing := thing_of(parameter, tool):
        forms += [f"The {thing} is {value}.", f"Sorry, the {thing} is {value}.", f"Use {value} as the {thing}."]
    return rng.choice(forms)
