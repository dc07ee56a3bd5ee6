"""Which pieces share a pass, and what two prompts have in common."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.late import Late

in_process = Late("training.rollout.in_process")
row_cache = Late("training.rollout.row_cache")

SMALL, TOKENS = 64, 8192


def test_the_sizes_are_those_of_the_sampler() -> None:
    assert (SMALL, TOKENS) == (in_process.SMALL, in_process.PREFILL_TOKENS)


IDS = st.lists(st.integers(0, 2), max_size=12)


@given(IDS, IDS, IDS)
def test_shared_length_is_that_of_the_common_beginning(common: list[int], one: list[int], other: list[int]) -> None:
    first, second = common + one, common + other
    expected = 0
    while expected < min(len(first), len(second)) and first[expected] == second[expected]:
        expected += 1
    assert in_process.shared_length(first, second) == expected >= len(common)


@given(st.lists(st.one_of(st.integers(1, 40), st.integers(1, 2 * TOKENS)), max_size=40))
def test_every_piece_is_in_one_pass_that_is_not_too_large(lengths: list[int]) -> None:
    together = in_process.passes(lengths)
    assert sorted(index for indices in together for index in indices) == list(range(len(lengths)))
    for indices in together:
        assert indices == sorted(indices)
        padded = len(indices) * max(lengths[index] for index in indices)
        assert padded <= TOKENS or len(indices) == 1
        assert padded <= max(SMALL, 2 * sum(lengths[index] for index in indices))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([3000, 20, 21, 22], [[1, 2, 3], [0]]),
        ([5, 12, 9], [[0, 1, 2]]),
        ([TOKENS, TOKENS], [[0], [1]]),
    ],
)
def test_like_lengths_go_together(lengths: list[int], expected: list[list[int]]) -> None:
    assert in_process.passes(lengths) == expected


@pytest.mark.parametrize("length", [0, 1, 100, 127, 128])
def test_a_prompt_is_copied_whether_or_not_it_fills_the_block(length: int) -> None:
    """A block has 128 positions; torch treats a source that fills all of them as one memory with its target."""
    torch = Late("torch")
    cache = row_cache.RowCache()
    states = torch.arange(128.0 * 2 * 3).reshape(1, 2, 128, 3)
    cache.select([0], torch.arange(128)[None], 128, rows=1, capacity=128)
    cache.update(states, -states, 0)
    cache.copy(0, [1, 2], length)
    for part, kept in (("keys", states), ("values", -states)):
        block = cache.blocks[0, part]
        assert block.shape[:2] == (3, 2)
        assert all(torch.equal(block[row, :, :length], kept[0, :, :length]) for row in (0, 1, 2))
        assert torch.equal(block[0], kept[0])
