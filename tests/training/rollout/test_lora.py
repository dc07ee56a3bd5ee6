"""LoRA rounds: what is trained and saved, what the reference is, and that every reader of a checkpoint has the adapter.

Two rounds in this process, the second from the first one's checkpoint as a process of its own would be.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.chat_models import save_model
from support.late import Late
from support.played_round import SEED, K, play
from support.small_policy import CLASSES, hand_logps, small_tasks

from environments.base import InputError
from environments.bfcl.benchmark import BFCLEnvironment
from memory.jsonl import derive_seed
from memory.run import PolicyDirectory
from training.rollout.policy import PolicyCard, load_initial_policy, load_policy
from training.settings import PolicySettings, RenderingOptions

CARD = PolicyDirectory.card.name
pytestmark = pytest.mark.slow

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
torch = Late("torch")

STEPS = 2
LORA = {"rank": 4, "alpha": 16}
POLICY = {"lora": LORA}


def train(starter: Path, folder: Path, steps: int = STEPS, **changes: object) -> SimpleNamespace:
    tasks = small_tasks()
    given = {"policy": POLICY, "learning_rate": 1e-2, **changes}
    with pytest.MonkeyPatch.context() as monkeypatch:
        return play(starter, folder, [[tasks[2], tasks[3]]] * steps, BFCLEnvironment(CLASSES), monkeypatch, **given)


@pytest.fixture(scope="module")
def rounds(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("policies")
    first = train(starter, folder)
    checkpoint = folder / f"checkpoint-{STEPS}"
    (checkpoint / CARD).write_text((starter / CARD).read_text())
    second = train(starter, folder, iteration=1, first_step=STEPS + 1, checkpoint=checkpoint)
    (folder / f"checkpoint-{2 * STEPS}" / CARD).write_text((starter / CARD).read_text())
    return SimpleNamespace(starter=starter, folder=folder, checkpoint=checkpoint, first=first, second=second)


def adapter(folder: Path) -> dict:
    from safetensors.torch import load_file

    return load_file(folder / "adapter_model.safetensors")


def test_only_the_adapter_is_trained_and_saved(rounds: SimpleNamespace) -> None:
    from safetensors.torch import load_file

    assert not (rounds.checkpoint / "model.safetensors").exists()
    saved = adapter(rounds.checkpoint)
    assert {name.split(".")[-3] for name in saved} == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    }
    assert max(float(weight.abs().max()) for name, weight in saved.items() if "lora_B" in name) > 0
    assert all(weight.shape[0] == 4 for name, weight in saved.items() if "lora_A" in name)
    base = load_file(rounds.starter / "model.safetensors")
    trained = rounds.second.trainer.model.base_model.model.state_dict()
    for name, weight in base.items():
        inside = name if name in trained else name.replace(".weight", ".base_layer.weight")
        assert torch.equal(trained[inside], weight), name


def test_the_second_round_goes_on_with_adapter_and_adam(rounds: SimpleNamespace) -> None:
    states = [
        torch.load(rounds.folder / f"checkpoint-{step}" / "optimizer.pt", weights_only=True)["state"]
        for step in (STEPS, 2 * STEPS)
    ]
    assert [{int(entry["step"]) for entry in state.values()} for state in states] == [{STEPS}, {2 * STEPS}]
    assert [t.step for t in rounds.second.trajectories[:: 2 * K]] == [STEPS + 1, STEPS + 2]
    assert rounds.second.reported == [STEPS + 1, STEPS + 2]


def episodes(policy, rounds: SimpleNamespace) -> list:
    """The first step of the second round, sampled by ``policy``."""
    from training.rollout.episodes import EpisodeLimits, EpisodeRequest, run_episodes
    from training.rollout.in_process import InProcessSampler

    by_id = {task.id: task for task in small_tasks()}
    played = [t for t in rounds.second.trajectories if t.step == STEPS + 1]
    asked = [
        EpisodeRequest(task=by_id[t.task_id], seed=derive_seed(SEED, "rollout", t.task_id, t.step, t.sample))
        for t in played
    ]
    limits = EpisodeLimits(max_new_tokens=16, max_tokens=120, max_actions=3)
    sampler = InProcessSampler(policy.model)
    return list(run_episodes(policy, sampler, BFCLEnvironment(CLASSES), asked, limits, 0.9))


def test_a_checkpoint_loads_with_its_adapter_and_samples_with_it(rounds: SimpleNamespace) -> None:
    played = [t.turns for t in rounds.second.trajectories if t.step == STEPS + 1]
    assert [result.turns for result in episodes(load_policy(str(rounds.checkpoint), "cpu"), rounds)] == played
    assert [result.turns for result in episodes(load_policy(str(rounds.starter), "cpu"), rounds)] != played


def test_sampled_logprobs_are_those_that_the_trainer_computes(rounds: SimpleNamespace) -> None:
    policy = load_policy(str(rounds.checkpoint), "cpu")
    batch = rounds.second.batches[0]
    for i in range(2 * K):
        length = int(batch["completion_mask"][i].sum())
        own = batch["tool_mask"][i, :length].bool()
        prompt = batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist()
        logps = hand_logps(policy.model, prompt, batch["completion_ids"][i, :length].tolist(), 0.9)
        torch.testing.assert_close(
            batch["sampling_per_token_logps"][i, :length][own], logps[own].float(), atol=1e-4, rtol=0
        )


def test_kl_of_the_second_round_is_to_the_starter(rounds: SimpleNamespace) -> None:
    """By hand, on the episodes of the round's first step: the estimate before its update."""
    starter, policy = (load_policy(str(path), "cpu") for path in (rounds.starter, rounds.checkpoint))
    total, tokens = 0.0, 0
    for result in episodes(policy, rounds):
        ours, base = (hand_logps(p.model, result.prompt_ids, result.completion_ids, 0.9) for p in (policy, starter))
        difference = (base - ours)[torch.tensor(result.mask).bool()]
        total += float((torch.exp(difference) - difference - 1).sum())
        tokens += len(difference)
    logged = [log["kl"] for log in rounds.second.trainer.state.log_history if log.get("step") == STEPS + 1]
    assert logged[0] > 1e-4, "the first round must have moved the policy"
    assert logged[0] == pytest.approx(total / tokens, rel=1e-3)
    first = [log["kl"] for log in rounds.first.trainer.state.log_history if log.get("step") == 1]
    assert first[0] == pytest.approx(0.0, abs=1e-6)


