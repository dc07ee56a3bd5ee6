"""A model's shape from its configuration alone: parameters equal those of the library's own model."""

from __future__ import annotations

import json

import pytest
from support.served_model import QWEN3_4B

from environments.base import InputError
from training.model_shape import FAMILIES, shape_of, trained_with_lora

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MADE = {
    "llama": SMALL | {"attention_bias": True, "mlp_bias": True},
    "mistral": SMALL,
    "qwen2": SMALL | {"tie_word_embeddings": True},
    "qwen3": SMALL | {"head_dim": 24, "tie_word_embeddings": True},
    "qwen3_moe": SMALL | EXPERTS | {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
}


def test_a_published_model_has_its_published_parameters() -> None:
    assert round(shape_of(QWEN3_4B).parameters / 1e9, 1) == 4.0  # the model card of Qwen3-4B: 4.0 B
    thirty = QWEN3_4B | {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "tie_word_embeddings": False,
    }
    shape = shape_of(thirty)
    assert (round(shape.parameters / 1e9, 1), round(shape.active / 1e9)) == (30.5, 3)  # its card: 30.5 B, 3.3 B active


def test_a_model_in_several_parts_is_read_from_its_text_part() -> None:
    inside = {"model_type": "some_vl", "text_config": QWEN3_4B}
    assert shape_of(inside) == shape_of(QWEN3_4B)


@pytest.mark.parametrize("lacking", ["hidden_size", "vocab_size", "model_type"])
def test_a_configuration_without_a_size_is_refused_by_name(lacking: str) -> None:
    with pytest.raises(InputError, match=lacking):
        shape_of({key: value for key, value in QWEN3_4B.items() if key != lacking})


@pytest.mark.slow
def test_parameters_and_adapters_equal_those_of_the_library() -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    assert MADE.keys() == FAMILIES.keys()
    for family, sizes in MADE.items():
        config = AutoConfig.for_model(family, **sizes)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
            shape = shape_of(json.loads(config.to_json_string(use_diff=False)))
            assert shape.parameters == sum(one.numel() for one in model.parameters()), family
            assert not shape.counted
            if family == "qwen3_moe":
                continue
            for targets in (None, ("q_proj", "down_proj")):
                adapter = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=list(targets or ()) or "all-linear")
                adapted = get_peft_model(AutoModelForCausalLM.from_config(config), adapter)
                trained = sum(one.numel() for one in adapted.parameters() if one.requires_grad)
                assert trained_with_lora(shape, 4, targets) == trained, (family, targets)
    other = shape_of({"model_type": "gpt_neox", **SMALL})
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt_neox", **SMALL))
    assert (other.parameters, other.counted) == (sum(one.numel() for one in made.parameters()), True)
