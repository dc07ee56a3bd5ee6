"""The memory that training and sampling need, by device, before a model is there.

Parameters are counted on the library's own model, built from its ``config.json`` on torch's meta device: no weights are
read, and none take memory. Every other term is a formula of its shape and of settings; the docstring beside it gives
the formula, its source and what it assumes. Bytes are counted at the highest point: every rollout has
``training.max_tokens`` tokens, and no two rollouts are alike.

Symbols: P parameters, T those that are trained, L layers, h hidden width, q and k the widths of a layer's queries and
keys, i the feed-forward width that one token goes through, V vocabulary, s tokens of a rollout, N processes.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from environments.base import InputError, Record
from environments.checkout import heavy_imports
from training.device_memory import LARGE_VOCABULARY, PREFILL_TOKENS, ROWS_TOGETHER, TOKENS_TOGETHER
from training.rollout.episodes import EpisodeLimits
from training.settings import IN_PROCESS, LoraSettings, PolicySettings, SamplingSettings, TrainingSettings

GIB = 2**30
TILE = (4096, 32_768)  # tokens and vocabulary of a tile of TRL's head (trl.kernels.chunked_logprob, trl.trainer.utils)

PROCESS_BYTES: Mapping[str, int] = {"cpu": 650_000_000, "cuda": GIB}
"""Memory of a training process beside the model: on CPU its imports, 470 MB, and 180 MB that its first step loads, both
measured; on a GPU the CUDA context, its kernels and the allocator's rounding, an assumption."""

RUN_BYTES = 480_000_000
"""Memory of the run's own process, beside the one that trains, where both are in the same memory (CPU; measured)."""

LOGITS_BYTES = 36  # per word of the vocabulary and row that is sampled: float32 logits and probabilities, float64 sums
RUN = "the run beside it"
_LAYER = re.compile(r"(.*\.\d+)\.")

Device = Literal["cpu", "cuda"]


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


@contextmanager
def building(source: str) -> Iterator[None]:
    """Raise InputError that begins with ``source`` for whatever a stranger's configuration makes the library raise."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{source}: this model cannot be built here: {reason}") from None


def library_config(config: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of the library's class for that architecture
    """Return the library's configuration of a ``config.json``; of a model in several parts, that of its text part."""
    from transformers import AutoConfig

    part = config.get("text_config")
    return AutoConfig.for_model(
        **{"model_type": config.get("model_type"), **(part if isinstance(part, Mapping) else config)}
    )


@heavy_imports()
def shape_of(config: Mapping[str, Any], lora: LoraSettings | None = None) -> ModelShape:
    """Return the shape of the model with this ``config.json``.

    Raises InputError for a configuration that lacks its type or that the library cannot build.
    """
    import torch
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    from training.rollout.policy import lora_config

    with building("config.json"):
        read = library_config(config)
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):
            model = AutoModelForCausalLM.from_config(read)  # type: ignore[no-untyped-call]
            sizes = {name: one.numel() for name, one in model.named_parameters()}
            if lora is not None:
                model = get_peft_model(model, lora_config(lora, model))
        hidden, heads = read.hidden_size, read.num_attention_heads
        width = getattr(read, "head_dim", None) or hidden // heads
        mlp = getattr(read, "intermediate_size", None) or 4 * hidden
        routed = getattr(read, "num_experts_per_tok", None) or 0
        layers = Counter[str]()
        for name, size in sizes.items():
            layer = _LAYER.match(name)
            layers[layer[1] if layer else name] += size
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


