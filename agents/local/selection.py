"""Tell by a reader how much a user's words say about calls, and which wording to keep (ours).

A reader was taught from words to calls, on turns that people wrote. It returns the calls (the round trip), with the
tools in one order or in the other, or not: a small one is swayed by the order. And what it gains by the words is the
mean log-probability of a call's tokens with them, less that with words that hold the same values and ask for nothing;
of several calls the least gain counts, so that each of them is asked for. A small reader guesses some calls before it
reads, from the tools and the values alone: a wording is understood where the calls are returned and the words gain
something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from agents.local.model import LocalModel
from agents.said import same_calls
from environments.base import ToolCall
from environments.task_text import leaves
from environments.turn_lines import FOUND, TurnView, calls_text, read_calls, reader_prompt

NOTHING_ASKED = "Please go on."
"""Words that ask for nothing; the values that a user would say are put behind them."""

_READ_TOKENS = 80  # of the calls that the reader writes
_READ_BACK = 4  # wordings whose calls the reader writes


class Reading(NamedTuple):
    """What a reader makes of one wording. ``margin`` is in nats a token; ``exact``: it returns the calls, of the tools
    in one order or the other."""

    margin: float
    exact: bool

    def understood(self, margin: float) -> bool:
        """Return whether the words ask for the calls: these are returned, and the words gain ``margin``."""
        return self.exact and self.margin >= margin


def readings(model: LocalModel, view: TurnView, wordings: Sequence[str], calls: Sequence[ToolCall]) -> list[Reading]:
    """Return the reading of each wording of ``calls`` before ``view``. The four that gain most are read back."""
    values = [
        str(leaf) for call in calls for value in call.arguments.values() for leaf in leaves(value) if leaf != FOUND
    ]
    nothing = " ".join((NOTHING_ASKED, *dict.fromkeys(values)))
    prompts = [reader_prompt(view, words) for words in (nothing, *wordings)]
    count = len(calls)
    texts = [(prompt + calls_text(calls[:n]), calls_text(calls[n : n + 1])) for prompt in prompts for n in range(count)]
    likely = model.likelihood(texts, "reader")
    each = [likely[start : start + count] for start in range(0, len(likely), count)]
    gains = [min(with_words - without for with_words, without in zip(one, each[0], strict=True)) for one in each[1:]]
    telling = sorted(range(len(wordings)), key=lambda place: -gains[place])[:_READ_BACK]
    exact = set[int]()
    for tools in (view.tools, view.tools[::-1]):
        asked = [place for place in telling if place not in exact]
        exact |= _returned(model, replace(view, tools=tools), {place: wordings[place] for place in asked}, calls)
    return [Reading(round(gain, 4), place in exact) for place, gain in enumerate(gains)]


def _returned(model: LocalModel, view: TurnView, wordings: Mapping[int, str], calls: Sequence[ToolCall]) -> set[int]:
    """Return the places of the wordings for which the reader writes the calls."""
    prompts = [reader_prompt(view, words) for words in wordings.values()]
    read = model.write(prompts, [0] * len(prompts), "reader", temperature=0.0, most=_READ_TOKENS) if prompts else []
    names = {tool.name for tool in view.tools}
    returned = [read_calls(text, names, len(calls) + 1) for text, _ in read]
    return {place for place, one in zip(wordings, returned, strict=True) if one and same_calls(one, calls)}
