"""What tests of vLLM's engines share: a tiny model on disk, changed weights, and how far log-probabilities are off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.chat_models import random_model
from support.late import Late
from training.settings import LoraSettings, SamplingSettings

torch = Late("torch")
transformers = Late("transformers")

QWEN3_4B = {
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
"""What is read of the configuration of Qwen3-4B."""


def save_small(folder: Path, seed: int = 0) -> Path:
    """Write a random Qwen3 with tied embeddings and 40 ids, and return its folder."""
    torch.set_num_threads(1)
    shape = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "head_dim": 8}
    model = random_model("qwen3", seed=seed, initializer_range=0.3, max_position_embeddings=512, **shape)
    model.save_pretrained(folder)
    return folder


def change(model: Any, by: float = 0.1) -> None:
    """Add fixed noise of standard deviation ``by`` to every weight that is trained."""
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(by * torch.randn_like(weight))


def farthest(model: Any, played: Sequence[Any], temperature: float) -> float:
    """Return by how many nats the log-probabilities of sampled ids differ from the model's own, at most."""
    worst = 0.0
    for one in played:
        with torch.no_grad():
            logits = model.eval()(input_ids=torch.tensor([one.ids])).logits[0, :-1] / (temperature or 1.0)
        own = torch.log_softmax(logits, -1)[torch.arange(len(one.ids) - 1), torch.tensor(one.ids[1:])].tolist()
        sampled = zip(one.logprobs[1:], own, one.sampled[1:], strict=True)
        worst = max(worst, *(abs(a - b) for a, b, drawn in sampled if drawn))
    return worst


def trained_and_sampled(
    starter: Path,
    servers: Sequence[str],
    folder: Path,
    transport: Any,
    *,
    rank: int | None = None,
    tolerance: float = 1e-3,
    ranks: dict[str, Any] | None = None,
    **settings: Any,
) -> SimpleNamespace:
    """The trainer's model, with an adapter of ``rank`` or none, its weights for servers, and the sampler on them."""
    from training.rollout.vllm_server import PolicyWeights, VllmServers

    model = transformers.AutoModelForCausalLM.from_pretrained(starter)
    if rank is not None:
        from peft import get_peft_model

        from training.rollout.policy import lora_config

        torch.manual_seed(1)
        get_peft_model(model, lora_config(LoraSettings(rank=rank), model))
    policy = SimpleNamespace(model=model, path=str(starter))
    weights = PolicyWeights(policy, folder, adapter=rank is not None, autocast=False)
    chosen = SamplingSettings(engine="vllm_server", servers=tuple(servers), **settings)
    sampler = VllmServers(chosen, weights, tolerance, transport=transport, **(ranks or {}))
    return SimpleNamespace(model=model, sampler=sampler, weights=weights)
