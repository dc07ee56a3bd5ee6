"""A tiny random model of another model's architecture, with its tokenizer and chat template, for a rehearsal.

    python -m training.models.stand_in CONFIG SOURCE FOLDER

CONFIG is the model's config.json, SOURCE its folder or hub id. The vocabulary stays, so that tokens, prompts and the
output layer are the model's own; layers, heads and widths become small. A compact attention head has 32 dimensions,
the fewest that vLLM's kernels take. Import late what needs torch.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from environments.base import InputError
from environments.command import exit_statuses
from memory.jsonl import parse_json, whole_folder

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
KEY_VALUE_HEADS = 2

SMALL = ("*.json", "*.jinja", "*.txt", "*.model")
"""Files of a tokenizer and its template, and of the stop tokens."""


def make_stand_in(config: Mapping[str, Any], source: str, folder: Path) -> None:
    """Write the stand-in of the model with this ``config.json`` into ``folder``, which is new.

    Of a ``source`` on the hub the small files are fetched into the cache. Raises InputError where they cannot be, and
    for an architecture that cannot be built.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    small = _small_files(source)
    part = config.get("text_config")
    given = {"model_type": config.get("model_type"), **(part if isinstance(part, Mapping) else config)}
    try:
        read = AutoConfig.for_model(**given)
        grouped = getattr(read, "num_key_value_heads", None) not in (None, read.num_attention_heads)
        for key, size in SIZES.items():
            if isinstance(now := getattr(read, key, None), int):
                setattr(read, key, min(now, size))
        if getattr(read, "num_key_value_heads", None) is not None:
            read.num_key_value_heads = (
                min(KEY_VALUE_HEADS, read.num_key_value_heads) if grouped else SIZES["num_attention_heads"]
            )
        if getattr(read, "layer_types", None):
            read.layer_types = read.layer_types[: read.num_hidden_layers]
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(read)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - whatever a configuration of a stranger makes the library raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"policy.path: no small model of {source} can be built: {reason}") from None
    with whole_folder(folder) as partial:
        model.to(torch.float32).save_pretrained(partial)
        # Behind it, because it writes a generation_config.json of its own: stop tokens are the model's.
        for file in {file for pattern in SMALL for file in small.glob(pattern)}:
            if file.name != "config.json" and not file.name.endswith(".index.json"):
                shutil.copyfile(file, partial / file.name)


def _small_files(source: str) -> Path:
    """Return the folder of the model's tokenizer and template."""
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    from training.rollout.policy_path import hub_trouble

    try:
        offline = hub_trouble(source) is not None
        return Path(snapshot_download(source, allow_patterns=list(SMALL), local_files_only=offline))
    except OSError as error:
        cause = " ".join(str(error).split())[:200]
        raise InputError(
            f"policy.path: the tokenizer of {source} is neither here nor on a hub that can be reached ({cause}): "
            "download it first, or name a folder with --set policy.path=FOLDER"
        ) from None


def main(config: str, source: str, folder: str) -> None:
    """Make it, for a command that does not import torch itself."""
    with exit_statuses():
        read = parse_json(Path(config).read_bytes())
        if not isinstance(read, dict):
            raise InputError(f"{config} is not a JSON object: give a model's config.json")
        make_stand_in(read, source, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
