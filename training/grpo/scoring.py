"""Log-probabilities of what a policy wrote: a group's prompt is computed once, the head on written tokens alone.

The K rollouts of a task begin with the same prompt, which is most of their tokens. Its keys and values are computed
once, with their gradient, and every row of the group attends to them; gradients of the rows add up in them. Of a group
of more than ``TOKENS_TOGETHER`` tokens no activations are kept: prompt and rows are computed again for the backward
pass, in parts of that many tokens, so that a group takes no more memory for being large. All of this is our choice, and
equal to scoring each row whole but for float rounding. Import this module late: it needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import DynamicCache, DynamicLayer

from environments.base import InputError
from training.device_memory import LARGE_VOCABULARY, TOKENS_TOGETHER
from training.preflight import check_attention
from training.supervised import head_on

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Computed = TypeVar("Computed")

TOKENS = 4096
"""Tokens of one pass without a gradient at most, padding included; a longer row goes alone (our choice)."""

SHARED = 32
"""Tokens of a prompt that sharing must save before it is computed in a pass of its own (our choice)."""


def can_score(model: torch.nn.Module) -> bool:
    """Return whether ``score_written`` can score with ``model``, and is faster than whole rows.

    It can where sdpa attends to everything in all layers.
    """
    inner = cast("PreTrainedModel", model)
    try:
        check_attention(inner.config.get_text_config())
    except InputError:
        return False
    return (
        inner.device.type == "cpu"
        and inner.config._attn_implementation == "sdpa"
        and inner.config.get_text_config().vocab_size >= LARGE_VOCABULARY
    )


class Scores(NamedTuple):
    """Log-probabilities and entropies in nats, (rows, tokens after the prompt); 0 where nothing was written."""

    logps: torch.Tensor
    entropies: torch.Tensor | None


class _Row(NamedTuple):
    """A row without padding, up to the last token that it wrote: its ids, and which of them are scored.

    ``place`` is where the value of its first id after the prompt goes.
    """

    place: int
    prompt: tuple[int, ...]
    ids: torch.Tensor
    wanted: torch.Tensor


def score_written(
    model: torch.nn.Module,
    ids: torch.Tensor,
    attended: torch.Tensor,
    written: torch.Tensor,
    temperature: float,
    *,
    learnt: torch.Tensor | None = None,
    entropy: bool = False,
) -> Scores:
    """Return the log-probabilities of the ``written`` tokens, of logits divided by ``temperature``.

    Args:
        ids, attended: (rows, prompt and completion): prompts are padded on the left, completions on the right.
        written: (rows, completion), 1 where the policy wrote.
        learnt: (rows,), which rows need a gradient; None: all. The others are computed without one.
        entropy: return entropies, too; they have no gradient.
    """
    keep = written.shape[1]
    written = written.bool()
    learnt = torch.ones(len(ids), dtype=torch.bool) if learnt is None else learnt.clone()
    if torch.is_grad_enabled() and not written[learnt].any():
        # The loss has to hang on the weights; where nothing was written the caller masks the value.
        learnt[0], written = True, written.clone()
        written[0, 0] = True
    places: list[torch.Tensor] = []
    logps: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    # Rows with a gradient come first: autocast keeps weights as it first casts them.
    for gradient in (True, False):
        some = [_row(ids[i], attended[i], written[i], i * keep) for i in range(len(ids)) if learnt[i] == gradient]
        with torch.set_grad_enabled(torch.is_grad_enabled() and gradient):
            for place, scored, spread in _scored([row for row in some if row is not None], model, temperature, entropy):
                places.append(place)
                logps.append(scored)
                entropies.append(spread)
    zeros = torch.zeros(len(ids) * keep)
    if not places:
        return Scores(zeros.view(-1, keep), zeros.view(-1, keep) if entropy else None)
    index = torch.cat(places)

    def spread_out(values: Sequence[torch.Tensor]) -> torch.Tensor:
        return zeros.index_copy(0, index, torch.cat(list(values))).view(-1, keep)

    return Scores(spread_out(logps), spread_out(entropies) if entropy else None)


def _row(ids: torch.Tensor, attended: torch.Tensor, written: torch.Tensor, place: int) -> _Row | None:
    """Return the row without padding and without what follows its last written token; None if it wrote nothing."""
    if not written.any():
        return None
    keep = len(written)
    end = int(written.nonzero()[-1]) + 1
    prompt = ids[:-keep][attended[:-keep].bool()]
    wanted = torch.cat([torch.zeros(len(prompt), dtype=torch.bool), written[:end]])
    return _Row(place, tuple(prompt.tolist()), torch.cat([prompt, ids[-keep:][:end]]), wanted)


def _scored(
    rows: Sequence[_Row], model: torch.nn.Module, temperature: float, entropy: bool
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    groups: dict[tuple[int, ...], list[_Row]] = {}
    for row in rows:
        groups.setdefault(row.prompt, []).append(row)
    alone: list[_Row] = []
    for prompt, group in groups.items():
        # The last id of a prompt is fed with each row: its output predicts the row's first token.
        shared = len(prompt) - 1
        if shared * (len(group) - 1) < SHARED:
            alone += group
            continue
        again = shared + sum(len(row.ids) - shared for row in group) > TOKENS_TOGETHER
        held = _maybe_again(again, _prompt, model, prompt[:shared])
        for part in _parts(group, shared):
            yield _maybe_again(again, _pass, model, part, held, shared, temperature, entropy)
    again = sum(len(row.ids) for row in alone) > TOKENS_TOGETHER
    for part in _parts(alone, 0):
        yield _maybe_again(again, _pass, model, part, (), 0, temperature, entropy)


def _maybe_again(again: bool, compute: Callable[..., Computed], *given: object) -> Computed:
    """Return ``compute(*given)``; with ``again`` its activations are not kept but computed again for the gradient."""
    if again and torch.is_grad_enabled():
        return cast("Computed", checkpoint(compute, *given, use_reentrant=False))
    return compute(*given)


def _prompt(model: torch.nn.Module, ids: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Return keys and values of the prompt ``ids``, layer by layer: each (1, heads, tokens, size of a head)."""
    cache = DynamicCache()
    with head_on(model, torch.zeros(1, len(ids), dtype=torch.bool)):
        model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True)
    layers = cast("list[DynamicLayer]", cache.layers)
    return tuple(cast("torch.Tensor", held) for layer in layers for held in (layer.keys, layer.values))