def shape_in_process_of_its_own(config: Mapping[str, Any], lora: LoraSettings | None) -> ModelShape:
    """Return ``shape_of`` without importing torch into this process, whose memory it would take to the end."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as apart:
        return apart.submit(shape_of, config, lora).result()


class DeviceNeed(Record):
    """The memory of one kind of device. ``parts`` in bytes; those of one phase are there at once.

    ``held`` are there in every phase; ``sampling`` and ``update`` are the two phases of a step. ``peak``: ``held`` and
    the larger phase.
    """

    name: str
    count: int
    held: dict[str, int]
    sampling: dict[str, int]
    update: dict[str, int]

    @property
    def peak(self) -> int:
        """Return the bytes at the highest point of a step."""
        return sum(self.held.values()) + max(sum(self.sampling.values()), sum(self.update.values()))


class Memory(Record):
    """The memory of a set-up: parameters of the policy, those that are trained, and each kind of device."""

    parameters: int
    trained: int
    devices: tuple[DeviceNeed, ...]

    def fullest(self, device: Device, gpus: int | None = None) -> int:
        """Return the bytes that a device must have; on CPU all processes share one, with one run beside them.

        With fewer ``gpus`` than processes and servers, one GPU holds several of them; None: each has its own.
        """
        if device == "cpu":
            return sum(need.peak * need.count - need.held.get(RUN, 0) * (need.count - 1) for need in self.devices)
        if gpus is None or sum(need.count for need in self.devices) <= gpus:
            return max(need.peak for need in self.devices)
        return sum(need.peak * -(-need.count // gpus) for need in self.devices)


def activation_bytes(shape: ModelShape, *, mixed: bool, lora: bool) -> int:
    """Return the bytes that one token leaves in one layer for the backward pass.

    The tensors that autograd saves in the library's Qwen3 layer, counted one by one (after Korthikanti et al.,
    arXiv 2205.05198, section 4.1, whose 34 s b h is for GPT with dropout):

    - each of the two norms: its input, the normalised input, and the output, which the linear layers read: 6 h;
    - queries: before their norm, normalised, after the rotation: 3 q; keys the same and values once: 4 k; keys and
      values repeated for the query heads, and the attention's output: 3 q; no attention scores (sdpa);
    - feed-forward: gate, its activation, up, and their product: 4 i; with e experts per token also two copies of the
      input for each, 2 e h.

    4 bytes each in float32. In bfloat16 the norms stay float32: 20 h + 14 q + 10 k + 8 i (+ 4 e h). Assumes sdpa
    attention, no dropout.

    With a LoRA adapter 5 h + q + i more, as if it read a copy of its own of every linear layer's input. Autograd saves
    less, because frozen layers keep no input: of Qwen3-4B two thirds of this sum. On CPU a process took what is counted
    (planned over measured 0.96 and 1.01, once each), because the C library's heap keeps what lies between.
    """
    h, q, k, i = shape.hidden, shape.queries, shape.keys, shape.mlp
    if mixed:
        total = 20 * h + 14 * q + 10 * k + 8 * i + 4 * shape.routed * h
    else:
        total = 4 * (6 * h + 6 * q + 4 * k + 4 * i + 2 * shape.routed * h)
    if lora:
        total += (2 if mixed else 4) * (5 * h + q + i)
    return total


def logits_bytes(shape: ModelShape, rows: int, tokens: int, *, device: str, mixed: bool, lora: bool = False) -> int:
    """Return the bytes of the output layer at the highest point of a backward pass over ``rows`` rollouts.

    On a GPU TRL's head makes the logits of a tile at a time (``TILE``) and keeps none: one tile, in bfloat16 2 bytes
    each; of every token that is scored at once the last layer's output and its gradient; and where the head is
    trained, its gradient in float32. Source: ``ChunkedLogProbFunction`` of TRL 1.16, read and not measured.

    On CPU the same head is torch operations: a value of a tile takes 33 bytes while its gradient is computed, itself,
    seven copies in float32 and whether it is the target (``_backward_tile``).
    """
    scored = min(rows, ROWS_TOGETHER) * tokens
    values = min(scored, TILE[0]) * min(shape.vocabulary, TILE[1])
    if device == "cpu":
        return 33 * values
    width = 2 if mixed else 4
    return values * width + scored * shape.hidden * (4 + width) + (0 if lora else 4 * shape.vocabulary * shape.hidden)


def kv_bytes(shape: ModelShape, rows: int, tokens: int, width: int) -> int:
    """Return the bytes of a KV cache: 2 L k s values of ``width`` bytes for each of ``rows`` (standard; k with GQA)."""
    return 2 * shape.layers * shape.keys * tokens * rows * width


def sampled_row_bytes(shape: ModelShape, tokens: int, width: int) -> int:
    """Return what one episode of ``tokens`` tokens holds while the sampler in process decodes it."""
    return kv_bytes(shape, 1, tokens, width) + LOGITS_BYTES * shape.vocabulary


def memory_of(
    shape: ModelShape,
    policy: PolicySettings,
    training: TrainingSettings,
    *,
    device: Device,
    sampling: SamplingSettings = IN_PROCESS,
) -> Memory:
    """Return the memory of a round by kind of device.

    A rollout has ``training.max_tokens``, prompt and observations included.

    - weights: 4 P where all are trained (float32, also with bfloat16: ``training.rollout.policy``); with LoRA 4 P or
      2 P by ``policy.dtype``, and 4 T of the adapter (peft keeps it float32);
    - AdamW's two moments 8 T, float32; its temporaries are not counted;
    - reference policy: 4 P where all weights are trained and ``training.kl`` > 0 (TRL loads a copy); with LoRA the
      adapter is switched off instead;
    - sampling in process: ``kv_bytes``, one pass of prompts (4 i + 4 h values for each of 8192 tokens at most), and the
      sampler's logits, 36 V bytes per row (float32 logits and log-probabilities, float64 sums);
    - sharding (fsdp): weights, gradients, moments and reference are divided by N (Rajbhandari et al., arXiv
      1910.02054, stage 3), and two of the largest parts are gathered at a time; the reference is gathered as a whole,
      because TRL shards it as one piece, before the update; ddp holds all in each process, and the gradients a second
      time in its buckets. Processes share the rollouts of a step;
    - a vLLM server: weights in ``policy.dtype``, the KV cache of one rollout at least, and ``PROCESS_BYTES``. It takes
      its share of the device (``gpu_memory_utilization``) whatever it needs.

    ``_update`` has the terms of the update.
    """
    mixed = policy.known_dtype == "bfloat16"
    dtype_bytes = 2 if mixed else 4
    base_bytes = 4 if policy.lora is None else dtype_bytes
    processes, tokens = training.processes, training.max_tokens
    shards = processes if training.launch is not None and training.launch.fsdp else 1
    step_rows = training.tasks_per_step * training.rollouts_per_task
    update_rows = -(-step_rows // training.updates_per_step // processes)
    adapter = 0 if policy.lora is None else 4 * shape.trained
    held = {
        "process": PROCESS_BYTES[device],
        **({RUN: RUN_BYTES} if device == "cpu" else {}),
        "weights": (shape.parameters * base_bytes + adapter) // shards,
        "optimizer": 8 * shape.trained // shards,
    }
    if policy.lora is None and training.kl > 0:
        held["reference"] = 4 * shape.parameters // shards
    update = _update(shape, policy, training, rows=update_rows, shards=shards, device=device)
    sampled: dict[str, int] = {}
    servers = []
    if sampling.engine == "in_process":
        rows = min(-(-step_rows // processes), EpisodeLimits().batch)
        prompts = min(PREFILL_TOKENS, rows * tokens)
        sampled["KV cache"] = kv_bytes(shape, rows, tokens, dtype_bytes)
        sampled["prompts"] = prompts * 4 * (shape.mlp + shape.hidden) * base_bytes
        sampled["sampler's logits"] = LOGITS_BYTES * shape.vocabulary * rows
    else:
        if shards > 1 and "reference" in held:
            sampled["gathered reference"] = shape.parameters * dtype_bytes
        parts = {"weights": shape.parameters * dtype_bytes, "KV cache": kv_bytes(shape, 1, tokens, dtype_bytes)}
        served = {"process": PROCESS_BYTES[device], **parts}
        count = len(sampling.servers) or 1
        servers.append(DeviceNeed(name="vLLM server", count=count, held=served, sampling={}, update={}))
    trainer = DeviceNeed(name="trainer", count=processes, held=held, sampling=sampled, update=update)
    return Memory(parameters=shape.parameters, trained=shape.trained, devices=(trainer, *servers))


def _update(
    shape: ModelShape,
    policy: PolicySettings,
    training: TrainingSettings,
    *,
    rows: int,
    shards: int,
    device: Device,
) -> dict[str, int]:
    """Return the memory of an update of ``rows`` rollouts in one process, at most.

    L times ``activation_bytes`` for each token of a micro-batch, or with gradient checkpointing the input of each
    layer (h values) and one layer's activations again; the gradients of one layer's activations, counted like these;
    ``logits_bytes``; gradients 4 T (float32) beside them where an update has several micro-batches, otherwise the
    larger of the two, because the gradients of a single backward pass grow as what was kept goes; bfloat16 copies of
    float32 weights 2 P (autocast's cache).

    On CPU with a large vocabulary (``training.grpo.scoring``) one process keeps the activations of ``TOKENS_TOGETHER``
    tokens or of one rollout, ``kv_bytes`` of the micro-batch, and 16 bytes for each logit of the tokens that rollouts
    can write: the scaled one, and the gradients of gather, of logsumexp and of the unscaled logit.
    """
    mixed, lora = policy.known_dtype == "bfloat16", policy.lora is not None
    tokens, copied = training.max_tokens, training.launch is not None and shards == 1
    together = min(training.micro_batch or rows, rows)
    per_layer = activation_bytes(shape, mixed=mixed, lora=lora)
    kept, one_layer = shape.layers * per_layer, per_layer
    if training.gradient_checkpointing:
        kept, one_layer = shape.layers * shape.hidden * (2 if mixed and lora else 4), 2 * per_layer
    at_once, held_keys = together * tokens, 0
    logits = logits_bytes(shape, together, tokens, device=device, mixed=mixed, lora=lora)
    plain = training.launch is not None or training.gradient_checkpointing
    if device == "cpu" and shape.vocabulary >= LARGE_VOCABULARY and not plain:
        at_once = min(at_once, max(TOKENS_TOGETHER, tokens))
        held_keys = kv_bytes(shape, together, tokens, 2 if mixed else 4)
        written = training.max_new_tokens * (training.max_episode_steps or tokens) * together
        logits = 16 * shape.vocabulary * min(at_once, written)
    activations, gradients = at_once * kept, 4 * shape.trained // shards * (2 if copied else 1)
    if together == rows and not copied:
        gradients = max(0, gradients - activations - logits)
    update = {
        "activations": activations,
        "one layer's backward pass": at_once * one_layer,
        **({"keys and values": held_keys} if held_keys else {}),
        "logits": logits,
        "gradients": gradients,
    }
    if shards > 1:
        update["gathered weights"] = 2 * shape.largest * (2 if mixed else 4)
    elif mixed and not lora:
        update["bfloat16 copies"] = 2 * shape.parameters
    return update
