"""The contract between an episode, its rendering and a sampler: who turns what into tokens, and in which order.

Token in, token out: the prompt of a turn is all ids so far plus a rendered suffix; history is never
rendered again. A ``Dialogue`` renders one episode, a ``Speaker`` is one episode as a sampler sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from environments.base import Action, Observation, Record, ToolCall, ToolSpec, UserTurn


class EndTurn(Record):
    """The agent is done with the current user turn; ``text`` is what it said, if anything."""

    text: str = ""


class Dialogue(Protocol):
    """One episode in one model's own format; stateful and single use.

    ``stop_ids`` end a message. Methods are called in the order of the episode: ``first``, then for every sampled
    message ``parse`` followed by ``observe`` (its actions were answered) or ``next_turn`` (the turn was ended). What a
    teacher would say in place of a message, ``demonstrate`` tells.
    """

    stop_ids: frozenset[int]

    def first(self, turn: UserTurn, tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of the first prompt, with ``turn.preface`` in formats of language models.

        Raises InputError for tools that the model has no tokens for.
        """
        ...

    def parse(self, ids: Sequence[int]) -> tuple[Action, ...] | EndTurn:
        """What the sampled message says: its actions in order, one at least, or the end of the turn.

        Ids without a stop id at their end were cut off: one MalformedCall.
        """
        ...

    def observe(self, observations: Sequence[Observation]) -> list[int]:
        """Ids appended after the last sampled id to answer its actions, so that the next message can be sampled.

        One observation for each action of the last message, in their order.
        """
        ...

    def next_turn(self, turn: UserTurn, tools: Sequence[ToolSpec]) -> list[int]:
        """Ids appended after the last sampled id to give the next user turn. Raises InputError like ``first``."""
        ...

    def demonstrate(self, action: ToolCall | EndTurn) -> list[int]:
        """Ids of the next message as a teacher writes it, with the id that ends it; ``parse`` takes them like sampled
        ones. Raises InputError for a format that cannot be written.
        """
        ...


class Rendering(Protocol):
    """A model's format: opens dialogues."""

    name: str

    def begin(self) -> Dialogue:
        """A fresh dialogue for one episode."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids to append to everything so far, and how many tokens may be sampled after them (at least one)."""

    ids: list[int]
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled message: its ids (the stop id included) and their log-probabilities in nats.

    ``context`` is the number of tokens that the sampler holds before the first of them.
    """

    ids: list[int]
    logprobs: list[float]
    context: int


class Speaker(Protocol):
    """One episode as a sampler sees it. ``seed`` decides every draw; ``stop_ids`` end a message."""

    seed: int
    stop_ids: frozenset[int]

    def begin(self) -> Prompt | None:
        """The first prompt, or None when there is nothing to sample."""
        ...

    def reply(self, sampled: Sampled) -> Prompt | None:
        """Take one sampled message; the suffix to go on with, or None when the episode is over."""
        ...