def test_every_option_of_the_adapter_counts(rounds: SimpleNamespace, starter: Path, tmp_path: Path) -> None:
    lora = LORA | {"target_modules": ["q_proj", "v_proj"]}
    train(starter, tmp_path / "chosen", steps=1, policy={"lora": lora})
    assert {name.split(".")[-3] for name in adapter(tmp_path / "chosen" / "checkpoint-1")} == {"q_proj", "v_proj"}
    config = json.loads((rounds.checkpoint / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 16)


def test_micro_batches_and_recomputed_activations_train_the_same_adapter(
    rounds: SimpleNamespace, tmp_path: Path
) -> None:
    torch.manual_seed(99)  # a round that starts over draws the same adapter, whatever was drawn before
    again = train(rounds.starter, tmp_path, micro_batch=2, gradient_checkpointing=True)
    assert [t.turns for t in again.trajectories] == [t.turns for t in rounds.first.trajectories]
    before, after = adapter(rounds.checkpoint), adapter(tmp_path / f"checkpoint-{STEPS}")
    for name in before:
        torch.testing.assert_close(before[name], after[name], rtol=0, atol=2e-4)


@pytest.mark.parametrize("lora", [None, LORA])
def test_bfloat16_keeps_what_is_trained_in_float32(lora: object, starter: Path, tmp_path: Path) -> None:
    """Products are in bfloat16, in sampling and in training alike; a small learning rate still moves the weights."""
    run = train(starter, tmp_path, steps=1, policy={"dtype": "bfloat16", "lora": lora}, learning_rate=1e-6)
    types = {p.requires_grad: set() for p in run.trainer.model.parameters()}
    for parameter in run.trainer.model.parameters():
        types[parameter.requires_grad].add(parameter.dtype)
    assert types == ({True: {torch.float32}} if lora is None else {True: {torch.float32}, False: {torch.bfloat16}})
    state = torch.load(tmp_path / "checkpoint-1" / "optimizer.pt", weights_only=True)["state"]
    assert {entry["exp_avg"].dtype for entry in state.values()} == {torch.float32}
    if lora is None:
        before = load_policy(str(starter), "cpu").model.state_dict()
        moved = [not torch.equal(weight, before[name]) for name, weight in run.trainer.model.state_dict().items()]
        assert all(moved)
    batch = run.batches[0]
    own = (batch["completion_mask"] * batch["tool_mask"]).bool()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logps, _, _ = run.trainer._get_per_token_logps_and_entropies(
            run.trainer.model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].shape[1],
        )
    # bfloat16 has eight bits of precision, and kernels of other shapes round otherwise.
    difference = (logps.float() - batch["sampling_per_token_logps"])[own].abs()
    assert float(difference.mean()) < 0.03


