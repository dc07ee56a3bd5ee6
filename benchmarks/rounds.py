"""Trains the first rounds of a run, of a random policy too, and measures what each took.

``python -m benchmarks.rounds RUN ROUNDS`` prints one line of JSON per round (``Used``). The highest memory is counted
from the end of the imports on, and without them: resident memory on CPU, the allocator's reserved memory on a GPU.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

from environments.base import Record
from environments.checkout import GRPO_ALONE, INITIAL_POLICY, ROOT
from memory.processes import run_child
from memory.run import RunDirectory
from training.plan import RUN, DeviceNeed

if TYPE_CHECKING:
    from graph.settings import RunSettings

__all__ = ["Used", "above_imports", "make_policy", "prepared", "train_rounds"]


class Used(Record):
    """Memory in bytes before the round (of imports) and at its highest, and the tokens that were learnt from.

    ``context``: memory of the GPU's context, which the allocator does not count; 0 on CPU. ``longest``: tokens of the
    longest row. ``trained``: tokens of all rows. ``attended``: tokens that each of them attends to on average.
    """

    baseline: int
    peak: int
    context: int
    longest: int
    trained: int
    attended: float


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


def prepared(root: Path, overrides: Sequence[str]) -> tuple[RunDirectory, RunSettings]:
    """Make a run of recipes/grpo-base.yaml with ``overrides`` and its first tasks."""
    from graph.recipe import load_recipe
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
    argv = [sys.executable, "-m", "benchmarks.rounds", str(run.root), str(rounds)]
    await run_child(argv, log_path=run.root.with_suffix(".log"), deadline=deadline, on_line=lines.append)
    return [Used.model_validate_json(line) for line in lines[-rounds:]]


def above_imports(need: DeviceNeed, imports: int) -> int:
    """Return what the plan says of the process that trains, on CPU, above its imports."""
    return need.peak - need.held[RUN] - imports


def main(root: Path, rounds: int) -> None:
    """Train the rounds as the command does, in this process."""
    trainer: Any = import_module("training.grpo.trainer")  # its private method is watched
    from training.grpo.round import RoundSettings, run_round

    torch = trainer.torch
    lengths: list[int] = []
    score = trainer.RoundTrainer._get_per_token_logps_and_entropies

    def noted(self: Any, model: Any, ids: Any, attended: Any, *others: Any, **named: Any) -> Any:  # noqa: ANN401 - TRL's
        if torch.is_grad_enabled():  # what is scored without gradients is the reference policy's
            lengths.extend(attended.sum(dim=1).tolist())
        return score(self, model, ids, attended, *others, **named)

    trainer.RoundTrainer._get_per_token_logps_and_entropies = noted
    from transformers.models.qwen3 import modeling_qwen3  # noqa: F401 - imported when the model is loaded

    from memory.run import RunDirectory

    device = RunDirectory.open(root).settings(RoundSettings).policy.device
    for iteration in range(rounds):
        gc.collect()
        lengths.clear()
        baseline = _begin(torch, device)
        run_round(root, iteration, False, lambda _: None)
        peak, context = _highest(torch, device)
        total = sum(lengths)
        used = Used(
            baseline=baseline,
            peak=peak,
            context=context,
            longest=max(lengths),
            trained=total,
            attended=sum(one * (one + 1) / 2 for one in lengths) / total,
        )
        print(used.model_dump_json(), flush=True)


def _begin(torch: Any, device: str) -> int:  # noqa: ANN401 - imported late
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_reserved())
    Path("/proc/self/clear_refs").write_text("5")  # the kernel's highest value begins here
    return int(psutil.Process().memory_info().rss)


def _highest(torch: Any, device: str) -> tuple[int, int]:  # noqa: ANN401 - imported late
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return int(torch.cuda.max_memory_reserved()), max(0, total - free - int(torch.cuda.memory_reserved()))
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024, 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
