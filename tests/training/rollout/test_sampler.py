"""The sampler against plain Hugging Face forward passes, and against itself in other batches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chatter import STOP, Chatter
from support.late import Late

from environments.base import InputError
from training.rollout.sampling import TokenPrompt

pytestmark = pytest.mark.slow

torch = Late("torch")
torch_dispatch = Late("torch.utils._python_dispatch")
transformers = Late("transformers")
in_process = Late("training.rollout.in_process")
row_cache = Late("training.rollout.row_cache")


def model(attention: str = "sdpa", **changes: object) -> Any:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape: dict[str, object] = {
        "vocab_size": 40,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "initializer_range": 0.3,
        "max_position_embeddings": 1024,
        "attn_implementation": attention,
    }
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**(shape | changes)))


def run(
    chatters: Sequence[Chatter],
    temperature: float = 0.9,
    attention: str = "sdpa",
    rows: int = 128,
    **options: int,
) -> in_process.InProcessSampler:
    sampler = in_process.InProcessSampler(model(attention), **options)
    sampler.run(chatters, temperature=temperature, concurrency=rows)
    return sampler


def reference_logprobs(chatter: Chatter, temperature: float) -> list[float]:
    """From one plain forward pass over everything, no cache."""
    with torch.no_grad():
        logits = model().eval()(input_ids=torch.tensor([chatter.ids])).logits[0, :-1] / (temperature or 1.0)
    logprobs = torch.log_softmax(logits, -1)
    picked = logprobs[torch.arange(len(chatter.ids) - 1), torch.tensor(chatter.ids[1:])].tolist()
    return [0.0, *picked]


@pytest.mark.parametrize("chunk", [1, 8, 1000])
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_logprobs_equal_a_plain_forward_over_the_whole_episode(temperature: float, chunk: int) -> None:
    chatters = [Chatter(seed) for seed in range(6)]
    run(chatters, temperature, chunk=chunk)
    for chatter in chatters:
        expected = reference_logprobs(chatter, temperature)
        compared = [(a, b) for a, b, own in zip(chatter.logprobs, expected, chatter.sampled, strict=True) if own]
        assert len(compared) >= chatter.actions
        assert max(abs(a - b) for a, b in compared) < 1e-4


def test_keys_and_values_are_kept_in_the_type_of_the_products() -> None:
    kept: set[object] = set()

    class Watched(row_cache.RowCache):
        def update(self, *args: object, **kwargs: object) -> Any:
            read = super().update(*args, **kwargs)
            kept.update(states.dtype for states in read)
            return read

    chatters = [Chatter(seed) for seed in range(4)]
    with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", torch.bfloat16):
        patch.setattr("training.rollout.in_process.RowCache", Watched)
        run(chatters)
        expected = [reference_logprobs(chatter, 0.9) for chatter in chatters]
    assert kept == {torch.bfloat16}
    for chatter, plain in zip(chatters, expected, strict=True):
        own = zip(chatter.logprobs, plain, chatter.sampled, strict=True)
        assert max(abs(a - b) for a, b, sampled in own if sampled) < 0.1


def test_autocast_rounds_each_weight_once_and_leaves_gradients_to_what_follows() -> None:
    rounded: list[int] = []

    class Watched(torch_dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]
        def __torch_dispatch__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.aten._to_copy.default and args[0].dtype == torch.float32:
                rounded.append(args[0].data_ptr())
            return function(*args, **(kwargs or {}))

    sampler = in_process.InProcessSampler(model())
    weights = {weight.data_ptr() for weight in sampler.model.parameters() if weight.dim() == 2}
    with torch.autocast("cpu", torch.bfloat16):
        with Watched():
            sampler.run([Chatter(seed) for seed in range(4)], temperature=0.9, concurrency=4)
        sampler.model(input_ids=torch.tensor([[9, 10, 11]])).logits.sum().backward()
    times = Counter(pointer for pointer in rounded if pointer in weights)
    assert sampler.forward_passes > 1
    assert set(times.values()) == {1}
    assert all(weight.grad is not None for weight in sampler.model.parameters())


def test_eager_attention_samples_the_same() -> None:
    chatters, eager = [Chatter(seed) for seed in range(4)], [Chatter(seed) for seed in range(4)]
    run(chatters)
    run(eager, attention="eager")
    assert [c.ids for c in chatters] == [c.ids for c in eager]


def test_episodes_that_outgrow_the_cache_block_stay_right() -> None:
    chatters = [Chatter(1, actions=14), Chatter(2, actions=1), Chatter(3, actions=9)]
    run(chatters)
    assert len(chatters[0].ids) > 256
    for chatter in chatters:
        expected = reference_logprobs(chatter, 0.9)
        errors = [abs(a - b) for a, b, o in zip(chatter.logprobs, expected, chatter.sampled, strict=True) if o]
        assert max(errors) < 1e-4


@cache
def sixteen_alone() -> list[Chatter]:
    alone = [Chatter(seed, actions=seed % 5) for seed in range(16)]
    for chatter in alone:
        run([chatter])
    return alone


@pytest.mark.parametrize("limits", [{"rows": 1}, {"rows": 3}, {"rows": 16}, {"rows": 16, "chunk": 1}])
def test_results_do_not_depend_on_the_batch(limits: dict[str, int]) -> None:
    """The seeds are fixed, and none of their numbers lies within rounding (1e-6) of a boundary."""
    together = [Chatter(seed, actions=seed % 5) for seed in reversed(range(16))]
    run(together, **limits)
    for one, other in zip(sixteen_alone(), reversed(together), strict=True):
        assert one.ids == other.ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def fed(sampler: in_process.InProcessSampler, chatters: Sequence[Chatter], rows: int = 128) -> list[tuple[int, int]]:
    """Shapes (rows, tokens of each, padding included) of everything that the model was given, pass by pass."""
    shapes: list[tuple[int, int]] = []

    def watch(module: object, args: object, given: dict[str, torch.Tensor]) -> None:
        shapes.append(tuple(given["input_ids"].shape))

    handle = sampler.model.register_forward_pre_hook(watch, with_kwargs=True)
    sampler.run(chatters, temperature=0.9, concurrency=rows)
    handle.remove()
    assert len(shapes) == sampler.forward_passes
    return shapes


def test_no_token_is_fed_twice() -> None:
    """One row at a time has no padding: every token but the last sampled one is fed, and fed once."""
    sampler = in_process.InProcessSampler(model())
    chatters = [Chatter(seed, actions=5) for seed in range(4)]
    shapes = fed(sampler, chatters, rows=1)
    assert sum(rows * width for rows, width in shapes) == sum(len(chatter.ids) - 1 for chatter in chatters)
    assert max(width for _, width in shapes) < 31, "no pass is longer than the longest suffix: history stays cached"


@pytest.mark.parametrize(("rows", "chunk"), [(3, 1), (16, 3), (3, 1000)])
def test_no_token_is_fed_twice_in_a_batch(rows: int, chunk: int) -> None:
    chatters = [Chatter(seed, actions=1 + seed % 5) for seed in range(16)]
    sampler = run(chatters, rows=rows, chunk=chunk)
    assert sampler.fed_tokens == sum(len(chatter.ids) - 1 for chatter in chatters)


def test_finished_episodes_leave_the_batch() -> None:
    """Fed token by token, each pass holds exactly the episodes that are not over yet."""
    sampler = in_process.InProcessSampler(model(), chunk=1000)
    chatters = [Chatter(seed, actions=1 + seed, longest=4) for seed in range(6)]
    first = [Chatter(seed, actions=1 + seed, longest=4) for seed in range(6)]
    prompts = [chatter.observe().ids for chatter in first]
    shapes = fed(sampler, chatters)
    lengths = [len(chatter.ids) - len(prompt) for chatter, prompt in zip(chatters, prompts, strict=True)]
    decoding = shapes[-max(lengths) :]
    assert decoding == [(sum(length > step for length in lengths), 1) for step in range(max(lengths))]
    assert decoding[0][0] == 6
    assert decoding[-1][0] == 1


def openings(shared: int) -> list[tuple[int, ...]]:
    """Three groups of four equal prompts: two groups share their first ``shared`` ids, the third shares none."""
    rng = random.Random(7)
    common = [rng.randrange(8, 40) for _ in range(shared)]
    tails = [[8 + group, *(rng.randrange(8, 40) for _ in range(10 + group))] for group in range(3)]
    prompts = [common + tails[0], common + tails[1], [39 - common[0] + 8] + tails[2]]
    return [tuple(prompt) for prompt in prompts for _ in range(4)]


@pytest.mark.parametrize(("shared", "rows"), [(60, 16), (5, 5)])
def test_shared_prompts_are_fed_once_and_change_nothing(shared: int, rows: int) -> None:
    prompts = openings(shared)
    alone = [Chatter(seed, opening=prompt) for seed, prompt in enumerate(prompts)]
    for chatter in alone:
        run([chatter])
    together = [Chatter(seed, opening=prompt) for seed, prompt in enumerate(prompts)]
    sampler = run(together, rows=rows)
    for one, other in zip(alone, together, strict=True):
        assert one.ids == other.ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    everything = sum(len(chatter.ids) - 1 for chatter in together)
    if rows == 16:
        copied = [3 * (len(prompt) - 1) for prompt in prompts[::4]] + [shared * (shared >= in_process.SHARED)]
        assert sampler.fed_tokens == everything - sum(copied)
    else:
        assert sampler.fed_tokens < everything


@pytest.mark.parametrize(("dtype", "rows"), [("float32", 5), ("bfloat16", 16)])
def test_rows_that_attend_to_a_shared_prompt_together_have_the_logprobs_of_a_plain_forward(
    dtype: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[int]] = []

    def watched(*args: Any) -> Any:
        parts = together(*args)
        given.append([part.shared for part in parts or ()])
        return parts

    together = in_process.together
    monkeypatch.setattr("training.rollout.in_process.together", watched)
    prompts = [*openings(60), (9, 10, 11), (12,) * 50]
    chatters = [Chatter(seed, actions=1 + seed % 5, opening=prompt) for seed, prompt in enumerate(prompts)]
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
        sampler = run(chatters, rows=rows)
        expected = [reference_logprobs(chatter, 0.9) for chatter in chatters]
    assert any(len({shared for shared in parts if shared}) > 1 for parts in given)
    assert any(0 in parts and any(parts) for parts in given), "rows alone beside rows that share"
    assert given[-1] == [], "a row that is left alone attends as ever"
    assert sampler.model.config._attn_implementation == "sdpa"
    for chatter, plain in zip(chatters, expected, strict=True):
        own = zip(chatter.logprobs, plain, chatter.sampled, strict=True)
        assert max(abs(a - b) for a, b, sampled in own if sampled) < (1e-4 if dtype == "float32" else 0.1)


def test_an_attention_with_a_cap_is_left_to_transformers() -> None:
    with pytest.raises(ValueError, match="softcap"):
        transformers.AttentionInterface()[row_cache.SHARED_ATTENTION](
            torch.nn.Module(), *(torch.zeros(1, 1, 1, 8) for _ in range(3)), None, parts=[], softcap=5.0
        )


def test_a_prompt_that_begins_another_one_is_shared() -> None:
    rng = random.Random(3)
    long = tuple(rng.randrange(8, 40) for _ in range(90))
    prompts = [long[:40], long, long[:1], long[:80], long[:41]]
    alone = [Chatter(seed, opening=prompt) for seed, prompt in enumerate(prompts)]
    for chatter in alone:
        run([chatter])
    together = [Chatter(seed, opening=prompt) for seed, prompt in enumerate(prompts)]
    sampler = run(together)
    assert [chatter.ids for chatter in alone] == [chatter.ids for chatter in together]
    assert sampler.fed_tokens < sum(len(chatter.ids) - 1 for chatter in together) - 150


def test_greedy_takes_the_likeliest_token() -> None:
    chatter = Chatter(11)
    run([chatter], temperature=0.0)
    with torch.no_grad():
        likeliest = model().eval()(input_ids=torch.tensor([chatter.ids])).logits[0].argmax(-1).tolist()
    own = [i for i, sampled in enumerate(chatter.sampled) if sampled]
    assert [chatter.ids[i] for i in own] == [likeliest[i - 1] for i in own]


def test_an_action_ends_at_its_stop_id_or_at_its_limit() -> None:
    chatters = [Chatter(seed, actions=6) for seed in range(12)]
    run(chatters)
    actions = [message.ids for chatter in chatters for message in chatter.acted]
    assert any(STOP in ids for ids in actions)
    assert any(len(ids) == 9 and STOP not in ids for ids in actions)
    for ids in actions:
        assert STOP not in ids[:-1]
        assert ids[-1] == STOP or len(ids) == 9


def test_counts_what_it_did_and_restores_training_mode() -> None:
    trained = model()
    trained.train(True)
    sampler = in_process.InProcessSampler(trained)
    chatters = [Chatter(seed) for seed in range(3)]
    sampler.run(chatters, temperature=0.9, concurrency=128)
    assert trained.training
    assert sampler.sampled_tokens == sum(sum(chatter.sampled) for chatter in chatters)
    longest = max(len(chatter.ids) for chatter in chatters)
    assert 0 < sampler.forward_passes <= longest


def test_nothing_to_sample_is_no_error() -> None:
    run([])
    run([Chatter(0, actions=0)])


def test_an_empty_suffix_is_a_mistake_of_the_caller() -> None:
    class Mute(Chatter):
        def observe(self) -> TokenPrompt:
            return TokenPrompt([], 4)

    with pytest.raises(ValueError, match="at least one id"):
        run([Mute(0)])


def test_refuses_what_it_cannot_decode() -> None:
    with pytest.raises(InputError, match="temperature is -1"):
        run([], temperature=-1)
    sliding = model(use_sliding_window=True, sliding_window=8, max_window_layers=0)
    with pytest.raises(InputError, match="without full attention"):
        in_process.InProcessSampler(sliding)


def test_draws_follow_the_probabilities() -> None:
    logprobs = torch.tensor([0.0, 0.5, 0.2, 0.3]).log().expand(20_000, 4)
    rng = random.Random(3)
    drawn = in_process.inverse_cdf(logprobs, torch.tensor([rng.random() for _ in range(20_000)], dtype=torch.float64))
    shares = torch.bincount(drawn, minlength=4) / 20_000
    assert shares[0] == 0
    assert torch.allclose(shares, torch.tensor([0.0, 0.5, 0.2, 0.3]), atol=0.015)


@pytest.mark.parametrize("vocabulary", [1, 255, 256, 257, 3000])
def test_draws_of_a_large_vocabulary_are_those_of_all_cumulative_sums(vocabulary: int) -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(500, vocabulary)).masked_fill(torch.rand(500, vocabulary) < 0.2, float("-inf"))
    logits[:, 0] = 0.0
    logprobs = torch.log_softmax(logits, -1)
    uniform = torch.rand(500, dtype=torch.float64)
    ends = logprobs.double().exp().cumsum(-1)
    expected = torch.searchsorted(ends, uniform[:, None] * ends[:, -1:], right=True)[:, 0]
    assert torch.equal(in_process.inverse_cdf(logprobs, uniform), expected)
    for extreme in (0.0, 1 - 2**-53):
        drawn = in_process.inverse_cdf(logprobs, torch.full((500,), extreme, dtype=torch.float64))
        assert logprobs.gather(1, drawn[:, None]).min() > float("-inf")


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.just(float("-inf")), st.floats(-40, 5)), min_size=1, max_size=20).filter(
        lambda logits: max(logits) > float("-inf")
    ),
    st.floats(0, 1, exclude_max=True),
)
def test_a_draw_is_a_token_of_positive_probability(logits: list[float], uniform: float) -> None:
    logprobs = torch.log_softmax(torch.tensor([logits]), -1)
    token = int(in_process.inverse_cdf(logprobs, torch.tensor([uniform], dtype=torch.float64)))
    assert logprobs[0, token] > float("-inf")
