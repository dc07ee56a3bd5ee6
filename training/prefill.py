"""Which prompts and long suffixes go through the model together, and how much of a prompt another one has already."""

from __future__ import annotations

from collections.abc import Sequence

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
