"""The in-process sampler: many episodes decoded together by a Hugging Face causal model, KV caches kept across turns.

Every row advances by one token in each forward pass, whether that token was sampled or belongs to an observation, so
that no row ever waits for another: a row's episode is asked for its next suffix the moment its message ends. Suffixes
longer than ``chunk`` tokens (prompts, above all) are fed in passes of their own. A finished row gives its slot to the
last row, or to an episode that waits. Keys and values are kept in one block (``RowCache``) at each row's own positions;
the causal mask and the position ids are explicit, so nothing is padded between turns. A prompt that begins like that of
another live row copies its keys and values instead of computing them again. All of this is our choice.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from environments.base import InputError
from training.device_memory import PREFILL_TOKENS
from training.preflight import check_attention
from training.rollout.row_cache import SHARED_ATTENTION, RowCache, can_share, together
from training.rollout.sampling import EpisodeDriver, Sampled, Sampler, TokenPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK = 3
"""Tokens of a suffix up to which it is fed token by token beside the other rows; a longer one is fed in one pass of its
own (measured on the tiny policy)."""

SMALL = 64
"""Tokens that cost less than another pass does: up to here, padding is not worth avoiding (measured on the tiny
policy)."""

BLOCK = 256
"""Tokens of the vocabulary whose probabilities are added up first when a token is drawn (our choice)."""

SHARED = 32
"""Ids that two different prompts must share before one of them waits for the other's keys and values (our choice)."""


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of leading ids that the two have in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def passes(lengths: Sequence[int]) -> list[list[int]]:
    """Return the indices of the pieces that are fed in each pass, ascending within a pass.

    Pieces of similar length go together, so that padding at most doubles a pass, or fills it up to SMALL tokens.
    """
    together: list[list[int]] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        padded = (len(together[-1]) + 1) * lengths[index] if together else 0
        tokens += lengths[index]
        if not together or padded > PREFILL_TOKENS or padded > max(SMALL, 2 * tokens):
            together.append([])
            tokens = lengths[index]
        together[-1].append(index)
    return [sorted(indices) for indices in together]


