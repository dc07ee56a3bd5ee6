"""The contract between an episode and the format of its model: what is turned into tokens, and in which order.

Token in, token out: the prompt of a turn is all ids so far plus a rendered suffix; history is never rendered again. A
``Rendering`` is a model's format, a ``Dialogue`` renders one episode in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from environments.base import Action, InputError, Observation, Record, ToolCall, ToolSpec, UserTurn


class Unwritable(InputError):
    """An action that a format cannot hold, so that its message would not be read back; demonstrations leave it out."""


DONE = "Done."
"""A teacher's message that ends a turn: references hold no words."""

ASKS_BACK = "I cannot do that yet: something that it needs is missing."
"""The same of a turn in which the reference has no call: nothing is done."""


class EndTurn(Record):
    """The agent's decision to end the current user turn; ``text`` is its closing message, if any."""

    text: str = ""


class Dialogue(Protocol):
    """One episode in one model's own format; stateful and single use.

    ``stop_ids`` end a message. Methods are called in the order of the episode: ``first``, then for every sampled
    message ``parse`` followed by ``observe`` (its actions were answered) or ``next_turn`` (the turn was ended).
    ``demonstrate`` writes a message as a teacher would.
    """

    stop_ids: frozenset[int]

    def first(self, turn: UserTurn, tools: Sequence[ToolSpec]) -> list[int]:
        """Return the ids of the first prompt, with ``turn.preface`` and ``turn.advice`` in formats of language models.

        Raises InputError for tools that the model has no tokens for.
        """
        ...

    def parse(self, ids: Sequence[int]) -> tuple[Action, ...] | EndTurn:
        """Read a sampled message: its actions in order (at least one), or the end of the turn.

        Ids without a stop id at their end were cut off: one MalformedCall.
        """
        ...

    def observe(self, observations: Sequence[Observation]) -> list[int]:
        """Return the ids to append after the last sampled id: the answers to its actions and the next message's head.

        ``observations`` has one for each action of the last message, in their order.
        """
        ...

    def next_turn(self, turn: UserTurn, tools: Sequence[ToolSpec]) -> list[int]:
        """Return the ids to append after the last sampled id: the next user turn. Raises InputError like ``first``."""
        ...

    def demonstrate(self, action: ToolCall | EndTurn) -> list[int]:
        """Return the ids of the next message as a teacher writes it, with the id that ends it.

        ``parse`` takes them like sampled ones. Raises InputError for a format that cannot be written, Unwritable for an
        action that it cannot hold.
        """
        ...


class Rendering(Protocol):
    """A model's format; ``name`` is how reports and cards call it."""

    name: str

    def begin(self) -> Dialogue:
        """Return a fresh dialogue for one episode."""
        ...
