"""What the local roles ask of a language model, and one turn's texts for it. The model itself is given to them.

``environments.turn_lines`` has the texts, ``training.roles`` teaches a model with them, ``training.local_model`` runs
it.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from pydantic import JsonValue

from agents.scripted.values import scalar_leaves
from environments.answers import decoded
from environments.base import ToolCall, ToolSpec
from environments.task_text import leaves, normal, with_own_descriptions
from environments.tool_lines import highest_ranked
from environments.turn_lines import FOUND, Adapter, with_found

_MOST_VALUES = 1000  # of one answer
_LINE = 120  # characters of an answer in words that is about one thing

Result = TypeVar("Result")


class LocalModel(Protocol):
    """A language model with the two adapters. Calls may come from several threads; equal arguments give equal results,
    up to float rounding."""

    def write(
        self, prompts: Sequence[str], seeds: Sequence[int], adapter: Adapter, *, temperature: float, most: int
    ) -> list[tuple[str, float]]:
        """Return a continuation of each prompt, of up to ``most`` tokens, and the mean log-probability of its tokens.

        Temperature 0 is greedy. The log-probability is in nats, at the temperature.
        """
        ...

    def likelihood(self, texts: Sequence[tuple[str, str]], adapter: Adapter) -> list[float]:
        """Return the mean log-probability of the tokens of each answer after its prompt, in nats."""
        ...


class Abandoned(Exception):
    """Nobody waits for what the model would be asked for."""


class _Awaited:
    """A model that answers as long as somebody waits."""

    def __init__(self, model: LocalModel) -> None:
        self._model = model
        self.abandoned = threading.Event()

    def write(
        self, prompts: Sequence[str], seeds: Sequence[int], adapter: Adapter, *, temperature: float, most: int
    ) -> list[tuple[str, float]]:
        self._check()
        return self._model.write(prompts, seeds, adapter, temperature=temperature, most=most)

    def likelihood(self, texts: Sequence[tuple[str, str]], adapter: Adapter) -> list[float]:
        self._check()
        return self._model.likelihood(texts, adapter)

    def _check(self) -> None:
        if self.abandoned.is_set():
            raise Abandoned


async def in_thread(model: LocalModel, work: Callable[[LocalModel], Result]) -> Result:
    """Return what ``work`` does with the model, in a thread of its own.

    Cancelled, by a signal or by ``roles.branch_timeout``, the thread ends before its next question: it would keep the
    process, and the model from other branches, for minutes.
    """
    awaited = _Awaited(model)
    try:
        return await asyncio.to_thread(work, awaited)
    finally:
        awaited.abandoned.set()


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
    if left.name != right.name or left.arguments.keys() != right.arguments.keys():
        return False
    pairs = ((list(leaves(left.arguments[name])), list(leaves(right.arguments[name]))) for name in left.arguments)
    return all([_plain(one) for one in ours] == [_plain(one) for one in others] for ours, others in pairs)


def _plain(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{float(value):.10g}"
    return normal(str(value))