@dataclass(slots=True)
class _Row:
    """One live episode: ids that wait to be fed, the current message so far, and the episode's own generator."""

    driver: EpisodeDriver
    draws: random.Random
    waiting: list[int]
    max_new_tokens: int
    prompt: list[int] = field(default_factory=list)
    opening: bytes = b""
    cached: int = 0
    context: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @classmethod
    def open(cls, driver: EpisodeDriver) -> _Row | None:
        """Open the episode; None when it is over at once."""
        prompt = driver.observe()
        if prompt is None:
            return None
        # The prompt again, as what is hashed once and compared fast.
        opening = array("q", prompt.ids).tobytes()
        row = cls(driver, random.Random(driver.seed), [], 0, list(prompt.ids), opening)
        row.observe(prompt)
        return row

    def observe(self, prompt: TokenPrompt) -> None:
        """Append a prompt or suffix to what waits. The last sampled id is not cached yet and goes before it."""
        self.waiting.extend(prompt.ids)
        self.max_new_tokens = prompt.max_new_tokens
        self.context = self.cached + len(self.waiting)
        self.ids, self.logprobs = [], []

    def hold(self, length: int) -> None:
        """Note that the first ``length`` ids of the prompt are in the cache."""
        self.cached, self.waiting = length, self.prompt[length:]

    def take(self, token: int, logprob: float) -> bool:
        """Add one sampled token; hand a message that it ends to the episode, and return whether that is over then."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.waiting.append(token)
        if token not in self.driver.stop_ids and len(self.ids) < self.max_new_tokens:
            return False
        self.driver.act(Sampled(self.ids, self.logprobs, self.context))
        prompt = self.driver.observe()
        if prompt is not None:
            self.observe(prompt)
        return prompt is None


class InProcessSampler(Sampler):
    """Decodes episodes with ``model``, which is the trainer's own: its weights are always the current ones.

    Each token is drawn by inverse CDF with a uniform number of the episode's own generator, so a result depends on the
    episode's seed and not on which episodes share the batch or in which order. Only float rounding remains: kernels may
    differ in the last bits between batch sizes, which moves a draw only when its number is within about 1e-6 of a
    boundary between two tokens. ``forward_passes``, ``fed_tokens`` and ``sampled_tokens`` count over all runs.
    """

    def __init__(self, model: PreTrainedModel, chunk: int = CHUNK) -> None:
        """Raise InputError for a model that this sampler cannot decode."""
        check_attention(model.config)
        self.model = model
        self.chunk = chunk
        self.forward_passes = 0
        self.fed_tokens = 0
        self.sampled_tokens = 0

    # Not inference mode, in which autocast keeps no weights: it would round all of them again in every pass.
    @torch.no_grad()
    def run(self, drivers: Sequence[EpisodeDriver], *, temperature: float, concurrency: int) -> None:
        """Drive every episode to its end (see Sampler). The model's training mode is restored afterwards."""
        if temperature < 0:
            raise InputError(f"sampling temperature is {temperature:g}: make it 0 (greedy) or more")
        was_training, attention = self.model.training, self.model.config._attn_implementation
        # Dropout off: tokens are drawn from the policy itself, and their log-probabilities are its own.
        self.model.train(False)
        if can_share(self.model):
            self.model.set_attn_implementation(SHARED_ATTENTION)
        try:
            self._run(iter(drivers), RowCache(), temperature, concurrency)
        finally:
            self.model.set_attn_implementation(attention)
            self.model.train(was_training)

    def _run(self, drivers: Iterator[EpisodeDriver], cache: RowCache, temperature: float, concurrency: int) -> None:
        live: list[_Row] = []
        while True:
            while len(live) < concurrency and (driver := next(drivers, None)) is not None:
                if (row := _Row.open(driver)) is not None:
                    live.append(row)
            if not live:
                return
            self._prefill(live, cache)
            tokens = [row.waiting.pop(0) for row in live]
            logits = self._forward(cache, live, list(range(len(live))), [[token] for token in tokens])
            over = self._sample(live, logits, temperature)
            for slot in reversed(over):
                # The last row fills the gap, so that live rows stay one dense block: reading it is a slice, not a copy.
                last = len(live) - 1
                if slot != last:
                    cache.move(last, slot)
                    live[slot] = live[last]
                live.pop()

    def _prefill(self, live: list[_Row], cache: RowCache) -> None:
        """Feed all but the last waiting id of every row that has many of them, or of all rows when all are new.

        In waves: a new row waits while another one that is fed before it shares more of its prompt than the cache has.
        """
        # Prompt sharing: the K rollouts of a group have equal prompts, and tasks with the same tools begin with the
        # same documentation. Prompts are most of the tokens of a chat model's step, so each shared part is computed
        # once and copied; causal attention makes the copy equal to what the row would have computed.
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
        """Copy to ``new`` rows what the rows of ``held`` have of their prompts; return those to feed and those to wait.

        All but the last id of a prompt can be shared: the last one is fed to get the first logits.
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
        """Feed ``pieces`` (right-padded ids of the rows in ``slots``) in one pass; return the last column's logits."""
        device = self.model.device
        width = max(len(piece) for piece in pieces)
        padded = [piece + piece[-1:] * (width - len(piece)) for piece in pieces]
        starts = [live[slot].cached for slot in slots]
        positions = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)
        # All but the last id of a prompt: that one is fed by each row.
        shared = [
            len(live[slot].prompt) - 1 if start >= len(live[slot].prompt) - 1 else 0
            for slot, start in zip(slots, starts, strict=True)
        ]
        for slot, piece in zip(slots, pieces, strict=True):
            live[slot].cached += len(piece)
        length = max(live[slot].cached for slot in slots)
        cache.select(slots, positions, length, rows=len(live), capacity=max(starts) + width)
        mask = (torch.arange(length, device=device) <= positions[:, :, None])[:, None]
        given: dict[str, object] = {"attention_mask": mask}
        attention = self.model.config._attn_implementation
        if attention == SHARED_ATTENTION:
            dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else self.model.dtype
            given["parts"] = together([live[slot].opening for slot in slots], shared, mask, dtype)
        elif attention != "sdpa":  # eager: a mask that is added to scores
            zeros = torch.zeros(mask.shape, dtype=self.model.dtype, device=device)
            given["attention_mask"] = zeros.masked_fill(~mask, torch.finfo(self.model.dtype).min)
        self.forward_passes += 1
        self.fed_tokens += sum(map(len, pieces))
        output = self.model(
            input_ids=torch.tensor(padded, device=device),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
            **given,
        )
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits

    def _sample(self, live: list[_Row], logits: torch.Tensor, temperature: float) -> list[int]:
        """Draw a token for every row that has fed all it had; return the slots whose episode is over, ascending."""
        ready = [i for i, row in enumerate(live) if not row.waiting]
        if not ready:
            return []
        if len(ready) < len(live):
            logits = logits[torch.tensor(ready, device=logits.device)]
        self.sampled_tokens += len(ready)
        if temperature == 0:
            logprobs = torch.log_softmax(logits, dim=-1)
            tokens = logprobs.argmax(dim=-1)
        else:
            heated = logits if temperature == 1.0 else logits / temperature
            logprobs = torch.log_softmax(heated, dim=-1)
            uniform = torch.tensor([live[i].draws.random() for i in ready], dtype=torch.float64, device=logits.device)
            tokens = inverse_cdf(logprobs, uniform)
        chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        drawn = zip(ready, tokens.tolist(), chosen, strict=True)
        return [i for i, token, logprob in drawn if live[i].take(token, logprob)]


def inverse_cdf(logprobs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return for each row the first token whose cumulative probability exceeds ``uniform`` (float64 in [0, 1)).

    The block of the token is drawn first, then the token in it. A token of probability 0 is never drawn.
    """
    # Cumulative sums of 49,152 tokens in float64 take as long as the head: those of blocks and of one block suffice.
    padding = -logprobs.shape[-1] % BLOCK
    blocks = torch.nn.functional.pad(logprobs.exp(), (0, padding)).view(len(logprobs), -1, BLOCK)
    sums = blocks.sum(dim=-1).double()
    ends = sums.cumsum(dim=-1)
    threshold = uniform[:, None] * ends[:, -1:]
    block = _first_above(ends, threshold)
    share = (threshold - (ends - sums).gather(1, block)) / sums.gather(1, block)
    inside = blocks.take_along_dim(block[:, :, None], 1)[:, 0].double().cumsum(dim=-1)
    return (block * BLOCK + _first_above(inside, share * inside[:, -1:]))[:, 0]


def _first_above(ascending: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Return for each row the place of the first number above ``threshold``, else of the first largest; (rows, 1)."""
    largest = torch.searchsorted(ascending, ascending[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(ascending, threshold, right=True), largest)
