"""A tiny model of another model's architecture, with its tokenizer and chat template, that has learnt a few tasks.

    python -m graph.rehearsal.stand_in RECIPE TASKS FOLDER [KEY=VALUE ...]

The vocabulary stays, so that tokens, prompts and the output layer are the model's own; layers, heads and widths become
small. A compact attention head has 32 dimensions, the fewest that vLLM's kernels take. A random model solves nothing,
and without a success there is no signal: so it learns the references of TASKS. Import late what needs torch.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from environments.base import InputError
from environments.command import exit_statuses
from graph.settings import RunSettings
from memory.jsonl import whole_folder

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

WEIGHTS = "model.safetensors"

COURSES: tuple[Mapping[str, Any], ...] = (
    {"learning_rate": 0.01, "passes": 60, "documentation": "lines", "tools_shown": 1},
    {"learning_rate": 0.005, "passes": 12},
)
"""How it learns (ours): from prompts of a few hundred tokens, which is cheap, then from the recipe's own."""


def make_stand_in(config: Mapping[str, Any], source: str, folder: Path) -> None:
    """Write a random stand-in of the model with this ``config.json`` into ``folder``, which is new.

    Of a ``source`` on the hub the small files are fetched into the cache. Raises InputError where they cannot be, and
    for an architecture that cannot be built.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from training.plan import building, library_config

    small = _small_files(source)
    with building(f"policy.path: {source}"):
        read = library_config(config)
        shared = getattr(read, "num_key_value_heads", None)
        grouped = shared not in (None, read.num_attention_heads)
        for key, size in SIZES.items():
            if isinstance(now := getattr(read, key, None), int):
                setattr(read, key, min(now, size))
        if shared is not None:
            read.num_key_value_heads = min(KEY_VALUE_HEADS, shared) if grouped else read.num_attention_heads
        if getattr(read, "layer_types", None):
            read.layer_types = read.layer_types[: read.num_hidden_layers]
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(read)  # type: ignore[no-untyped-call]
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

    from training.rollout.policy import hub_trouble

    trouble = hub_trouble(source)
    try:
        return Path(snapshot_download(source, allow_patterns=list(SMALL), local_files_only=trouble is not None))
    except OSError as error:
        cause = trouble or " ".join(str(error).split())[:200]
        raise InputError(
            f"policy.path: the tokenizer of {source} is neither here nor on a hub that can be reached ({cause}): "
            "download it first, or name a folder with --set policy.path=FOLDER"
        ) from None


def teach(model: Path, tasks: Path, settings: RunSettings) -> None:
    """Learn the references of ``tasks`` with the recipe's prompts. Raises InputError where none can be learnt."""
    from training.warm_start import StartSettings, warm_start

    name, own = settings.environment.name, settings.environment.options
    kept = {"max_tokens": settings.training.max_tokens, "device": settings.policy.device}
    for course in COURSES:
        course_settings = StartSettings(**kept | settings.policy.given_options | dict(course))
        with TemporaryDirectory(dir=model.parent) as made:
            out = Path(made) / "taught"
            warm_start(str(model), [tasks], out, course_settings, name, options=own)
            # The weights alone: the prompts of the first course are not the recipe's.
            (out / WEIGHTS).replace(model / WEIGHTS)


def main(recipe: str, tasks: str, folder: str, *given: str) -> None:
    """Make it and teach it, for a command that does not import torch itself."""
    with exit_statuses():
        from graph.fit import config_of
        from graph.recipe import load_recipe
        from training.rollout.policy import policy_folder

        settings = load_recipe(Path(recipe), given)
        make_stand_in(config_of(settings), policy_folder(settings.policy.path), Path(folder))
        teach(Path(folder), Path(tasks), settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
