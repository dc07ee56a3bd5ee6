"""Keys and values of the episodes that a sampler decodes together, at each episode's own positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache

GROWTH = 128
"""Positions by which the key-value block grows when a row outgrows it (our choice)."""


class RowCache(Cache):
    """Keys and values of every live row at that row's own positions, as one block a layer.

    ``select`` says which rows and positions the next forward pass writes, and how far it reads. A block holds as many
    rows and positions as its passes have needed: when one outgrows it, the live rows alone are copied.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.blocks: dict[tuple[int, str], torch.Tensor] = {}
        self.slots = torch.arange(0)
        self.positions = torch.zeros(0, 0, dtype=torch.long)
        self.length = 0
        self.rows = 0
        self.capacity = 0
        self.dense = True

    def select(self, slots: Sequence[int], positions: torch.Tensor, length: int, rows: int, capacity: int) -> None:
        """The next pass writes ``positions`` (rows x tokens) of ``slots`` (ascending) and reads ``length`` positions.

        A padded token's position lies past its row's end: it is written, masked, and overwritten when the row gets
        there. ``rows``: how many rows are live, of which these are some; ``capacity``: all positions lie below it.
        """
        self.slots = torch.tensor(slots, device=positions.device)
        self.positions, self.length, self.rows = positions, length, rows
        self.dense = len(slots) == slots[-1] + 1
        self.capacity = -(-capacity // GROWTH) * GROWTH

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write this pass's keys and values; return all that its rows may attend to (the Cache contract)."""
        return self._write(layer_idx, "keys", key_states), self._write(layer_idx, "values", value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions that the current pass reads."""
        return self.length

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Give every slot of ``targets`` the first ``length`` positions of slot ``source``."""
        for key, held in self.blocks.items():
            block = self._hold(key, held, max(targets) + 1, length)
            block[list(targets), :, :length] = block[source, :, :length]

    def move(self, source: int, target: int) -> None:
        """Give slot ``target`` the contents of slot ``source``."""
        for block in self.blocks.values():
            block[target] = block[source]

    def _write(self, layer: int, part: str, states: torch.Tensor) -> torch.Tensor:
        block = self.blocks.get((layer, part), states[:0, :, :0])
        block = self._hold((layer, part), block, self.rows, self.capacity)
        block[self.slots[:, None], :, self.positions] = states.transpose(1, 2)
        read = block[:, :, : self.length]
        return read[: self.slots.numel()] if self.dense else read[self.slots]

    def _hold(self, key: tuple[int, str], block: torch.Tensor, rows: int, capacity: int) -> torch.Tensor:
        """``block``, or a larger one with its first ``rows`` rows, for that many rows and positions.

        Zeros, not empty memory: masked positions still enter the weighted sum as 0 x value, and 0 x NaN is NaN.
        """
        if block.shape[0] >= rows and block.shape[2] >= capacity:
            return block
        kept = block[:rows]
        grown = block.new_zeros(rows, block.shape[1], max(capacity, block.shape[2]), block.shape[3])
        grown[: len(kept), :, : kept.shape[2]] = kept
        self.blocks[key] = grown
        return grown
