"""Compares ways to do a GRPO step or its rollouts, each in a separate process, measured in turn.

``ours`` is RoundTrainer over the in-process sampler. ``trl`` is GRPOTrainer with ``environment_factory``, its own way
to act over several turns. ``trl-on-our-rollouts`` is GRPOTrainer on the sampler's rollouts, with the seeds of ``ours``:
what remains is the optimisation. TRL allows one trainer per process, hence the processes; one that waits uses no time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Literal

from benchmarks.chat_policy import make_chat_policy
from environments.base import Record

__all__ = ["OURS", "OUR_ROLLOUTS", "TRL", "Figures", "interleaved", "what_was_sampled"]

OURS, TRL, OUR_ROLLOUTS = "ours", "trl", "trl-on-our-rollouts"

QUIET = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


class Figures(Record):
    """The samples of one side for one step, with wall seconds and CPU seconds of the process.

    ``rollout_*`` is everything from opening the episodes to their rewards; ``wall`` and ``cpu`` is all of the work.
    """

    rollouts: int
    successes: int
    sampled_tokens: int
    prompt_tokens: int
    rollout_wall: float
    rollout_cpu: float
    wall: float
    cpu: float


def interleaved(
    work: Literal["step", "rollouts"], sides: Sequence[str], repeats: int
) -> dict[str, tuple[Figures, ...]]:
    """Measure every side in turn ``repeats`` times, after one time that is not counted.

    Raises RuntimeError when a side ends early, or when the sides' prompts are not equally long.
    """
    with TemporaryDirectory(prefix="benchmark-") as folder:
        policy = Path(folder) / "chat-policy"
        make_chat_policy(policy)
        started = {side: _start(work, side, policy, Path(folder) / side, repeats + 1) for side in sides}
        try:
            taken = [{side: _figures(side, process) for side, process in started.items()} for _ in range(repeats + 1)]
        finally:
            for process in started.values():
                process.kill()
                process.communicate()
    lengths = {side: figures.prompt_tokens for side, figures in taken[0].items()}
    if len(set(lengths.values())) > 1:
        raise RuntimeError(f"the sides' prompts differ, so that their figures cannot be compared: {lengths} tokens")
    return {side: tuple(figures[side] for figures in taken[1:]) for side in sides}


def what_was_sampled(figures: dict[str, tuple[Figures, ...]]) -> str:
    """Return a note that shows how far both sides did the same work."""
    parts = []
    for side in (OURS, TRL):
        tokens = median(each.sampled_tokens for each in figures[side])
        success = sum(each.successes for each in figures[side]) / sum(each.rollouts for each in figures[side])
        parts.append(f"{side} {tokens:.0f} tokens (success {success:.2f})")
    one = figures[OURS][0]
    prompt = one.prompt_tokens / one.rollouts
    return f"{one.rollouts} rollouts of prompts of {prompt:.0f} tokens; sampled: {', '.join(parts)}"


def _start(work: str, side: str, policy: Path, out: Path, times: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.grpo_side", work, side, str(policy), str(out), str(times)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | QUIET)


def _figures(side: str, process: subprocess.Popen[str]) -> Figures:
    """Make a side do its work once."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # its absence shows in the missing answer
        print("go", file=process.stdin, flush=True)
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the side {side} ended early with status {process.wait()}: its output is above")
    return Figures.model_validate_json(line)
