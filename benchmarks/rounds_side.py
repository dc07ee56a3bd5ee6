"""``python -m benchmarks.rounds_side RUN ROUNDS``: trains the first rounds of RUN and prints what each took.

One line of JSON per round (``Used``). The highest memory is counted from the end of the imports on, and without them:
resident memory on CPU, the allocator's reserved memory on a GPU.
"""

from __future__ import annotations

import gc
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from environments.base import Record


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
