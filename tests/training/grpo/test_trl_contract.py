"""The behaviour of TRL that the trainer relies on and that its documentation does not promise: pinned, hook by hook.

One GRPOTrainer, two steps of two groups of three, with a toy rollout function; everything it was given and what it
made of that is captured once and looked at by each test.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.late import Late

from training.plan import TILE

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
torch = Late("torch")

VOCABULARY = 24
GROUPS, K, STEPS = 2, 3, 2
TEMPERATURE, BETA = 0.7, 0.05
PROMPTS = ["alpha", "beta", "gamma", "beta"]  # not in alphabetical order across steps, one of them twice
MASKED = 4  # row of each step without a reward
OBSERVATION = (2, 3)  # completion positions that the environment wrote


def tokenizer_in(folder: Path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1} | {f"w{i}": i for i in range(2, VOCABULARY)}
    plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>")
    tokenizer.save_pretrained(folder)
    return tokenizer


def save_model(folder: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.5,
        pad_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Train, and keep calls, tensors, logs and the order of callbacks."""
    torch.set_num_threads(1)
    from datasets import Dataset
    from transformers import Qwen3ForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    folder = tmp_path_factory.mktemp("trl")
    save_model(folder / "model")
    tokenizer = tokenizer_in(folder / "model")
    model = Qwen3ForCausalLM.from_pretrained(folder / "model")
    kept = SimpleNamespace(
        prompts=[], steps=[], returned=[], rewards=[], batches=[], losses=[], events=[], logs=[], weights=[]
    )

    def rollout(prompts, trainer):
        kept.prompts.append(list(prompts))
        kept.steps.append(trainer.state.global_step)
        kept.weights.append({name: value.detach().clone() for name, value in trainer.model.state_dict().items()})
        draw = torch.Generator().manual_seed(len(kept.prompts))
        rows = range(len(prompts))
        completions = [
            torch.randint(2, VOCABULARY, (5 + row % 2,), generator=draw).tolist() + ([1] if row else []) for row in rows
        ]
        mask = [[0 if i in OBSERVATION or row == MASKED else 1 for i in range(len(completions[row]))] for row in rows]
        output = {
            "prompt_ids": [[2 + row, 3] for row in rows],
            "completion_ids": completions,
            "logprobs": [[-0.5 - i / 10 for i in range(len(ids))] for ids in completions],
            "env_mask": mask,
            "reward": [None if row == MASKED else float(row) for row in rows],
        }
        kept.returned.append(output)
        return output

    def rewards(prompts, reward, **kwargs):
        kept.rewards.append((list(prompts), list(reward), sorted(kwargs)))
        return reward

    class Watched(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            kept.batches.append({key: value.clone() for key, value in batch.items()})
            return batch

        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            kept.losses.append(loss.detach().clone())
            return loss

    class Events(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            kept.events.append(("begin", state.global_step))

        def on_log(self, args, state, control, logs=None, **kwargs):
            kept.events.append(("log" if "loss" in logs else "summary", state.global_step))
            kept.logs.append(dict(logs))

        def on_save(self, args, state, control, **kwargs):
            kept.events.append(("save", state.global_step))

    config = GRPOConfig(
        output_dir=str(folder / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=GROUPS * K,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_generations=K,
        shuffle_dataset=False,
        max_completion_length=16,
        temperature=TEMPERATURE,
        beta=BETA,
        loss_type="grpo",
        learning_rate=0.05,
        lr_scheduler_type="constant_with_warmup",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=100,
        report_to="none",
        disable_tqdm=True,
    )
    kept.trainer = Watched(
        model=model,
        args=config,
        reward_funcs=[rewards],
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=tokenizer,
        rollout_func=rollout,
        callbacks=[Events()],
    )
    kept.trainer.train()
    kept.model_folder = folder / "model"
    return kept


def test_prompts_arrive_repeated_and_in_our_order(seen: SimpleNamespace) -> None:
    assert seen.prompts == [["alpha"] * K + ["beta"] * K, ["gamma"] * K + ["beta"] * K]
    assert seen.steps == [0, 1], "global_step counts finished steps while rollouts run"


def test_extra_fields_reach_reward_functions(seen: SimpleNamespace) -> None:
    for prompts, returned, (given_prompts, given, names) in zip(seen.prompts, seen.returned, seen.rewards, strict=True):
        assert given_prompts == prompts
        assert given == returned["reward"]
        assert "env_mask" not in names


def test_none_is_left_out_of_the_baseline_and_has_no_advantage(seen: SimpleNamespace) -> None:
    for batch in seen.batches:
        advantages = batch["advantages"].tolist()
        assert advantages[MASKED] == 0.0
        scale = math.sqrt(2.0)  # of rewards 3 and 5 alone
        assert advantages[3:] == pytest.approx([-1 / (scale + 1e-4), 0.0, 1 / (scale + 1e-4)], abs=1e-5)
        assert advantages[:3] == pytest.approx([-1 / (1 + 1e-4), 0.0, 1 / (1 + 1e-4)], abs=1e-5)


def test_tokens_mask_and_logprobs_arrive_as_given(seen: SimpleNamespace) -> None:
    for returned, batch in zip(seen.returned, seen.batches, strict=True):
        for row, ids in enumerate(returned["completion_ids"]):
            length = len(ids)
            assert batch["completion_ids"][row, :length].tolist() == ids
            assert batch["prompt_ids"][row].tolist() == returned["prompt_ids"][row]
            assert batch["completion_mask"][row].sum() == length
            assert batch["tool_mask"][row, :length].tolist() == returned["env_mask"][row]
            assert batch["sampling_per_token_logps"][row, :length].tolist() == pytest.approx(returned["logprobs"][row])


def test_only_sampled_tokens_of_scored_rollouts_get_gradient(seen: SimpleNamespace, monkeypatch) -> None:
    from trl import GRPOTrainer

    trainer, batch = seen.trainer, seen.batches[0]
    shape = batch["completion_ids"].shape
    logps = torch.full(shape, -1.0).requires_grad_()
    monkeypatch.setattr(
        trainer, "_get_per_token_logps_and_entropies", lambda *a, **k: (logps, torch.zeros(shape), None)
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    GRPOTrainer._compute_loss(trainer, trainer.model, batch).backward()
    sampled = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert not sampled[MASKED].any()
    assert sampled.sum() > 0
    assert (logps.grad[~sampled] == 0).all()
    assert (logps.grad[sampled] != 0).all()


def hand_logps(model, batch) -> torch.Tensor:
    """Log-probabilities of the completion's tokens at the sampling temperature, from the model's plain logits."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1] / TEMPERATURE
    logps = torch.log_softmax(logits, dim=-1).gather(2, ids[:, 1:, None])[:, :, 0]
    return logps[:, -batch["completion_ids"].shape[1] :]


def test_kl_is_to_the_model_on_disk_and_logged_before_the_update(seen: SimpleNamespace) -> None:
    from transformers import Qwen3ForCausalLM

    starter = Qwen3ForCausalLM.from_pretrained(seen.model_folder).eval()
    current = Qwen3ForCausalLM.from_pretrained(seen.model_folder).eval()
    expected = []
    for weights, batch in zip(seen.weights, seen.batches, strict=True):
        current.load_state_dict(weights)
        difference = hand_logps(starter, batch) - hand_logps(current, batch)
        sampled = batch["completion_mask"] * batch["tool_mask"]
        kl = ((torch.exp(difference) - difference - 1) * sampled).sum() / sampled.sum()
        expected.append(float(kl))
    logged = [log["kl"] for log in seen.logs if "loss" in log]
    assert expected[0] == pytest.approx(0.0, abs=1e-6)
    assert expected[1] > 1e-4
    assert logged == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_a_step_begins_logs_and_then_saves(seen: SimpleNamespace) -> None:
    assert seen.events == [("begin", 0), ("log", 1), ("begin", 1), ("log", 2), ("save", 2), ("summary", 2)]
    for log in seen.logs[:STEPS]:
        assert {"loss", "grad_norm", "kl"} <= set(log)
        assert math.isfinite(log["grad_norm"])


def test_the_loss_is_a_mean_over_all_rollouts_masked_ones_included(seen: SimpleNamespace) -> None:
    """Masked rollouts shrink a step by their share instead of rescaling it: what the trainer's docstring says."""
    batch = seen.batches[0]
    sampled = (batch["completion_mask"] * batch["tool_mask"]).float()
    # At the first step the policy is the reference and the ratio is 1: the loss is minus the mean advantage.
    rows = -(batch["advantages"][:, None] * sampled).sum(1) / sampled.sum(1).clamp(min=1)
    assert float(seen.losses[0]) == pytest.approx(float(rows.sum() / (GROUPS * K)), abs=1e-5)


class Engine:
    """What TRL takes for vLLM, and how often it asked for its weights."""

    def __init__(self) -> None:
        self.synchronised = 0

    def sync_weights(self) -> None:
        self.synchronised += 1


@pytest.fixture
def corrected(seen: SimpleNamespace, monkeypatch):
    """Score the first step's rows again, as of an engine whose log-probabilities are ``shift`` above the model's."""
    from trl import GRPOTrainer

    trainer, returned, kept = seen.trainer, seen.returned[0], list(seen.rewards)
    engine = Engine()
    trainer.model.train()
    for name, value in {"use_vllm": True, "vllm_generation": engine, "_last_loaded_step": -1}.items():
        monkeypatch.setattr(trainer, name, value, raising=False)
    monkeypatch.setattr(trainer, "vllm_importance_sampling_correction", True)
    own = hand_logps(trainer.model, seen.batches[0])

    def score(mode: str, shift: float):
        logprobs = [(own[row, : len(ids)] + shift).tolist() for row, ids in enumerate(returned["completion_ids"])]
        seen_before = []

        def rollout(prompts, _):
            seen_before.append(engine.synchronised)
            return returned | {"logprobs": logprobs}

        monkeypatch.setattr(trainer, "rollout_func", rollout)
        monkeypatch.setattr(trainer, "vllm_importance_sampling_mode", mode)
        before = engine.synchronised
        inputs = [{"prompt": prompt} for prompt in seen.prompts[0]]
        batch = GRPOTrainer._generate_and_score_completions(trainer, inputs)
        return batch, engine.synchronised - before, seen_before

    yield score
    seen.rewards[:] = kept


def test_an_engines_weights_are_asked_for_once_a_step_and_before_its_rollouts(corrected) -> None:
    _, asked, before = corrected("token_truncate", 0.0)
    assert (asked, before) == (1, [1])
    assert corrected("token_truncate", 0.0)[1] == 0, "the same global step again"


@pytest.mark.parametrize(
    ("mode", "shift", "expected"),
    [
        ("token_truncate", 0.1, math.exp(-0.1)),
        ("token_truncate", -2.0, 3.0),
        ("token_mask", -2.0, 0.0),
        ("sequence_mask", -2.0, 0.0),
    ],
)
def test_ratios_are_of_the_model_to_the_engine_and_bounded_by_three(
    corrected, mode: str, shift: float, expected: float
) -> None:
    batch, _, _ = corrected(mode, shift)
    ratio, sampled = batch["importance_sampling_ratio"], (batch["completion_mask"] * batch["tool_mask"]).bool()
    if mode.startswith("sequence"):
        assert ratio.shape == (GROUPS * K, 1)
        assert ratio[MASKED] == 1.0, "no token of it was sampled"
        rest = [row for row in range(GROUPS * K) if row != MASKED]
        assert (ratio[rest] == expected).all()
    else:
        assert ratio[sampled].tolist() == pytest.approx([expected] * int(sampled.sum()), rel=1e-4)
        assert (ratio[~sampled] == 1.0).all()


def test_the_gap_is_a_metric_over_sampled_tokens(corrected, seen: SimpleNamespace) -> None:
    corrected("token_truncate", 0.25)
    metrics = seen.trainer._metrics["train"]
    for name in ("mean", "max"):
        assert metrics[f"sampling/sampling_logp_difference/{name}"][-1] == pytest.approx(0.25, abs=1e-4)


def test_the_surrogate_is_multiplied_by_the_ratio_and_the_kl_term_is_not(corrected, seen, monkeypatch) -> None:
    from trl import GRPOTrainer

    trainer = seen.trainer
    trainer.current_gradient_accumulation_steps = 1
    losses = {}
    for beta in (0.0, BETA):
        monkeypatch.setattr(trainer, "beta", beta)
        for shift in (0.0, 0.5):
            batch, _, _ = corrected("token_truncate", shift)
            batch["advantages"] = torch.ones_like(batch["advantages"])  # those of a group sum to zero
            losses[beta, shift] = float(GRPOTrainer._compute_loss(trainer, trainer.model, batch).detach())
    assert losses[0.0, 0.5] == pytest.approx(losses[0.0, 0.0] * math.exp(-0.5), rel=1e-3)
    kl = losses[BETA, 0.0] - losses[0.0, 0.0]
    assert kl > 1e-5
    assert losses[BETA, 0.5] - losses[0.0, 0.5] == pytest.approx(kl, rel=1e-3)


def test_the_plan_of_memory_counts_the_tiles_of_the_head() -> None:
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    assert (chunked_logprob.TOKEN_CHUNK_SIZE, utils._CHUNKED_LOGPROB_CHUNK_SIZE) == TILE
