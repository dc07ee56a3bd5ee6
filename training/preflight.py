"""Checks that a policy can be trained with a recipe, before anything is written or paid, without loading its weights.

It reads the small files of a model: configuration, tokenizer, chat template. The embedded policy is read without
transformers, whose import takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from environments.base import InputError
from memory.run import PolicyDirectory, read_json
from training.embedded.compact import CompactRendering
from training.policy_files import CONFIG, check_folder, first_line, read_config
from training.rollout.policy import (
    ANSWER_WITHIN,
    PolicyCard,
    hub_trouble,
    load_rendering,
    policy_folder,
    refuse_adapter,
)
from training.settings import IN_PROCESS, PolicySettings, SamplingSettings, TrainingSettings

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def check_policy(
    policy: PolicySettings,
    training: TrainingSettings,
    sampling: SamplingSettings = IN_PROCESS,
    scored_tokens: int | None = None,
) -> None:
    """Raise InputError that names the key of a policy, device or token limit that a round of training would refuse.

    ``scored_tokens`` is the limit of a run's evaluations where they have one of their own (``evaluation.max_tokens``).
    For a model on the hub, one request asks whether it exists, and its small files are fetched into the cache.
    """
    folder = Path(policy_folder(policy.path))
    if policy.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise InputError("policy.device: cuda was asked for and this machine has none: set it to auto or cpu")
    check_launch(training, policy, sampling)
    refuse_adapter(policy.path)
    if not folder.is_dir():
        folder = _of_hub(policy.path)
    elif not any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "*.bin")):
        raise InputError(f"policy.path: {policy.path} holds no weights (*.safetensors): name the folder of a model")
    limits = {"training.max_tokens": training.max_tokens}
    if scored_tokens is not None:
        limits["evaluation.max_tokens"] = scored_tokens
    check_folder(folder)
    _check_config(policy.path, folder / CONFIG, limits)
    card = PolicyDirectory(folder).card
    if card.is_file() and read_json(card, PolicyCard).rendering == "compact" and training.seal is None:
        policy.check_compact(policy.path)
        if training.tag_synthesised:
            raise InputError(
                f"training.tag_synthesised: {policy.path} has no chat template, so no system message: set it to false"
            )
        if not (folder / "tokenizer.json").is_file():
            raise InputError(f"policy.path: {policy.path} holds no tokenizer.json: name the folder of a model")
        return
    _check_rendering(policy, training, sampling)


def check_launch(training: TrainingSettings, policy: PolicySettings, sampling: SamplingSettings = IN_PROCESS) -> None:
    """Raise InputError that names the key for which the processes could not train together.

    Weights that are divided leave no process with a whole model to sample from, or to send by the ways that need one;
    nor for an expert step, whose gradients are those of whole weights.
    """
    if training.launch is None or not training.launch.fsdp:
        return
    if policy.device == "cpu":
        raise InputError("training.launch.fsdp divides weights over GPUs and policy.device is cpu: set it to false")
    if sampling.engine != "vllm_server":
        raise InputError(
            f"training.launch.fsdp divides weights, and sampling.engine {sampling.engine} needs all of them in each "
            "process: make it vllm_server, or set fsdp to false"
        )
    if training.expert is not None:
        raise InputError(
            "training.launch.fsdp divides weights, and training.expert updates whole ones: set training.expert to "
            "null, or fsdp to false"
        )


def check_attention(config: PretrainedConfig) -> None:
    """Raise InputError for a model with layers that the in-process sampler cannot decode."""
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if getattr(config, "sliding_window", None) or layer_types != {"full_attention"}:
        raise InputError(
            f"{config.model_type} has layers without full attention, which the in-process sampler cannot "
            "decode: choose a model whose layers all attend to everything, or sampling.engine vllm_server"
        )


def _of_hub(name: str) -> Path:
    """Return the folder of the cache that holds the configuration of a hub's model; fetch it if it is missing."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    kept = try_to_load_from_cache(name, "config.json")
    if isinstance(kept, str):
        return Path(kept).parent
    trouble = hub_trouble(name)
    if trouble is None:  # one request so far: a download would try for half a minute
        try:
            return Path(hf_hub_download(name, "config.json", etag_timeout=ANSWER_WITHIN)).parent
        except OSError as error:
            trouble = " ".join(str(error).split())[:200]
    raise InputError(
        f"policy.path: {name} is not a folder, is not in the hub's cache, and cannot be fetched from the hub "
        f"({trouble}): name a folder, or download it first on a machine that reaches the hub (hf download)"
    )


def _check_config(name: str, path: Path, limits: Mapping[str, int]) -> None:
    if not path.is_file():
        raise InputError(f"policy.path: {name} holds no config.json: name the folder of a causal language model")
    positions = read_config(path)[0].text.max_position_embeddings
    for key, tokens in limits.items():
        if positions is not None and positions < tokens:
            raise InputError(f"{key} is {tokens} and {name} has {positions} positions: lower max_tokens")


def _check_rendering(policy: PolicySettings, training: TrainingSettings, sampling: SamplingSettings) -> None:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(policy_folder(policy.path), trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - whatever a stranger's configuration makes the library raise
        raise InputError(f"policy.path: {policy.path} is not a model that can be loaded: {first_line(error)}") from None
    if sampling.engine == "in_process":
        check_attention(config)
    _, _, rendering = load_rendering(policy.path, policy)
    interface = training.seal.interface if training.seal is not None else None
    if isinstance(rendering, CompactRendering) and interface is not None:
        rendering.check_interface(interface)
