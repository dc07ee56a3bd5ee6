"""``python -m benchmarks.training_memory_side RUN``: trains the first round of RUN and prints what memory that took.

One line of JSON (``Used``). The highest resident memory is counted from the end of the imports on, and without them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import psutil

from environments.base import Record


class Used(Record):
    """Resident memory in bytes: after the imports, and the highest afterwards; tokens of the longest row trained on."""

    baseline: int
    peak: int
    longest: int


def main(root: Path) -> None:
    """Train the round of iteration 0 as the command does, in this process."""
    from training.grpo import trainer
    from training.grpo.round import run_round

    longest = 0
    score = trainer.RoundTrainer._get_per_token_logps_and_entropies

    def noted(self: Any, model: Any, ids: Any, attended: Any, *others: Any, **named: Any) -> Any:  # noqa: ANN401 - TRL's
        nonlocal longest
        longest = max(longest, int(attended.sum(dim=1).max()))
        return score(self, model, ids, attended, *others, **named)

    trainer.RoundTrainer._get_per_token_logps_and_entropies = noted
    from transformers.models.qwen3 import modeling_qwen3  # noqa: F401 - imported when the model is loaded

    baseline = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # the kernel's highest value begins here
    run_round(root, 0, False, lambda _: None)
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    print(Used(baseline=baseline, peak=int(found[1]) * 1024, longest=longest).model_dump_json(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
