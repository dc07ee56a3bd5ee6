"""Rollouts that are held to the tools on offer: what is sampled, and that it is scored by the same distribution."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.late import Late
from support.played_round import K, play
from support.small_policy import CLASSES, hand_logps, small_tasks

from environments.bfcl.environment import BFCLEnvironment
from training.settings import TrainingSettings

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
torch = Late("torch")

OFFERED = ("ls", "mkdir", "touch")


@pytest.fixture(scope="module")
def held(starter: Path, tmp_path_factory: pytest.TempPathFactory):
    """One step of two updates: the second task offers three tools, the first all."""
    make, read = small_tasks()[2], small_tasks()[3]
    steps = [[read, make.model_copy(update={"tools": OFFERED})]]
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("held")
        environment = BFCLEnvironment(CLASSES)
        yield play(starter, folder, steps, environment, monkeypatch, held_to_tools=True, updates_per_step=2, kl=0.01)


@pytest.mark.slow
def test_no_call_names_a_tool_that_is_not_offered(held: SimpleNamespace) -> None:
    called = {
        call.name
        for one in held.trajectories[K:]
        for turn in one.turns
        for step in turn.steps
        for call in step.observation.calls
    }
    assert called
    assert called <= set(OFFERED)


def test_the_trainer_scores_what_was_sampled_by_the_distribution_that_it_was_sampled_from(
    held: SimpleNamespace, starter: Path
) -> None:
    from training.rollout.policy import load_policy

    (batch,) = held.batches
    sampled = (batch["completion_mask"] * batch["tool_mask"]).bool()
    recorded = batch["sampling_per_token_logps"][sampled]
    # Before the first update the policy is that of the rollouts, and the reference of the KL term too.
    for scored in ("old_per_token_logps", "ref_per_token_logps"):
        torch.testing.assert_close(batch[scored][sampled], recorded, atol=1e-4, rtol=0)
    policy = load_policy(str(starter), "cpu")
    differ = 0.0
    for row in range(2 * K):
        length = int(batch["completion_mask"][row].sum())
        prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].tolist()
        completion = batch["completion_ids"][row, :length].tolist()
        unrestricted = hand_logps(policy.model, prompt, completion, held.settings.temperature)
        gap = (batch["sampling_per_token_logps"][row, :length] - unrestricted)[sampled[row, :length]]
        assert float(gap.min()) > -1e-4
        if row < K:
            assert float(gap.abs().max()) < 1e-4
        differ = max(differ, float(gap.max()))
    assert differ > 0.01, "no mass on withheld tools: the test shows nothing"


def test_withheld_tokens_get_no_gradient(starter: Path) -> None:
    from training.grpo.off_policy_demonstrations import TokenRow
    from training.grpo.withheld import Withheld
    from training.rollout.policy import load_policy

    model = load_policy(str(starter), "cpu").model
    rows = [TokenRow([3, 4], [5, 6, 7, 8], [0.0] * 4, [1, 1, 0, 1], (0, 3), ((9, 10), (5,)))]
    withheld = Withheld.of(rows, model.config.vocab_size, torch.device("cpu"))
    assert withheld is not None
    assert withheld.places.tolist() == [[1, 1, 0, 2]]
    assert [places.nonzero().flatten().tolist() for places in withheld.sets] == [[], [9, 10], [5]]
    ids = torch.tensor([[3, 4, 5, 6, 7, 8]])
    logits = model(input_ids=ids).logits[0, 1:-1].detach().requires_grad_()
    fixed = SimpleNamespace(logits=torch.cat([logits, logits[-1:]])[None])
    logprobs, entropy = withheld.score(lambda **_: fixed, ids, torch.ones_like(ids), 0.5, entropy=True)
    scored, spread, tempered = logprobs[0].tolist(), entropy[0].tolist(), logits.detach() / 0.5
    for place, out in enumerate([(9, 10), (9, 10), (), (5,)]):
        allowed = [token for token in range(logits.shape[1]) if token not in out]
        plain = torch.log_softmax(tempered[place, allowed], -1)
        assert scored[place] == pytest.approx(float(plain[allowed.index(5 + place)]), abs=1e-5)
        assert spread[place] == pytest.approx(float(-(plain.exp() * plain).sum()), abs=1e-4)
    logprobs.sum().backward()
    assert not logits.grad[0, [9, 10]].any()
    assert logits.grad[2, [9, 10]].all()
    assert Withheld.of([rows[0].cut_to(0), TokenRow([1], [2], [0.0], [1], (0,))][1:], 20, torch.device("cpu")) is None


def test_references_are_not_given_to_rollouts_that_are_held_to_tools() -> None:
    with pytest.raises(ValueError, match="remove one of the two"):
        TrainingSettings.model_validate({"held_to_tools": True, "experimental": {"lend_reference": "supervised"}})
