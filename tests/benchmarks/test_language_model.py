"""The benchmark of the language model, on a tiny one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import language_model
from benchmarks.language_model import Shape, measure
from environments.base import InputError

pytestmark = [pytest.mark.slow, pytest.mark.process]


def save_small(folder: Path) -> str:
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"vocab_size": 600, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    LlamaForCausalLM(LlamaConfig(**small | heads)).save_pretrained(folder)
    return str(folder)


@pytest.mark.long
def test_both_sides_sample_and_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_model, "VLLM_FOLDER", tmp_path / "none")
    sampling, learning, memory = measure(1, save_small(tmp_path), Shape(tasks=2, rollouts=4, prompt=70, new=5))
    assert sampling.ours > 0
    assert sampling.other > 0
    assert learning.note.endswith("all 600 tokens of the rows count, shared ones in each row")
    assert memory.met
    assert "GFLOP/s" in sampling.note


@pytest.mark.vllm
@pytest.mark.external
def test_vllm_samples_the_same_rows_where_it_is_installed(tmp_path: Path) -> None:
    if not any(language_model.VLLM_FOLDER.glob(".installed-*")):
        pytest.skip("vLLM is not installed: make vllm")
    rows = measure(1, save_small(tmp_path), Shape(tasks=2, rollouts=4, prompt=70, new=5))
    assert [row.name for row in rows][:2] == ["language model, sampling", "language model, sampling beside vLLM"]
    assert rows[0].ours == rows[1].ours
    assert rows[1].other > 0


@pytest.mark.long
def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        measure(1, str(tmp_path))
