"""Advantages and loss in their pure form: by hand, and equal to what TRL computes on random batches."""

from __future__ import annotations

import math
from collections import defaultdict
from types import SimpleNamespace

import pytest
from support.late import Late

torch = Late("torch")
pure = Late("training.grpo.loss")
advantages = Late("training.grpo.advantages")

ROWS, WIDTH = 4, 7


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1.0, 0.0, 0.0, 1.0], [0.5, -0.5, -0.5, 0.5]),
        ([1.0, 1.0, 1.0, 1.0], [0.0] * 4),
        ([math.nan, 1.0, 0.0, math.nan], [0.0, 0.5, -0.5, 0.0]),
        ([math.nan, 1.0, math.nan, math.nan], [0.0] * 4),
        ([math.nan] * 4, [0.0] * 4),
    ],
)
def test_advantages_of_a_group(rewards: list[float], expected: list[float]) -> None:
    scored = [reward for reward in rewards if not math.isnan(reward)]
    divisor = float(torch.tensor(scored).std()) + 1e-4 if len(scored) > 1 else 1.0
    found = advantages.group_advantages(torch.tensor(rewards), len(rewards))
    assert found.tolist() == pytest.approx([value / divisor for value in expected], abs=1e-6)


def test_each_group_has_a_normaliser_of_its_own() -> None:
    factors = advantages.per_group(torch.tensor([3, 1, 0, 0]), torch.tensor(4.0), 2)
    assert factors.tolist() == [0.5, 0.5, 2.0, 2.0]


def test_each_group_has_its_own_mean_and_deviation() -> None:
    rewards = torch.tensor([1.0, 0.0, math.nan, 5.0, 3.0, 7.0])
    found = advantages.group_advantages(rewards, 3)
    assert found.tolist() == pytest.approx([0.5 / 0.5**0.5, -0.5 / 0.5**0.5, 0.0, 0.0, -1.0, 1.0], abs=1e-3)


@pytest.mark.parametrize(
    ("moved", "advantage", "clip", "clipped"),
    [
        pytest.param(1.0, 1.0, (0.0, 0.0), 0.0, id="a ratio at a bound is not beyond it"),
        pytest.param(1.0, -1.0, (0.0, 0.0), 0.0, id="nor at the lower one"),
        pytest.param(1.1, 1.0, (0.2, 0.28), 0.0, id="more likely, within the bounds"),
        pytest.param(2.0, 1.0, (0.2, 0.28), 1.0, id="too likely"),
        pytest.param(0.5, -1.0, (0.2, 0.28), 1.0, id="too unlikely"),
        pytest.param(2.0, 0.0, (0.2, 0.28), 0.0, id="without an advantage nothing is clipped"),
        pytest.param(0.5, 0.0, (0.2, 0.28), 0.0, id="nor below"),
    ],
)
@pytest.mark.parametrize("normaliser", ["dapo", "grpo"])
def test_the_share_of_clipped_tokens(moved, advantage, clip, clipped, normaliser) -> None:
    old, mask = torch.zeros(1, 2), torch.tensor([[1, 0]])
    logps, factors = torch.tensor([[math.log(moved), 3.0]]), torch.tensor([advantage])
    bounds = pure.Clip(*clip)
    found = pure.grpo_loss(logps, old, logps, factors, mask, clip=bounds, kl=0.1, normaliser=normaliser)
    assert found.clipped == clipped
    bounded = min(max(moved, 1 - clip[0]), 1 + clip[1])
    assert float(found.loss) == pytest.approx(-min(moved * advantage, bounded * advantage)), "one token, one row"


@pytest.mark.parametrize("normaliser", ["dapo", "grpo"])
@pytest.mark.parametrize("dual", [None, 1.5])
def test_loss_and_gradient_are_trls(normaliser: str, dual: float | None) -> None:
    from trl.trainer.grpo_trainer import GRPOTrainer

    generator = torch.Generator().manual_seed(len(normaliser))
    old, reference, moved = (-torch.rand(ROWS, WIDTH, generator=generator) * 3 for _ in range(3))
    mask = (torch.rand(ROWS, WIDTH, generator=generator) < 0.7).long()
    mask[0] = 0
    mask[0, :2] = 1
    factors = torch.randn(ROWS, generator=generator)
    logged = defaultdict(lambda: defaultdict(list))
    logps = moved.clone().requires_grad_()
    accelerator = SimpleNamespace(num_processes=1, gather=lambda one: one, reduce=lambda one, reduction: one)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logps, torch.zeros(ROWS, WIDTH), None),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=dual, steps_per_generation=1),
        model=SimpleNamespace(training=True),
        accelerator=accelerator,
        current_gradient_accumulation_steps=1,
        loss_type=normaliser,
        importance_sampling_level="token",
        max_completion_length=20,
        _metrics=logged,
        **{"beta": 0.1, "epsilon_low": 0.2, "epsilon_high": 0.28, "top_entropy_quantile": 1.0},
        **dict.fromkeys(("aux_loss_enabled", "use_vllm", "_entropy_bonus_enabled"), False),
        off_policy_mask_threshold=None,
    )
    inputs = {
        "prompt_ids": torch.ones(ROWS, 1, dtype=torch.long),
        "prompt_mask": torch.ones(ROWS, 1, dtype=torch.long),
        "completion_ids": torch.ones(ROWS, WIDTH, dtype=torch.long),
        "completion_mask": torch.ones(ROWS, WIDTH, dtype=torch.long),
        "tool_mask": mask,
        "advantages": factors,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
    }
    theirs = GRPOTrainer._compute_loss(trainer, None, inputs)
    (gradient,) = torch.autograd.grad(theirs, logps)
    again = moved.clone().requires_grad_()
    clip = pure.Clip(dual=dual)
    ours = pure.grpo_loss(again, old, reference, factors, mask, clip=clip, kl=0.1, normaliser=normaliser)
    torch.testing.assert_close(ours.loss, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours.loss, again)[0], gradient)
    assert ours.kl == pytest.approx(logged["train"]["kl"][0])
    assert ours.clipped == pytest.approx(logged["train"]["clip_ratio/region_mean"][0])
    assert 0 < ours.clipped < 1, "the clip acts"
