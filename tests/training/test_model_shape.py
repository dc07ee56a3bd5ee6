"""A model's shape from its configuration alone: parameters and adapters as published, and as the trainer has them."""

from __future__ import annotations

import pytest
from support.served_model import QWEN3_4B

from environments.base import InputError
from training.plan import shape_of, shipped_config
from training.settings import LoraSettings

pytestmark = pytest.mark.slow


def test_a_published_model_has_its_published_parameters_and_widths() -> None:
    shape = shape_of(QWEN3_4B)
    assert round(shape.parameters / 1e9, 1) == 4.0  # the model card of Qwen3-4B: 4.0 B
    assert shape.trained == shape.parameters
    assert shape.largest == QWEN3_4B["vocab_size"] * QWEN3_4B["hidden_size"]
    assert (shape.layers, shape.queries, shape.keys, shape.mlp, shape.routed) == (36, 32 * 128, 8 * 128, 9728, 0)


def test_a_token_goes_through_some_experts_of_a_layer() -> None:
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    shape = shape_of({"model_type": "qwen3_moe", "vocab_size": 100, **small, **experts})
    assert (shape.mlp, shape.routed) == (2 * 32, 2)


def test_an_adapter_has_rank_times_inputs_and_outputs_of_each_target() -> None:
    h, q, k, i = 2560, 4096, 1024, 9728
    assert shape_of(QWEN3_4B, LoraSettings(rank=4, target_modules=("q_proj", "down_proj"))).trained == 36 * 4 * (
        h + q + i + h
    )
    everywhere = 2 * (h + q) + 2 * (h + k) + 3 * (h + i)
    assert shape_of(QWEN3_4B, LoraSettings(rank=4)).trained == 36 * 4 * everywhere


def test_a_model_in_several_parts_is_read_from_its_text_part() -> None:
    assert shape_of({"model_type": "some_vl", "text_config": QWEN3_4B}) == shape_of(QWEN3_4B)


@pytest.mark.parametrize(
    "config",
    [{}, {"model_type": "nobody-made-this"}, QWEN3_4B | {"num_attention_heads": 0}, QWEN3_4B | {"vocab_size": "x"}],
)
def test_a_configuration_that_makes_no_model_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"config\.json: this model cannot be built"):
        shape_of(config)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen3-0.6B", 0.6),
        ("Qwen/Qwen3-1.7B", 1.7),
        ("Qwen/Qwen3-4B-Instruct-2507", 4.0),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 30.5),
        ("Qwen/Qwen2.5-3B-Instruct", 3.1),
        ("Qwen/Qwen2.5-7B-Instruct", 7.6),
        ("Team-ACE/ToolACE-2-Llama-3.1-8B", 8.0),
    ],
)
def test_what_ships_of_a_backbone_has_the_parameters_that_its_publisher_states(name: str, billions: float) -> None:
    config = shipped_config(name)
    assert config is not None
    assert round(shape_of(config).parameters / 1e9, 1) == billions
