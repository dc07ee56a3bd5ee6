"""Define the records of the evaluation sets of templated tasks, and read the packed calls of explored ones."""

from __future__ import annotations

import base64
import json
import operator
import zlib
from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from environments.base import Record, TaskSpec, ToolCall
from environments.bfcl.official import Split

_T = TypeVar("_T")
_LARGEST = 1_000_000  # characters of the calls of one task, unpacked


class Strata(Record):
    """The strata of a task, for the breakdown of results.

    ``precondition``: a call is needed by a later one and left unsaid ("forced"), or needed and said ("said"), or no
    call needs another. ``length``: calls in the reference. ``rarity``: of its rarest function, by calls in human paths
    of training indices: common (5 and more), rare (1 to 4) or unseen. ``source``: who made the calls, in the families
    of the world.
    """

    precondition: Literal["forced", "said", "none"]
    length: Literal["1", "2", "3", "4", "5", "6"]
    rarity: Literal["common", "rare", "unseen"]
    source: Literal["human", "explored"] | None = Field(None, exclude_if=operator.not_)

    def labels(self) -> dict[str, str]:
        """Return the strata that apply, by name."""
        return {name: str(value) for name, value in self if value is not None}


class TemplatedSetTask(Record):
    """One held-out task. ``cluster`` is the smallest index of the set that begins in the same state."""

    id: str
    cluster: str
    strata: Strata
    spec: TaskSpec


class SetEntry(Record):
    """A task's entry in a set's file: enough to rebuild it from the official data without replays.

    ``first_turn``: calls of the first of two user turns; None, and not in the file, for a task of one. ``explored``:
    setup and reference of a task that exploration found, packed; ``start`` then only counts such tasks.
    """

    index: int
    start: int
    length: int
    first_turn: int | None = None
    wording_seed: int
    forced: tuple[bool, ...]
    explored: str | None = None
    strata: Strata

    @model_validator(mode="after")
    def _one_mark_a_call(self) -> Self:
        if len(self.forced) != self.length:
            raise ValueError(f"{len(self.forced)} marks for {self.length} calls")
        return self

    def by_turn(self, calls: tuple[_T, ...]) -> tuple[tuple[_T, ...], ...]:
        """Return what there is of each call, by user turn."""
        return (calls,) if self.first_turn is None else (calls[: self.first_turn], calls[self.first_turn :])


class SetFile(Record):
    """The file of an evaluation set. ``available``: tasks that verified; ``sha256``: of the rebuilt tasks."""

    panel: str
    environment: str
    split: Split
    seed: int
    available: int
    sha256: str
    tasks: tuple[SetEntry, ...]


def unpacked(entry: SetEntry) -> tuple[tuple[ToolCall, ...], tuple[tuple[ToolCall, ...], ...]]:
    """Return setup and reference of an explored task. Raises ValueError for a text that was altered."""
    try:
        reading = zlib.decompressobj()
        text = reading.decompress(base64.b85decode(entry.explored or ""), _LARGEST)
        calls = tuple(ToolCall(name=call, arguments=arguments) for call, arguments in json.loads(text))
    except (TypeError, zlib.error) as error:
        raise ValueError("the calls cannot be read") from error
    if not reading.eof or not entry.length <= len(calls) or not 0 < (entry.first_turn or 1) <= entry.length:
        raise ValueError("the calls are not those of the entry")
    begin = len(calls) - entry.length
    return calls[:begin], entry.by_turn(calls[begin:])
