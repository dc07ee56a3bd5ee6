"""The in-process sampler: many episodes decoded together by a Hugging Face causal model, KV caches kept across turns.

Every row advances by one token in each forward pass, whether that token was sampled or belongs to an observation, so
that no row ever waits for another: a row's episode is asked for its next suffix the moment its action ends. Suffixes
longer than ``chunk`` tokens (prompts, above all) are fed in passes of their own. A finished row gives its place to
the last row, or to an episode that waits. Keys and values lie in one block at each row's own positions; the causal
mask and the position ids are explicit, so nothing is padded between turns. What a prompt shares with that of another
live row is copied, not computed again: the K rollouts of a group, and the tools' documentation of tasks that have the
same tools. All of this is our choice.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from transformers.cache_utils import Cache

from environments.base import InputError
from training.preflight import check_attention
from training.rendering.base import Prompt, Sampled, Speaker

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Keys and values of the episodes that a sampler decodes together, at each episode's own positions.

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


# Which prompts and long suffixes go through the model together, and how much of a prompt another one has already.

TOKENS = 8192
"""Tokens of one pass at most, padding included, which bounds the memory of its activations; a longer piece goes alone
(our choice)."""

SMALL = 64
"""Tokens that cost less than another pass does: up to here, padding is not worth avoiding (measured on the tiny
policy)."""

SHARED = 32
"""Ids that two different prompts must share before one of them waits for the other's keys and values (our choice)."""


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading ids the two have in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def passes(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of the pieces that are fed together, ascending in each pass: like lengths, so that little is padding.

    Padding at most doubles a pass, or fills it up to SMALL tokens.
    """
    together: list[list[int]] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        padded = (len(together[-1]) + 1) * lengths[index] if together else 0
        tokens += lengths[index]
        if not together or padded > TOKENS or padded > max(SMALL, 2 * tokens):
            together.append([])
            tokens = lengths[index]
        together[-1].append(index)
    return [sorted(indices) for indices in together]


@dataclass(slots=True)
class _Row:
    """One live episode: ids waiting to be fed, what was sampled of the current action, and its own generator."""

    speaker: Speaker
    draws: random.Random
    waiting: list[int]
    max_new_tokens: int
    prompt: list[int] = field(default_factory=list)
    cached: int = 0
    context: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @classmethod
    def open(cls, speaker: Speaker) -> _Row | None:
        prompt = speaker.begin()
        if prompt is None:
            return None
        row = cls(speaker, random.Random(speaker.seed), [], 0, list(prompt.ids))
        row.hear(prompt)
        return row

    def hear(self, prompt: Prompt) -> None:
        """Append a prompt or suffix; the last sampled id is not cached yet and goes before it."""
        if not prompt.ids or prompt.max_new_tokens < 1:
            raise ValueError("a prompt needs at least one id and room for one sampled token")
        self.waiting.extend(prompt.ids)
        self.max_new_tokens = prompt.max_new_tokens
        self.context = self.cached + len(self.waiting)
        self.ids, self.logprobs = [], []

    def hold(self, length: int) -> None:
        """The first ``length`` ids of the prompt are in the cache by now."""
        self.cached, self.waiting = length, self.prompt[length:]

    def take(self, token: int, logprob: float) -> bool:
        """Add one sampled token; False when that ended the episode."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.waiting.append(token)
        if token not in self.speaker.stop_ids and len(self.ids) < self.max_new_tokens:
            return True
        prompt = self.speaker.reply(Sampled(self.ids, self.logprobs, self.context))
        if prompt is not None:
            self.hear(prompt)
        return prompt is not None


class Sampler:
    """Decodes episodes with ``model``, at most ``rows`` at a time.

    Each token is drawn by inverse CDF with a uniform number of the episode's own generator, so a result depends on
    the episode's seed and not on which episodes share the batch or in which order. What remains is float rounding:
    kernels may differ in the last bits between batch sizes, which moves a draw only when its number falls within
    about 1e-6 of a boundary between two tokens. ``temperature`` 0 takes the likeliest token.
    """

    def __init__(self, model: PreTrainedModel, temperature: float, rows: int = 128, chunk: int = 3) -> None:
        """``chunk``: suffixes longer than this are fed in one pass of their own (measured on the tiny policy)."""
        if temperature < 0:
            raise InputError(f"sampling temperature is {temperature:g}: make it 0 (greedy) or more")
        check_attention(model.config)
        self.model = model
        self.temperature = temperature
        self.rows = rows
        self.chunk = chunk
        self.forward_passes = 0
        self.fed_tokens = 0
        self.sampled_tokens = 0

    @torch.inference_mode()
    def run(self, speakers: Sequence[Speaker]) -> None:
        """Drive every speaker until it is over. The model's training mode is restored afterwards."""
        was_training = self.model.training
        self.model.train(False)
        try:
            self._run(iter(speakers), RowCache())
        finally:
            self.model.train(was_training)

    def _run(self, speakers: Iterator[Speaker], cache: RowCache) -> None:
        live: list[_Row] = []
        while True:
            live.extend(self._admit(speakers, self.rows - len(live)))
            if not live:
                return
            self._prefill(live, cache)
            tokens = [row.waiting.pop(0) for row in live]
            logits = self._forward(cache, live, list(range(len(live))), [[token] for token in tokens])
            over = self._sample(live, logits)
            for slot in reversed(over):
                last = len(live) - 1
                if slot != last:
                    cache.move(last, slot)
                    live[slot] = live[last]
                live.pop()

    @staticmethod
    def _admit(speakers: Iterator[Speaker], places: int) -> Iterator[_Row]:
        while places > 0:
            speaker = next(speakers, None)
            if speaker is None:
                return
            row = _Row.open(speaker)
            if row is not None:
                places -= 1
                yield row

    def _prefill(self, live: list[_Row], cache: RowCache) -> None:
        """Feed all but the last waiting id of every row that has many of them, or of all rows when all are new.

        In waves: a new row waits while another one that is fed before it shares more of its prompt than the cache has.
        """
        held = [slot for slot, row in enumerate(live) if row.cached]
        new = [slot for slot, row in enumerate(live) if not row.cached]
        many = self.chunk if held else 1
        due = list(held)
        while due or new:
            ready, new = self._copy_shared(live, cache, held, new)
            due = [slot for slot in due + ready if len(live[slot].waiting) > many]
            pieces = [live[slot].waiting[:-1] for slot in due]
            for indices in passes([len(piece) for piece in pieces]):
                self._forward(cache, live, [due[i] for i in indices], [pieces[i] for i in indices])
            for slot in due:
                live[slot].waiting = live[slot].waiting[-1:]
            held += ready
            due = []

    @staticmethod
    def _copy_shared(
        live: list[_Row], cache: RowCache, held: Sequence[int], new: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Copy to ``new`` rows what those of ``held`` have of their prompts; who goes on, and who waits for them.

        All but the last id of a prompt can be shared: that one is fed to get the first logits.
        """
        ready: list[int] = []
        later: list[int] = []
        copies: dict[tuple[int, int], list[int]] = {}
        for slot in new:
            prompt = live[slot].prompt[:-1]
            shares = ((min(shared_length(live[other].prompt, prompt), live[other].cached), other) for other in held)
            shared, source = max(shares, default=(0, slot), key=lambda share: share[0])
            if shared < len(prompt):
                coming = max((shared_length(live[other].prompt[:-1], prompt) for other in ready), default=0)
                if coming == len(prompt) or coming >= shared + SHARED:
                    later.append(slot)
                    continue
            if shared and (shared == len(prompt) or shared >= SHARED):
                copies.setdefault((source, shared), []).append(slot)
            ready.append(slot)
        for (source, shared), slots in copies.items():
            cache.copy(source, slots, shared)
            for slot in slots:
                live[slot].hold(shared)
        return ready, later

    def _forward(self, cache: RowCache, live: list[_Row], slots: list[int], pieces: list[list[int]]) -> torch.Tensor:
        """One pass over ``pieces`` (right-padded ids of the rows in ``slots``); logits of the last column."""
        device = self.model.device
        width = max(len(piece) for piece in pieces)
        padded = [piece + piece[-1:] * (width - len(piece)) for piece in pieces]
        starts = [live[slot].cached for slot in slots]
        positions = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)
        for slot, piece in zip(slots, pieces, strict=True):
            live[slot].cached += len(piece)
        length = max(live[slot].cached for slot in slots)
        cache.select(slots, positions, length, rows=len(live), capacity=max(starts) + width)
        mask = (torch.arange(length, device=device) <= positions[:, :, None])[:, None]
        self.forward_passes += 1
        self.fed_tokens += sum(map(len, pieces))
        output = self.model(
            input_ids=torch.tensor(padded, device=device),
            position_ids=positions,
            attention_mask=self._as_expected(mask),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits

    def _as_expected(self, mask: torch.Tensor) -> torch.Tensor:
        """Boolean masks are sdpa's; eager attention adds its mask to the scores."""
        if self.model.config._attn_implementation == "sdpa":
            return mask
        zeros = torch.zeros(mask.shape, dtype=self.model.dtype, device=mask.device)
        return zeros.masked_fill(~mask, torch.finfo(self.model.dtype).min)

    def _sample(self, live: list[_Row], logits: torch.Tensor) -> list[int]:
        """Draw a token for every row that has fed all it had; the slots whose episode is over, ascending."""
        ready = [i for i, row in enumerate(live) if not row.waiting]
        if not ready:
            return []
        if len(ready) < len(live):
            logits = logits[torch.tensor(ready, device=logits.device)]
        self.sampled_tokens += len(ready)
        if self.temperature == 0:
            logprobs = torch.log_softmax(logits, dim=-1)
            tokens = logprobs.argmax(dim=-1)
        else:
            logprobs = torch.log_softmax(logits / self.temperature, dim=-1)
            uniform = torch.tensor([live[i].draws.random() for i in ready], dtype=torch.float64, device=logits.device)
            tokens = inverse_cdf(logprobs, uniform)
        chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        drawn = zip(ready, tokens.tolist(), chosen, strict=True)
        return [i for i, token, logprob in drawn if not live[i].take(token, logprob)]


def inverse_cdf(logprobs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative probability exceeds ``uniform`` (float64 in [0, 1)), for each row.

    Sums in float64 and scales by their total, so a token of probability 0 is never drawn.
    """
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    threshold = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp(max=logprobs.shape[-1] - 1)
