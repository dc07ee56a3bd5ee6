"""Rounds of training as child processes."""

from __future__ import annotations

import asyncio
import sys

from memory.processes import run_child
from memory.run import RunDirectory
from training.grpo.record import RoundProgress


def train(run: RunDirectory, iteration: int, *flags: str) -> list[RoundProgress]:
    """Run an iteration's round in a child process; the lines of its stdout."""
    lines: list[str] = []
    argv = [sys.executable, "-m", "training.run_round", "--run", str(run.root), "--iteration", str(iteration), *flags]
    child = run_child(
        argv,
        log_path=run.root / "round.log",
        deadline=120,
        on_line=lines.append,
        env={"OMP_NUM_THREADS": "1"},
    )
    asyncio.run(child)
    return [RoundProgress.model_validate_json(line) for line in lines]
