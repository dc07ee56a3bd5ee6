"""A model that the sampler in process refuses, sampled by a real server: one with sliding windows.

It runs with ``make test-vllm``. What the CPU build does with hybrids is in docs/scale.md.
"""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.chatter import starter_episodes
from support.served_model import change, farthest
from support.vllm_server import STARTER, serving

from environments.base import InputError
from training.settings import SamplingSettings

pytestmark = [pytest.mark.vllm, pytest.mark.external, pytest.mark.process, pytest.mark.slow]

EXACT = 1e-4  # nats, float32
WINDOW = 16  # ids: shorter than the prompts
SHAPE = {
    "vocab_size": 1024,  # the starter's, so that its tokenizer and its episodes fit
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "tie_word_embeddings": True,
}


def windows() -> Any:
    """A Gemma 3 with a window in every other layer."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    layers = ["sliding_attention", "full_attention"] * 2
    return Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, head_dim=32, sliding_window=WINDOW, layer_types=layers))


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    for file in STARTER.glob("tokenizer*.json"):
        shutil.copy(file, folder)
    kept = json.loads((folder / "config.json").read_text())
    assert kept["vocab_size"] == json.loads((STARTER / "config.json").read_text())["vocab_size"]
    return folder


def test_a_server_samples_through_windows_by_the_trainers_probabilities(tmp_path: Path) -> None:
    """As it was started, and after a step that changed every weight."""
    import torch

    from training.rollout.in_process import InProcessSampler
    from training.rollout.vllm_server import PolicyWeights, VllmServers

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = windows().eval()
    with pytest.raises(InputError, match="choose a model whose layers all attend to everything"):
        InProcessSampler(model)
    folder = saved(model, tmp_path / "policy")
    weights = PolicyWeights(
        SimpleNamespace(model=model, path=str(folder)), tmp_path / "weights", adapter=False, autocast=False
    )
    with serving(folder, 512, tmp_path / "logs") as server:
        sampling = SamplingSettings(engine="vllm_server", servers=(server.url,))
        with closing(VllmServers(sampling, weights, 1e-3)) as sampler:
            for version in (0, 1):
                sampler.load_weights(version)
                played = starter_episodes()
                sampler.run(played, temperature=0.9, concurrency=6)
                assert max(len(one.ids) for one in played) > 2 * WINDOW
                assert farthest(model, played, 0.9) < EXACT
                change(model, 0.02)
            assert sampler.figures().gap < EXACT
            assert sampler.figures().resampled == 0
