"""Memory of a set-up: each term against its formula worked out by hand, and what sharding and engines change."""

from __future__ import annotations

from typing import Any

import pytest

from training.device_memory import LARGE_VOCABULARY
from training.plan import (
    PROCESS_BYTES,
    RUN,
    TILE,
    DeviceNeed,
    ModelShape,
    activation_bytes,
    kv_bytes,
    logits_bytes,
    memory_of,
)
from training.settings import (
    IN_PROCESS,
    LaunchSettings,
    LoraSettings,
    PolicySettings,
    SamplingSettings,
    TrainingSettings,
)

P = 1_000_000_000
SHAPE = ModelShape(
    parameters=P,
    trained=P,
    largest=50_000_000,
    layers=10,
    hidden=100,
    queries=100,
    keys=50,
    mlp=300,
    routed=0,
    vocabulary=1000,
)
ADAPTED = SHAPE.model_copy(update={"trained": 1_000_000})
TRAINING: dict[str, Any] = {"tasks_per_step": 4, "rollouts_per_task": 8, "max_tokens": 500, "kl": 0.01}


WHOLE = PolicySettings()


def needs(
    policy: PolicySettings = WHOLE,
    sampling: SamplingSettings = IN_PROCESS,
    **training: Any,
) -> tuple[DeviceNeed, ...]:
    settings = TrainingSettings(**TRAINING | training)
    shape = ADAPTED if policy.lora else SHAPE
    return memory_of(shape, policy, settings, device="cuda", sampling=sampling).devices


def test_all_weights_are_held_with_adams_moments_and_the_reference() -> None:
    (trainer,) = needs()
    assert trainer.held == {"process": PROCESS_BYTES["cuda"], "weights": 4 * P, "optimizer": 8 * P, "reference": 4 * P}
    (without,) = needs(kl=0.0)
    assert "reference" not in without.held


def test_an_adapter_switches_off_for_the_reference_and_its_base_has_the_dtype() -> None:
    adapter = LoraSettings(rank=8)
    (whole,) = needs(PolicySettings(lora=adapter))
    (half,) = needs(PolicySettings(lora=adapter, dtype="bfloat16"))
    trained = ADAPTED.trained
    assert whole.held.keys() == {"process", "weights", "optimizer"}
    assert (whole.held["weights"], half.held["weights"]) == (4 * P + 4 * trained, 2 * P + 4 * trained)
    assert half.held["optimizer"] == 8 * trained


def test_activations_are_those_of_a_micro_batch_or_of_one_layer() -> None:
    each = 4 * (6 * 100 + 6 * 100 + 4 * 50 + 4 * 300)
    assert activation_bytes(SHAPE, mixed=False, lora=False) == each
    (whole,), (two,), (again,) = needs(), needs(micro_batch=2), needs(micro_batch=2, gradient_checkpointing=True)
    assert whole.update["activations"] == 32 * 500 * 10 * each
    assert two.update["activations"] == 2 * 500 * 10 * each
    assert again.update["activations"] == 2 * 500 * 10 * 100 * 4
    rows = {name: one.update["one layer's backward pass"] for name, one in (("two", two), ("again", again))}
    assert rows == {"two": 2 * 500 * each, "again": 2 * 500 * 2 * each}
    # Gradients of several backward passes are held beside activations, those of one take their place.
    assert two.update["gradients"] == 4 * P
    assert sum(whole.update.values()) == 4 * P + whole.update["one layer's backward pass"]
    assert two.update["logits"] < whole.update["logits"]


@pytest.mark.parametrize(("rows", "tokens", "vocabulary", "values"), [(1, 500, 10, 5000), (64, 500, 10, 40_000)])
def test_on_a_cpu_the_head_holds_a_tile_of_the_rows_that_are_scored_together(
    rows: int, tokens: int, vocabulary: int, values: int
) -> None:
    shape = SHAPE.model_copy(update={"vocabulary": vocabulary})
    assert logits_bytes(shape, rows, tokens, device="cpu", mixed=False) == 33 * values
    huge = SHAPE.model_copy(update={"vocabulary": 10 * TILE[1]})
    assert logits_bytes(huge, 8, TILE[0], device="cpu", mixed=False) == 33 * TILE[0] * TILE[1]


def test_a_kv_cache_has_keys_and_values_of_every_layer() -> None:
    assert kv_bytes(SHAPE, 3, 500, 4) == 2 * 10 * 50 * 500 * 3 * 4
    (trainer,) = needs()
    assert trainer.sampling["KV cache"] == kv_bytes(SHAPE, 32, 500, 4)
    assert trainer.peak == sum(trainer.held.values()) + max(
        *(sum(one.values()) for one in (trainer.sampling, trainer.update))
    )


def test_sharding_divides_what_is_held_and_ddp_does_not() -> None:
    (one,) = needs()
    (copies,) = needs(launch=LaunchSettings(processes=4))
    (parts,) = needs(launch=LaunchSettings(processes=4, fsdp=True))
    assert copies.held == one.held
    assert copies.update["gradients"] == 8 * P
    for name in ("weights", "optimizer", "reference"):
        assert parts.held[name] * 4 == one.held[name]
    assert parts.update["gathered weights"] == 2 * SHAPE.largest * 4
    assert parts.update["activations"] * 4 == one.update["activations"], "processes share the rows of a step"
    assert (parts.count, copies.count) == (4, 4)


def test_a_server_takes_the_samplers_place() -> None:
    servers = ("http://a:1", "http://b:1")
    trainer, server = needs(sampling=SamplingSettings(engine="vllm_server", servers=servers))
    assert (trainer.sampling, server.count) == ({}, 2)
    assert server.held["weights"] == 4 * P


def test_processes_on_a_cpu_share_one_memory_and_one_run() -> None:
    settings = TrainingSettings(**TRAINING, launch=LaunchSettings(processes=2))
    memory = memory_of(SHAPE, WHOLE, settings, device="cpu")
    (need,) = memory.devices
    assert memory.fullest("cpu") == 2 * need.peak - need.held[RUN]
    assert memory.fullest("cuda") == need.peak


def test_on_a_cpu_a_large_vocabulary_is_scored_in_parts() -> None:
    """A micro-batch of any size holds as many activations, unless checkpointing scores it whole."""
    shape = SHAPE.model_copy(update={"vocabulary": LARGE_VOCABULARY})

    def update(rows: int, **changed: Any) -> dict[str, int]:
        training = TrainingSettings(
            tasks_per_step=1, rollouts_per_task=rows, max_tokens=2048, max_new_tokens=64, max_episode_steps=8, **changed
        )
        return memory_of(shape, PolicySettings(path="p"), training, device="cpu").devices[0].update

    few, many = update(8), update(64)
    per_token = shape.layers * activation_bytes(shape, mixed=False, lora=False)
    assert many["activations"] == few["activations"] == 2048 * per_token
    assert many["keys and values"] == 8 * few["keys and values"]
    whole = update(64, gradient_checkpointing=True)
    assert whole["logits"] > many["logits"]
    assert "keys and values" not in whole
