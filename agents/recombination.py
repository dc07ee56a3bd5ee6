"""Make conversations out of one that people wrote: neighbouring requests in one turn, two of a turn apart, an exchange.

The words stay people's. A change is kept where replays give each call the answer that it had, and the last state as it
was. What words allow is judged by rules: a request that goes first must name all of its values itself and refer to
nothing before it; a turn is parted between sentences, each of which names what its own calls take. All of this is ours,
after concatenation in data recombination (Jia and Liang, 2016).
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from environments.base import Environment, TaskSpec, ToolCall
from environments.task_text import Seen, leaves
from environments.verification.replay import Replay, replay

MOST_CALLS = 6
"""Most calls of a turn that is joined (ours)."""

_KEPT = 1 / 3  # probability that a turn stays as it is
_SENTENCE = re.compile(r"(?<=[.?!])[\"']?\s+(?=[\"']?[A-Z])")
_REFERS = re.compile(
    r"^(after|and|also|finally|in addition|lastly|moreover|next|now|once|once more|subsequently|then|upon)\b"
    r"|\b(above|again|afterwards?|aforementioned|earlier|it|its|latter|newly|previous(ly)?|said|same|that|their|them"
    r"|then|there|these|they|this|those)\b",
    re.IGNORECASE,
)
_REMARK = re.compile(r"(do not|don't|ensure|it|it's|its|make sure|that|the|their|they|this)\b", re.IGNORECASE)


class Turn(NamedTuple):
    """A user turn: its words and the calls of its reference."""

    words: str
    calls: tuple[ToolCall, ...]


def recombined(task: TaskSpec, environment: Environment, rng: random.Random) -> TaskSpec | None:
    """Return the conversation with drawn changes; None where none is drawn or fits.

    ``task`` has its turns as people wrote them, all of them the agent's, and every tool from its first turn on. Raises
    like ``replay``.
    """
    if task.withheld or task.played:
        return None
    usual = replay(environment, task)
    turns = [Turn(*one) for one in zip(task.turns, task.reference, strict=True)]
    at, changed = 0, False
    while at < len(turns):
        for way in rng.sample(_WAYS, len(_WAYS)) if rng.random() >= _KEPT else ():
            made = way(turns[at : at + 2])
            changed_turns = [*turns[:at], *made, *turns[at + 2 :]] if made else turns
            if made and _is_equal(usual, replay(environment, _with(task, changed_turns))):
                turns, changed = changed_turns, True
                at += len(made) - 1
                break
        at += 1
    return _with(task, turns) if changed else None


def joined(turns: Sequence[Turn]) -> list[Turn] | None:
    """Return two requests as one turn; None where one has no call, or both have too many."""
    if len(turns) < 2 or not all(one.calls for one in turns):
        return None
    first, second = turns
    calls = (*first.calls, *second.calls)
    return [Turn(f"{first.words.rstrip()} {second.words.lstrip()}", calls)] if len(calls) <= MOST_CALLS else None


def exchanged(turns: Sequence[Turn]) -> list[Turn] | None:
    """Return two requests in the other order; None where the second refers to the first, or leaves a value to it."""
    if len(turns) < 2 or not all(one.calls for one in turns):
        return None
    first, second = turns
    return [second, first] if not _REFERS.search(second.words) and not _unsaid(second.words, second.calls) else None


def parted(turns: Sequence[Turn]) -> list[Turn] | None:
    """Return the first turn in two, and what follows; None where no place between its sentences divides its calls.

    The first part names all of the values of its calls and none that only the others take, and the second one those
    that only its own take. A second part that only comments on the first is not a request.
    """
    first, *rest = turns
    sentences = _SENTENCE.split(first.words)
    for count in range(1, len(sentences)):
        before, after = " ".join(sentences[:count]), " ".join(sentences[count:])
        for place in range(1, len(first.calls)):
            parts = [Turn(before, first.calls[:place]), Turn(after, first.calls[place:])]
            if _is_parted(*parts):
                return [*parts, *rest]
    return None


def _is_parted(one: Turn, other: Turn) -> bool:
    if _REMARK.match(other.words):
        return False
    own, others = {*_values(one.calls)}, {*_values(other.calls)}
    apart = others - own
    if not apart or own <= others or _unsaid(one.words, one.calls):
        return False
    return _said(one.words, apart) == 0 and _said(other.words, apart) == len(apart)


_WAYS: tuple[Callable[[Sequence[Turn]], list[Turn] | None], ...] = (joined, exchanged, parted)


def _with(task: TaskSpec, turns: Sequence[Turn]) -> TaskSpec:
    words, calls = zip(*turns, strict=True)
    return task.model_copy(update={"turns": words, "reference": calls})


def _is_equal(usual: Replay, changed: Replay) -> bool:
    """Return whether each call has the same answer as before, in any order, and the last state is the same."""
    return _answers(usual) == _answers(changed) and usual.end_states()[-1] == changed.end_states()[-1]


def _answers(played: Replay) -> Counter[tuple[str, str]]:
    return Counter(
        (call.model_dump_json(), observation.text)
        for turn in played.turns
        for call, observation in zip(turn.calls, turn.observations, strict=True)
    )


def _values(calls: Sequence[ToolCall]) -> Iterator[str | float]:
    for call in calls:
        for value in leaves([*call.arguments.values()]):
            if isinstance(value, str | int | float) and not isinstance(value, bool) and value != "":
                yield value


def _said(words: str, values: set[str | float]) -> int:
    seen = Seen([words])
    return sum(seen.has(value) for value in values)


def _unsaid(words: str, calls: Sequence[ToolCall]) -> bool:
    values = {*_values(calls)}
    return not values or _said(words, values) < len(values)