def _parts(rows: Sequence[_Row], shared: int) -> Iterator[list[_Row]]:
    """Yield rows of like length, of so many tokens after their first ``shared``; padding at most doubles them."""
    tokens_together = TOKENS_TOGETHER if torch.is_grad_enabled() else TOKENS
    part: list[_Row] = []
    tokens = 0
    for row in sorted(rows, key=lambda row: len(row.ids)):
        length = len(row.ids) - shared
        padded = (len(part) + 1) * length
        if part and (padded > tokens_together or padded > 2 * (tokens + length)):
            yield part
            part, tokens = [], 0
        part.append(row)
        tokens += length
    if part:
        yield part


def _pass(
    model: torch.nn.Module,
    rows: Sequence[_Row],
    held: Sequence[torch.Tensor],
    shared: int,
    temperature: float,
    entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Score rows. ``held`` has the keys and values of their first ``shared`` ids as ``_prompt`` returns them, or none.

    Returns places, log-probabilities and entropies of the written tokens, row after row.
    """
    ids = pad_sequence([row.ids[shared:] for row in rows], batch_first=True)
    wanted = pad_sequence([row.wanted[shared:] for row in rows], batch_first=True)
    given: dict[str, object] = {"use_cache": False}
    if held:
        width = ids.shape[1]
        positions = torch.arange(shared, shared + width)
        own = DynamicCache()
        of_rows = [layer.expand(len(rows), -1, -1, -1) for layer in held]
        for number, (keys, values) in enumerate(zip(of_rows[::2], of_rows[1::2], strict=True)):
            own.update(keys, values, number)
        # Padding is behind the rows, where no token of theirs attends to it.
        seen = torch.arange(shared + width) <= positions[:, None]
        given = {
            "use_cache": True,
            "past_key_values": own,
            "position_ids": positions.expand(len(rows), -1),
            "attention_mask": seen.expand(len(rows), 1, -1, -1),
        }
    # The logits that predict a token are those before it.
    with head_on(model, torch.nn.functional.pad(wanted[:, 1:], (0, 1))):
        logits = model(input_ids=ids, **given).logits.float() / temperature
    normaliser = torch.logsumexp(logits, dim=-1)
    logps = logits.gather(1, ids[wanted][:, None])[:, 0] - normaliser
    with torch.no_grad():
        probabilities = (logits - normaliser[:, None]).exp() if entropy else logits[:, :0]
        spread = normaliser - (probabilities * logits).sum(dim=-1) if entropy else normaliser
    places = [row.place - len(row.prompt) + row.wanted.nonzero()[:, 0] for row in rows]
    return torch.cat(places), logps, spread
