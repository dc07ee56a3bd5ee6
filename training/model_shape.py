"""The shape of a causal language model, counted on the library's own model, built on torch's meta device.

It is built from its ``config.json`` alone: no weights are read, and none take memory.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import warnings
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from environments.base import InputError, Record
from environments.heavy_imports import heavy_imports
from training.settings import LoraSettings

_LAYER = re.compile(r"(.*\.\d+)\.")


def shipped_config(name: str) -> dict[str, Any] | None:
    """Return what ``backbones.json`` has of the ``config.json`` of a model on the hub, None for one that it lacks."""
    models: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "backbones.json").read_text())["models"]
    return models.get(name)


class ModelShape(Record):
    """The sizes of a decoder that its memory and its arithmetic follow from.

    ``parameters``: all of them, each counted once where embeddings are tied. ``trained``: those of the LoRA adapter, or
    all. ``largest``: parameters of the largest part that sharded training gathers at once, a layer or the embedding.
    ``queries`` and ``keys``: widths of a layer's queries and keys. ``mlp``: width of the feed-forward layer that one
    token goes through, summed over its experts. ``routed``: experts per token, 0 without experts.
    """

    parameters: int
    trained: int
    largest: int
    layers: int
    hidden: int
    queries: int
    keys: int
    mlp: int
    routed: int
    vocabulary: int


@heavy_imports()
def shape_of(config: Mapping[str, Any], lora: LoraSettings | None = None) -> ModelShape:
    """Return the shape of the model with this ``config.json``; of one in several parts, that of its text part.

    Raises InputError for a configuration that lacks its type or that the library cannot build.
    """
    import torch
    from peft import get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    from training.rollout.lora import lora_config

    part = config.get("text_config")
    given = {"model_type": config.get("model_type"), **(part if isinstance(part, Mapping) else config)}
    try:
        read = AutoConfig.for_model(**given)
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):
            model = AutoModelForCausalLM.from_config(read)  # type: ignore[no-untyped-call]
            sizes = {name: one.numel() for name, one in model.named_parameters()}
            if lora is not None:
                model = get_peft_model(model, lora_config(lora, model))
        hidden, heads = read.hidden_size, read.num_attention_heads
        width = getattr(read, "head_dim", None) or hidden // heads
        mlp = getattr(read, "intermediate_size", None) or 4 * hidden
        routed = getattr(read, "num_experts_per_tok", None) or 0
        layers: dict[str, int] = {}
        for name, size in sizes.items():
            layer = _LAYER.match(name)
            layers[layer[1] if layer else name] = layers.get(layer[1] if layer else name, 0) + size
        return ModelShape(
            parameters=sum(sizes.values()),
            trained=sum(one.numel() for one in model.parameters() if one.requires_grad),
            largest=max(layers.values()),
            layers=read.num_hidden_layers,
            hidden=hidden,
            queries=heads * width,
            keys=(getattr(read, "num_key_value_heads", None) or heads) * width,
            mlp=routed * (getattr(read, "moe_intermediate_size", None) or mlp) if routed else mlp,
            routed=routed,
            vocabulary=read.vocab_size,
        )
    except Exception as error:  # noqa: BLE001 - whatever a configuration of a stranger makes the library raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"config.json: this model cannot be built here: {reason}") from None


def shape_in_process_of_its_own(config: Mapping[str, Any], lora: LoraSettings | None) -> ModelShape:
    """Return ``shape_of`` without importing torch into this process, whose memory it would take to the end."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as apart:
        return apart.submit(shape_of, config, lora).result()
