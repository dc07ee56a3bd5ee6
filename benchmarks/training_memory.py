"""Measures the memory of a training step on CPU at three sizes of the policy, against what ``training.plan`` says.

A policy is a random Qwen3 with the initial policy's tokenizer. Its round of two steps is trained as a run does it, in a
process of its own; the second step has the optimizer's moments. Memory is counted above the imports.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measurement import Measurement, Pair, of_pairs
from benchmarks.rounds_side import Used
from environments.checkout import GRPO_ALONE, INITIAL_POLICY, ROOT
from graph.recipe import load_recipe
from graph.settings import RunSettings
from memory.processes import run_child
from memory.run import RunDirectory
from training.model_shape import shape_of
from training.plan import RUN, DeviceNeed, memory_of

__all__ = ["SIZES", "above_imports", "make_policy", "measure", "measured_round", "planned", "prepared", "train_rounds"]

SIZES: Mapping[str, Mapping[str, int]] = {
    "0.6 M": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4},
    "50 M": {"hidden_size": 640, "intermediate_size": 1920, "num_hidden_layers": 10, "num_attention_heads": 10},
    "100 M": {"hidden_size": 768, "intermediate_size": 2560, "num_hidden_layers": 13, "num_attention_heads": 12},
}
"""Widths and depths; 0.6 M is the initial policy's shape."""

ROUND = (
    "iterations=1",
    "tasks.initial_count=4",
    "evaluation.set=null",
    "training.steps=2",
    "training.tasks_per_step=2",
    "training.rollouts_per_task=4",
    "training.max_tokens=256",
    "training.max_new_tokens=48",
    "training.max_actions=20",
    "policy.device=cpu",
)
LARGE_BATCH = ("training.rollouts_per_task=32", "training.max_tokens=512")
"""For the smallest size, whose weights would vanish beside Python's own objects: its memory is that of activations."""

CLOSE = 0.25  # planned / measured may differ by this share from 1
DEADLINE = 1500.0


def measure(repeats: int, sizes: Sequence[str] = tuple(SIZES)) -> Sequence[Measurement]:
    """Measure every size with all weights trained, and the middle one also with gradient checkpointing and with LoRA.

    ``repeats`` is not used: memory hardly varies from one run to the next.
    """
    rows = []
    for size in sizes:
        cases: dict[str, tuple[str, ...]] = {"": LARGE_BATCH if size == "0.6 M" else ()}
        if size == "50 M":
            cases |= {
                ", gradient checkpointing": ("training.gradient_checkpointing=true",),
                ", LoRA": ("policy.lora={rank: 16}",),
            }
        for words, options in cases.items():
            with tempfile.TemporaryDirectory() as folder:
                settings, used = measured_round(Path(folder), SIZES[size], options)
                need = planned(settings, used.longest)
            pair = Pair(above_imports(need, used.baseline) / 2**20, (used.peak - used.baseline) / 2**20)
            rows.append(
                of_pairs(
                    f"training memory: {size}{words}",
                    "highest memory of a round above its imports, planned / measured",
                    [pair],
                    "MiB",
                    expected=f"ratio from {1 - CLOSE:g} to {1 + CLOSE:g}",
                    met=lambda ratio: abs(ratio - 1) <= CLOSE,
                    note=f"imports {used.baseline / 2**20:.0f} MiB, longest rollout {used.longest} tokens",
                )
            )
    return rows


def measured_round(folder: Path, size: Mapping[str, int], options: Sequence[str] = ()) -> tuple[RunSettings, Used]:
    """Train a round of a random policy of that size; return its settings and the memory that it took."""
    policy = folder / "random"
    make_policy(policy, size)
    run, settings = prepared(folder / "run", [*ROUND, *options, f"policy.path={policy}"])
    (used,) = asyncio.run(train_rounds(run, 1, DEADLINE))
    return settings, used


def prepared(root: Path, overrides: Sequence[str]) -> tuple[RunDirectory, RunSettings]:
    """Make a run of recipes/grpo-base.yaml with ``overrides`` and its first tasks."""
    from graph.run.interruption import Interruption
    from graph.run.progress import Progress
    from graph.run.stages import Run, make_tasks

    settings = load_recipe(GRPO_ALONE, overrides)
    run = RunDirectory.create(root, settings)
    with Progress() as progress:
        asyncio.run(make_tasks(Run(run, settings, progress, Interruption(), resumed=False)))
    return run, settings


async def train_rounds(run: RunDirectory, rounds: int, deadline: float) -> list[Used]:
    """Train the first rounds of ``run`` in one process of its own. Raises ChildFailure with the end of its log."""
    lines: list[str] = []
    argv = [sys.executable, "-m", "benchmarks.rounds_side", str(run.root), str(rounds)]
    await run_child(argv, log_path=run.root.with_suffix(".log"), deadline=deadline, on_line=lines.append)
    return [Used.model_validate_json(line) for line in lines[-rounds:]]


def above_imports(need: DeviceNeed, imports: int) -> int:
    """Return what the plan says of the process that trains, on CPU, above its imports."""
    return need.peak - need.held[RUN] - imports


def planned(settings: RunSettings, tokens: int) -> DeviceNeed:
    """Return what the plan says of the process that trains, for rollouts of so many tokens."""
    config: dict[str, Any] = json.loads((Path(settings.policy.path) / "config.json").read_text())
    found = memory_of(shape_of(config), settings.policy, settings.training, device="cpu", tokens=tokens)
    return found.devices[0]


def make_policy(folder: Path, size: Mapping[str, int], seed: int = 0) -> None:
    """Write a random Qwen3 of that size, with the tokenizer and the rendering of the initial policy.

    ``size`` holds keys of its config.json; key heads are half of the heads, and the head dimension is the hidden size
    over the heads, unless it says otherwise.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    initial = ROOT / INITIAL_POLICY
    config = json.loads((initial / "config.json").read_text())
    heads = size["num_attention_heads"]
    config |= {"num_key_value_heads": heads // 2, "head_dim": size["hidden_size"] // heads, **size}
    config["layer_types"] = ["full_attention"] * size["num_hidden_layers"]
    torch.manual_seed(seed)
    Qwen3ForCausalLM(Qwen3Config(**config)).save_pretrained(folder)
    for file in initial.iterdir():
        if file.name not in ("config.json", "model.safetensors", "warm_start.json"):
            shutil.copy2(file, folder)
