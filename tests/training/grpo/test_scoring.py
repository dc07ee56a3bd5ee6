"""Scores with shared prompts against scores of whole rows: log-probabilities, entropies, losses and gradients."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.late import Late
from support.played_round import K, play
from support.small_policy import CLASSES, small_tasks

from environments.bfcl.benchmark import BFCLEnvironment

pytestmark = pytest.mark.slow

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
torch = Late("torch")
transformers = Late("transformers")
scoring = Late("training.grpo.scoring")

WIDTH = 12
GROUPS = [(70, 4), (3, 3), (40, 2), (25, 1)]
"""Tokens of a prompt, and rows that begin with it."""


def model(name: str) -> Any:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape = {
        "vocab_size": 90,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "initializer_range": 0.3,
        "attn_implementation": "sdpa",
    }
    made = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**shape))
    made.train()
    return made


def batch() -> tuple[Any, Any, Any]:
    """Ids, what of them is no padding, and what was written; the third row wrote nothing."""
    longest = max(length for length, _ in GROUPS)
    ids = torch.zeros(sum(rows for _, rows in GROUPS), longest + WIDTH, dtype=torch.long)
    attended, written = torch.zeros_like(ids), torch.zeros(len(ids), WIDTH, dtype=torch.long)
    row = 0
    for length, rows in GROUPS:
        prompt = torch.randint(1, 90, (length,))
        for _ in range(rows):
            own = 3 + row * 5 % 9
            ids[row, longest - length : longest] = prompt
            ids[row, longest : longest + own] = torch.randint(1, 90, (own,))
            attended[row, longest - length : longest + own] = 1
            written[row, :own] = torch.rand(own) < 0.6
            row += 1
    written[2] = 0
    return ids, attended, written


def whole(policy: Any, ids: Any, attended: Any, written: Any) -> tuple[Any, Any]:
    """From one plain forward pass over padded rows."""
    positions = (attended.cumsum(1) - 1).clamp(min=0)
    logits = policy(input_ids=ids, attention_mask=attended, position_ids=positions).logits[:, -WIDTH - 1 : -1] / 0.9
    logps = logits.log_softmax(-1)
    picked = logps.gather(2, ids[:, -WIDTH:, None])[..., 0]
    return picked * written, -(logps.exp() * logps).sum(-1) * written


def gradients(policy: Any, loss: Any) -> list[Any]:
    policy.zero_grad()
    loss.backward()
    return [weight.grad.clone() for weight in policy.parameters() if weight.requires_grad]


def check_gradients(ours: list[Any], plain: list[Any]) -> None:
    assert max(float(one.abs().max()) for one in plain) > 0
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * float(other.abs().max()) + 1e-9)


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
@pytest.mark.parametrize("tokens", [4096, 20])
def test_shared_prompts_change_neither_scores_nor_gradients(
    name: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.grpo.scoring.TOKENS", tokens)
    monkeypatch.setattr("training.grpo.scoring.TOKENS_TOGETHER", tokens)
    policy, (ids, attended, written) = model(name), batch()
    logps, entropies = whole(policy, ids, attended, written)
    weights = torch.linspace(-1, 1, logps.numel()).view_as(logps)
    plain = gradients(policy, (logps * weights).sum())
    fed: list[int] = []
    policy.model.register_forward_pre_hook(
        lambda module, args, given: fed.append(given["input_ids"].numel()), with_kwargs=True
    )
    ours = scoring.score_written(policy, ids, attended, written, 0.9, entropy=True)
    torch.testing.assert_close(ours.logps, logps, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.entropies, entropies, rtol=0, atol=1e-5)
    assert max(fed) <= max(tokens, 69), "the longest prompt goes alone"
    assert sum(fed) < attended.sum() - 3 * 60, "the prompt of four rows is fed once, and little padding"
    once = sum(fed)
    check_gradients(gradients(policy, (ours.logps * weights).sum()), plain)
    again = 2 if tokens == 20 else 1
    assert sum(fed) == again * once, "a group of more tokens is computed again for its gradient"


def test_rows_that_are_not_learnt_from_have_scores_and_no_gradient() -> None:
    policy, (ids, attended, written) = model("Llama"), batch()
    learnt = torch.arange(len(ids)) % 2 == 0
    logps, _ = whole(policy, ids, attended, written)
    ours = scoring.score_written(policy, ids, attended, written, 0.9, learnt=learnt)
    torch.testing.assert_close(ours.logps, logps, rtol=0, atol=1e-5)
    plain = gradients(policy, (logps * learnt[:, None]).sum())
    check_gradients(gradients(policy, ours.logps.sum()), plain)


def test_a_batch_without_a_written_token_has_a_gradient_of_zero() -> None:
    policy, (ids, attended, written) = model("Llama"), batch()
    nothing = torch.zeros_like(written)
    ours = scoring.score_written(policy, ids, attended, nothing, 0.9)
    found = gradients(policy, (ours.logps * nothing).sum())
    assert all(not gradient.any() for gradient in found)


def test_only_large_vocabularies_and_full_attention_are_scored_so(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = model("Qwen3")
    assert not scoring.can_score(policy)
    monkeypatch.setattr("training.grpo.scoring.LARGE_VOCABULARY", 90)
    assert scoring.can_score(policy)
    policy.config.sliding_window = 8
    assert not scoring.can_score(policy)
    policy.config.sliding_window = None
    policy.config._attn_implementation = "eager"
    assert not scoring.can_score(policy)


@pytest.mark.parametrize(
    ("policy", "training"),
    [({}, {"micro_batch": K}), ({}, {"updates_per_step": 2}), ({"lora": {"rank": 4}}, {}), ({"dtype": "bfloat16"}, {})],
)
def test_the_loss_of_a_step_and_its_gradient_are_those_of_whole_rows(
    policy: dict[str, object], training: dict[str, object], tmp_path: Path
) -> None:
    from support.chat_models import save_model

    starter = save_model(tmp_path / "starter", "qwen3", initializer_range=0.2)
    tasks = [task.model_copy(update={"tools": (task.reference[0][0].name, "find")}) for task in small_tasks()[2:4]]
    given = {"max_new_tokens": 8, "max_tokens": 3000, "max_actions": 2, "kl": 0.1, **training}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.grpo.scoring.LARGE_VOCABULARY", 1)
        calls = watched(patch)
        run = play(starter, tmp_path / "run", [tasks], BFCLEnvironment(CLASSES), patch, policy=policy, **given)
        trainer, inputs = run.trainer, run.batches[0]
        # The rewards of a random model are equal, and it is its own reference.
        inputs["advantages"] = torch.linspace(-1, 1, len(inputs["advantages"]))
        inputs["ref_per_token_logps"] = inputs["ref_per_token_logps"] - 0.5
        learning = [groups for groups, gradient in calls if gradient]
        assert learning == ([1, 1] if training else [2]), "a micro-batch and an update hold whole groups"
        ours = trainer.compute_loss(trainer.model, inputs)
        assert calls[-1] == (2, True)
        found = gradients(trainer.model, ours)
        patch.setattr("training.grpo.scoring.LARGE_VOCABULARY", 10**6)
        plain = trainer.compute_loss(trainer.model, inputs)
        expected = gradients(trainer.model, plain)
    figures = trainer._metrics["train"]
    rough = policy.get("dtype") == "bfloat16"
    assert float(ours.detach()) == pytest.approx(float(plain.detach()), rel=2e-2 if rough else 1e-4)
    for name in ("kl", "entropy"):
        assert figures[name][-2] == pytest.approx(figures[name][-1], rel=2e-2 if rough else 1e-4)
    if not rough:
        check_gradients(found, expected)


def watched(patch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Of each call: the distinct prompts of its rows, and whether gradients are wanted."""
    calls: list[tuple[int, bool]] = []
    real: Callable[..., Any] = scoring.score_written

    def score(policy: Any, ids: Any, attended: Any, written: Any, *args: object, **given: object) -> Any:
        calls.append((len(torch.unique(ids[:, : -written.shape[1]], dim=0)), torch.is_grad_enabled()))
        return real(policy, ids, attended, written, *args, **given)

    patch.setattr("training.grpo.trainer.score_written", score)
    return calls
