"""What the local roles ask of a language model. The model itself is given to them.

``environments.turn_lines`` has the texts, ``training.roles`` teaches a model with them, ``training.local_model`` runs
it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from environments.turn_lines import Adapter

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
