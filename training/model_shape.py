"""The shape of a causal language model, read from its ``config.json`` alone: parameters and sizes of its layers.

Free of torch for the families in ``FAMILIES``. The parameters of any other model are counted by building it without
memory (torch's meta device), which needs transformers and no weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from environments.base import InputError, Record
from environments.heavy_imports import heavy_imports
from memory.jsonl import complaint

__all__ = ["FAMILIES", "ModelShape", "has_formula", "shape_of", "trained_with_lora"]


class _Family(NamedTuple):
    """Parts of a family that its configuration does not state: biases of q, k and v, norms of queries and keys."""

    qkv_bias: bool = False
    qk_norm: bool = False


FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(),
    "mistral": _Family(),
    "qwen2": _Family(qkv_bias=True),
    "qwen3": _Family(qk_norm=True),
    "qwen3_moe": _Family(qk_norm=True),
}
"""Families whose parameters are counted by formula; a test holds each against the library's own model."""


class _Config(BaseModel):
    """The part of a ``config.json`` that is read."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    max_position_embeddings: int | None = None
    num_experts: int | None = Field(None, validation_alias=AliasChoices("num_experts", "num_local_experts"))
    num_experts_per_tok: int | None = None
    moe_intermediate_size: int | None = None
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:  # noqa: ANN401 - as JSON has it
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given

    @property
    def sparse_layers(self) -> int:
        """Return the number of layers with experts."""
        if not self.num_experts:
            return 0
        return sum(
            layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0
            for layer in range(self.num_hidden_layers)
        )


class ModelShape(Record):
    """The sizes of a decoder that its memory and its arithmetic follow from.

    ``parameters``: all of them, each counted once where embeddings are tied. ``active``: those that one token goes
    through, without the input embedding: all but the experts that it is not sent to. ``largest``: parameters of the
    largest part that sharded training gathers at once, a layer or the embedding. ``mlp``: width of the feed-forward
    layer that one token goes through, summed over its experts. ``routed``: experts per token, 0 without experts.
    ``counted``: whether the parameters come from the library's own model, because the family has no formula here.
    """

    model_type: str
    parameters: int
    active: int
    largest: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    routed: int
    vocabulary: int
    positions: int | None
    tied: bool
    counted: bool = False

    @property
    def queries(self) -> int:
        """Return the width of all queries of a layer: heads x head dimension."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Return the width of all keys of a layer: key heads x head dimension."""
        return self.kv_heads * self.head_dim


def has_formula(config: Mapping[str, Any]) -> bool:
    """Return whether ``shape_of`` counts the parameters of the model with this ``config.json`` without building it."""
    return {"model_type": config.get("model_type"), **_decoder(config)}["model_type"] in FAMILIES


def _decoder(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a configuration that is the decoder's."""
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Return the shape of the model with this ``config.json``; of one in several parts, that of ``text_config``.

    Parameters of a decoder layer, with h hidden, q = heads x d, k = key heads x d, i the feed-forward width:
    attention h q + 2 h k + q h (+ q + 2k biases, + 2d norms of queries and keys), feed-forward 3 h i, two norms h. A
    layer of E experts of width m has 3 h m E + h E (router) in place of 3 h i. Around the layers: V h embedding, again
    V h for the output unless the two are tied, and a norm h. Source: the modelling code of transformers.

    Raises InputError for a configuration that lacks a size, and for another family that transformers cannot build.
    """
    inner = _decoder(config)
    try:
        read = _Config.model_validate({"model_type": config.get("model_type"), **inner})
    except ValidationError as error:
        raise InputError(f"config.json is not that of a decoder: {complaint(error)}") from None
    family = FAMILIES.get(read.model_type)
    shape = _by_formula(read, family or _Family())
    if family is not None:
        return shape
    total = _by_building(dict(inner), read.model_type)
    return shape.model_copy(
        update={
            "parameters": total,
            "active": max(1, total - (shape.parameters - shape.active)),
            "counted": True,
        }
    )


def _by_formula(read: _Config, family: _Family) -> ModelShape:
    h, layers = read.hidden_size, read.num_hidden_layers
    d = read.head_dim or h // read.num_attention_heads
    kv_heads = read.num_key_value_heads or read.num_attention_heads
    q, k = read.num_attention_heads * d, kv_heads * d
    attention = h * q + 2 * h * k + q * h
    if family.qkv_bias or read.attention_bias:
        attention += q + 2 * k
    if read.attention_bias:
        attention += h
    if family.qk_norm:
        attention += 2 * d
    dense = 3 * h * read.intermediate_size
    if read.mlp_bias:
        dense += 2 * read.intermediate_size + h
    experts, routed = read.num_experts or 0, read.num_experts_per_tok or 0
    width = read.moe_intermediate_size or 0
    sparse = 3 * h * width * experts + h * experts
    used = 3 * h * width * routed + h * experts
    sparse_layers = read.sparse_layers
    common = layers * (attention + 2 * h) + h
    embedding = read.vocab_size * h
    parameters = common + (layers - sparse_layers) * dense + sparse_layers * sparse
    parameters += embedding * (1 if read.tie_word_embeddings else 2)
    return ModelShape(
        model_type=read.model_type,
        parameters=parameters,
        active=common + (layers - sparse_layers) * dense + sparse_layers * used + embedding,
        largest=max(attention + 2 * h + (sparse if sparse_layers else dense), embedding),
        layers=layers,
        hidden=h,
        heads=read.num_attention_heads,
        kv_heads=kv_heads,
        head_dim=d,
        mlp=width * routed if sparse_layers else read.intermediate_size,
        routed=routed if sparse_layers else 0,
        vocabulary=read.vocab_size,
        positions=read.max_position_embeddings,
        tied=read.tie_word_embeddings,
    )


@heavy_imports()
def _by_building(config: dict[str, Any], model_type: str) -> int:
    """Return the parameters of the library's own model, built on the meta device: no weights, no memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        made = AutoConfig.for_model(**{**config, "model_type": model_type})
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(made)  # type: ignore[no-untyped-call]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"config.json: a model of type {model_type} cannot be built here: {reason}") from None
    return sum(one.numel() for one in model.parameters())


LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers of a decoder layer by their names in the library's models."""


def trained_with_lora(shape: ModelShape, rank: int, targets: Collection[str] | None) -> int:
    """Return the parameters of a LoRA adapter: rank x (inputs + outputs) of each target layer (arXiv 2106.09685).

    ``targets``: names of linear layers, None for every one (peft's ``all-linear``, which leaves the output layer out).
    Experts are left out: the library holds them in one tensor per layer, which is not a linear layer.
    """
    h, q, k, i = shape.hidden, shape.queries, shape.keys, 0 if shape.routed else shape.mlp
    sizes = dict(zip(LINEAR, ((h, q), (h, k), (h, k), (q, h), (h, i), (h, i), (i, h)), strict=True))
    chosen = LINEAR if targets is None else [name for name in LINEAR if name in targets]
    return shape.layers * rank * sum(sum(sizes[name]) for name in chosen if 0 not in sizes[name])