def test_a_qwen_adapter_speaks_its_bases_template(tmp_path: Path) -> None:
    """Tokenizer, template and every stop id come with a checkpoint that holds the adapter alone."""
    from peft import LoraConfig, get_peft_model

    base = load_policy(str(save_model(tmp_path / "base", "qwen3")), "cpu", options=RenderingOptions(thinking=False))
    tuned = get_peft_model(base.model, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"))
    tuned.save_pretrained(tmp_path / "tuned")
    base.tokenizer.save_pretrained(tmp_path / "tuned")
    (tmp_path / "tuned" / CARD).write_text(PolicyCard(rendering="chat_template", thinking=False).model_dump_json())
    loaded = load_policy(str(tmp_path / "tuned"), "cpu")
    assert loaded.adapter
    assert loaded.rendering.begin().stop_ids == base.rendering.begin().stop_ids
    assert loaded.rendering.suffix([{"role": "user", "content": "x"}])[1].endswith("<think>\n\n</think>\n\n")


def test_users_mistakes_are_told_in_one_sentence(rounds: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"policy\.lora\.target_modules: qwen3 has no module query: name some"):
        train(rounds.starter, tmp_path, policy={"lora": LORA | {"target_modules": ["q_proj", "query"]}})
    with pytest.raises(InputError, match=r"policy\.path: .* is a LoRA adapter and a round starts from a whole model"):
        load_initial_policy(PolicySettings(path=str(rounds.checkpoint), device="cpu"))
    with pytest.raises(InputError, match=r"policy\.thinking: .* has no chat template"):
        load_initial_policy(PolicySettings(path=str(rounds.starter), device="cpu", thinking=False))
    orphan = tmp_path / "orphan"
    orphan.mkdir()
    written = json.loads((rounds.checkpoint / "adapter_config.json").read_text())
    (orphan / "adapter_config.json").write_text(
        json.dumps(written | {"base_model_name_or_path": str(tmp_path / "gone")})
    )
    with pytest.raises(InputError, match=r"adapter_config\.json names a base model that does not exist"):
        load_policy(str(orphan), "cpu")
    (orphan / "adapter_config.json").write_text((rounds.checkpoint / "adapter_config.json").read_text())
    for name in ("tokenizer.json", "tokenizer_config.json", CARD):
        (orphan / name).write_text((rounds.checkpoint / name).read_text())
    with pytest.raises(InputError, match=r"holds no adapter_model\.safetensors"):
        load_policy(str(orphan), "cpu")
