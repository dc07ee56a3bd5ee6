"""Supervised updates: batches of like length within bounds, the loss of each row, shares of several processes."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.late import Late

from training.grpo.ranks import ALONE, Ranks

pytestmark = pytest.mark.slow

torch = Late("torch")
supervised = Late("training.supervised")


@given(lengths=st.lists(st.integers(1, 50), max_size=60), size=st.integers(1, 9), seed=st.integers(0, 99))
def test_batches_are_of_like_length_and_size(lengths, size, seed) -> None:
    made = supervised.batches(lengths, size, seed)
    assert sorted(place for batch in made for place in batch) == list(range(len(lengths)))
    assert len(made) == -(-len(lengths) // size)
    assert not made or max(map(len, made)) - min(map(len, made)) <= 1
    ranges = sorted((min(lengths[n] for n in batch), max(lengths[n] for n in batch)) for batch in made)
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))
    assert made == supervised.batches(lengths, size, seed)


@given(
    lengths=st.lists(st.integers(1, 50), max_size=60),
    size=st.integers(1, 9),
    tokens=st.integers(1, 120),
    seed=st.integers(0, 99),
)
def test_a_batch_holds_no_more_tokens_than_allowed_unless_it_is_one_row(lengths, size, tokens, seed) -> None:
    made = supervised.batches(lengths, size, seed, tokens)
    assert sorted(place for batch in made for place in batch) == list(range(len(lengths)))
    for batch in made:
        assert len(batch) <= size
        assert len(batch) == 1 or len(batch) * max(lengths[place] for place in batch) <= tokens
        assert [lengths[place] for place in batch] == sorted(lengths[place] for place in batch)


def test_the_order_of_batches_is_drawn_and_not_that_of_their_lengths() -> None:
    orders = {tuple(batch[0] for batch in supervised.batches(range(40), 2, seed)) for seed in range(5)}
    assert len(orders) == 5
    assert tuple(range(0, 40, 2)) not in orders


def test_the_rate_rises_and_falls() -> None:
    rates = [supervised.rate(number, 100) for number in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(rates[9], abs=0.01)
    assert rates[-1] == pytest.approx(0.1, abs=0.02)
    assert supervised.rate(0, 1) == 1.0


@pytest.fixture(scope="module")
def model():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.3}
    torch.manual_seed(0)
    made = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, tie_word_embeddings=True))
    return made.train(False)


def rows(*lengths: int) -> list:
    """Rows of random ids, sorted by length; about half of what follows the prompt is written."""
    from training.rollout.episodes import TokenRow

    torch.manual_seed(1)
    made = []
    for length in sorted(lengths):
        ids = torch.randint(64, (length,)).tolist()
        mask = [1, *torch.randint(2, (length - 3,)).tolist()]
        made.append(TokenRow(ids[:2], ids[2:], [0.0] * (length - 2), mask))
    return made


def test_the_loss_is_that_of_each_row_on_its_own(model) -> None:
    from trl.trainer.utils import add_fused_lm_head

    batch, heat, device = rows(5, 9, 14, 20), 0.7, torch.device("cpu")
    apart = 0.0
    for row in batch:
        logits = model(torch.tensor([row.prompt_ids + row.completion_ids])).logits[0].detach() / heat
        scores = logits.log_softmax(-1)[len(row.prompt_ids) - 1 : -1]
        apart -= sum(float(scores[n, one]) for n, one in enumerate(row.completion_ids) if row.mask[n])
    assert supervised.written_loss(model, batch, heat, device, fused=False).item() == pytest.approx(apart, rel=1e-5)
    with_head = copy.deepcopy(model)
    add_fused_lm_head(with_head, temperature=heat)
    assert supervised.written_loss(with_head, batch, heat, device, fused=True).item() == pytest.approx(apart, rel=1e-5)


@pytest.mark.parametrize("lengths", [(9,), (5, 9, 14, 20)])
@pytest.mark.parametrize("together", [0, 30])
def test_parts_and_the_shares_of_several_processes_add_up_to_the_update_of_one(
    model, lengths, together, monkeypatch
) -> None:
    batch = rows(*lengths)

    def update(ranks: Ranks = ALONE, rows_together: int | None = None) -> tuple[float, dict]:
        model.zero_grad()
        learning = supervised.Learning(learning_rate=1e-3, temperature=0.9, rows_together=rows_together)
        loss = supervised.backward(model, batch, learning, ranks)
        return loss, {name: value.grad.clone() for name, value in model.named_parameters()}

    whole, gradients = update()
    if together:
        monkeypatch.setattr("training.supervised.TOKENS_TOGETHER", together)
    for several in ([update(Ranks(index, 3), 2) for index in range(3)], [update()]):
        assert sum(loss for loss, _ in several) == pytest.approx(whole)
        for name, value in gradients.items():
            torch.testing.assert_close(sum(share[name] for _, share in several), value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_weights_stay_float32_and_the_loss_falls(model, bfloat16) -> None:
    batch = rows(5, 9, 14, 20)
    learning = supervised.Learning(learning_rate=1e-2, bfloat16=bfloat16)
    losses = list(supervised.learn(model, [batch] * 8, learning))
    assert losses[-1] < 0.8 * losses[0]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not model.training


def test_a_loss_that_is_not_finite_ends_the_updates(model) -> None:
    weight = next(model.parameters())
    before = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    with pytest.raises(supervised.Diverged, match="nan"):
        list(supervised.learn(model, [rows(5)], supervised.Learning(learning_rate=1e-2)))
    with torch.no_grad():
        weight.copy_(before)
