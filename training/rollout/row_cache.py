"""Keys and values of the rows that the in-process sampler decodes, and attention to those of a prompt that rows share.

``RowCache`` keeps each row's keys and values at its own positions. On a CPU the K rollouts of a task, which hold the
same keys and values of the same prompt, attend to the first one's copy together, and each to what follows its prompt;
the two softmaxes are joined by their normalisers (shared-prefix attention, as in Hydragen, arXiv 2402.05099). A prompt
is most of what a decoded token attends to, and is read once in a pass. The sum is the same but for float rounding.
Query heads that share keys and values go through the kernel together as well.

Import this module late: it needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GROWTH = 128
"""Positions by which the key-value block grows when a row outgrows it (our choice)."""

SHARED_ATTENTION = "sdpa_shared_prompts"
"""The name under which transformers finds this attention."""

_BEYOND = ("softcap", "position_bias")
"""What transformers' sdpa adds or refuses, and this attention leaves to it."""

LEAST = 32
"""Positions that rows must share before they are read in a pass of the kernel of their own (our choice)."""


class RowCache(Cache):
    """Keys and values of every live row at that row's own positions, one block per layer.

    ``select`` chooses the rows and positions that the next forward pass writes, and how far it reads. A block holds as
    many rows and positions as its passes have needed: when it is outgrown, only the live rows are copied.
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
        """Let the next pass write ``positions`` (rows x tokens) of ``slots`` (ascending) and read ``length`` positions.

        ``rows``: the number of live rows, of which these are some; ``capacity``: all positions are below it.
        """
        # A padded token's position is past its row's end: it is written, masked, and overwritten when the row gets
        # there.
        self.slots = torch.tensor(slots, device=positions.device)
        self.positions, self.length, self.rows = positions, length, rows
        self.dense = len(slots) == slots[-1] + 1
        self.capacity = -(-capacity // GROWTH) * GROWTH

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write this pass's keys and values; return everything that its rows may attend to (the Cache contract)."""
        # Rotation leaves keys in float32 under autocast, and attention would cast all of them again in each pass.
        device = key_states.device.type
        if torch.is_autocast_enabled(device):
            key_states, value_states = (
                states.to(torch.get_autocast_dtype(device)) for states in (key_states, value_states)
            )
        return self._write(layer_idx, "keys", key_states), self._write(layer_idx, "values", value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of positions that the current pass reads."""
        return self.length

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Give every slot of ``targets`` the first ``length`` positions of slot ``source``."""
        for key, held in self.blocks.items():
            block = self._hold(key, held, max(targets) + 1, length)
            # A clone: torch refuses a source within the block that is written, where it fills its positions.
            block[list(targets), :, :length] = block[source, :, :length].clone()

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
        """Return ``block``, or a larger copy of its first ``rows`` rows with that many rows and positions."""
        if block.shape[0] >= rows and block.shape[2] >= capacity:
            return block
        kept = block[:rows]
        # Zeros, not empty memory: masked positions still enter the weighted sum as 0 x value, and 0 x NaN is NaN.
        grown = block.new_zeros(rows, block.shape[1], max(capacity, block.shape[2]), block.shape[3])
        grown[: len(kept), :, : kept.shape[2]] = kept
        self.blocks[key] = grown
        return grown


@dataclass(frozen=True, slots=True)
class Together:
    """Rows of a pass that hold the same first ``shared`` positions, 0 where they share none.

    ``first`` is one of the rows, ``bias`` what is added to the scores of the positions behind: 0 or -inf, (rows, 1,
    tokens, positions).
    """

    rows: slice | torch.Tensor
    first: int
    shared: int
    bias: torch.Tensor


def can_share(model: PreTrainedModel) -> bool:
    """Return whether the model's attention is sdpa's on a CPU and can be exchanged by name."""
    return (
        model.device.type == "cpu"
        and model.config._attn_implementation == "sdpa"
        and bool(model._supports_attention_backend)
    )


def together(
    prompts: Sequence[bytes], shared: Sequence[int], seen: torch.Tensor, dtype: torch.dtype
) -> list[Together] | None:
    """Return the parts in which the rows of a pass attend; None where none of them share a prompt.

    Args:
        prompts: of each row, ascending by slot: equal where prompts are.
        shared: positions of the prompt that the row holds since an earlier pass.
        seen: (rows, 1, tokens, positions), the positions that each token attends to.
        dtype: of keys and values.
    """
    groups: dict[tuple[bytes, int], list[int]] = {}
    for row, (prompt, length) in enumerate(zip(prompts, shared, strict=True)):
        groups.setdefault((prompt, length if length >= LEAST else 0), []).append(row)
    if not any(length and len(rows) > 1 for (_, length), rows in groups.items()):
        return None
    alone = [row for (_, length), rows in groups.items() if not length or len(rows) == 1 for row in rows]
    parts = [(rows, length) for (_, length), rows in groups.items() if length and len(rows) > 1]
    found = []
    for rows, length in [*parts, *([(sorted(alone), 0)] if alone else [])]:
        dense = rows[-1] - rows[0] + 1 == len(rows)
        index = slice(rows[0], rows[-1] + 1) if dense else torch.tensor(rows)
        mine = seen[index]
        end = int(mine.any(dim=0).nonzero()[:, -1].max()) + 1
        mine = mine[..., length:end]
        bias = torch.zeros(mine.shape, dtype=dtype).masked_fill(~mine, float("-inf"))
        found.append(Together(index, rows[0], length, bias))
    return found


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    parts: Sequence[Together] | None = None,
    **others: Any,  # noqa: ANN401 - transformers' own arguments
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' sdpa does; in ``parts`` where they are given (the contract of AttentionInterface)."""
    if parts is None or any(others.get(name) is not None for name in _BEYOND):
        attended: torch.Tensor = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **others
        )[0]
        return attended, None
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    count, heads, tokens, size = query.shape
    kept = key.shape[1]
    # Heads that share keys and values follow each other: they become further queries of one head.
    queries = query.to(key.dtype).reshape(count, kept, heads // kept * tokens, size)
    output = torch.empty_like(queries)
    for part in parts:
        mine = queries[part.rows]
        behind = slice(part.shared, part.shared + part.bias.shape[-1])
        bias = part.bias.repeat(1, 1, heads // kept, 1) if tokens > 1 else part.bias
        own, normaliser = flash(
            mine, key[part.rows, :, behind], value[part.rows, :, behind], attn_mask=bias, scale=scaling
        )
        if part.shared:
            prompt = (slice(part.first, part.first + 1), slice(None), slice(part.shared))
            of_all = mine.transpose(0, 1).reshape(1, kept, -1, size)
            before, normaliser_before = flash(of_all, key[prompt], value[prompt], scale=scaling)
            before = before.view(kept, len(mine), -1, size).transpose(0, 1)
            share = (normaliser_before.view(kept, len(mine), -1).transpose(0, 1) - normaliser).sigmoid()
            own = torch.lerp(own.float(), before.float(), share[..., None])
        output[part.rows] = own.to(output.dtype)
    return output.view(count, heads, tokens, size).transpose(1, 2).contiguous(), None


AttentionInterface.register(SHARED_ATTENTION, _attend)
