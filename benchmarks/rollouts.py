"""Measures the rollout phase in sampled tokens per second, against TRL's ``environment_factory``.

Both sides open the same BFCL tasks of one user turn, act in them with the same tiny chat policy on one thread, and are
scored by the official checker; prompts are equal id by id and only the policy's own tokens count. The embedded policy's
compact rendering has prompts of 15 tokens instead of 500, which TRL's path cannot do: its figure has no counterpart.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.grpo_sides import OURS, TRL, Figures, interleaved, what_was_sampled
from benchmarks.measurement import Measurement, Pair, of_pairs
from environments.bfcl.environment import BFCLEnvironment
from memory.records import Task
from memory.run import read_jsonl

__all__ = ["measure"]

LEAST = 1.5  # times TRL's path
INITIAL_POLICY = "recipes/starter"
TASKS, K = 8, 8


def measure(repeats: int) -> Sequence[Measurement]:
    """Measure sampled tokens per wall and CPU second against TRL's path, then of the embedded policy alone."""
    figures = interleaved("rollouts", (OURS, TRL), repeats)

    def row(clock: str, seconds: Callable[[Figures], float]) -> Measurement:
        rates = {side: [taken.sampled_tokens / seconds(taken) for taken in figures[side]] for side in (OURS, TRL)}
        return of_pairs(
            f"rollout phase, {clock}",
            "in-process sampler / TRL environment_factory",
            [Pair(*rate) for rate in zip(rates[OURS], rates[TRL], strict=True)],
            "sampled tokens/s",
            expected=f"at least {LEAST}",
            met=lambda ratio: ratio >= LEAST,
            note=what_was_sampled(figures),
        )

    return [
        row("wall clock", lambda taken: taken.rollout_wall),
        row("CPU time", lambda taken: taken.rollout_cpu),
        _embedded(repeats),
    ]


def _embedded(repeats: int) -> Measurement:
    """Measure the initial policy on tasks of D_0, alone: no other sampler has the compact rendering."""
    import torch

    from training.rollout.episodes import EpisodeLimits, EpisodeRequest, run_episodes
    from training.rollout.in_process import InProcessSampler
    from training.rollout.policy import load_policy

    torch.set_num_threads(1)
    tasks = _tasks()
    policy = load_policy(INITIAL_POLICY, "cpu")
    sampler = InProcessSampler(policy.model)
    environment = BFCLEnvironment(sorted({name for task in tasks for name in task.classes}))
    rates = []
    for repeat in range(repeats + 1):
        requests = [
            EpisodeRequest(task=task, seed=(repeat * TASKS + number) * K + sample)
            for number, task in enumerate(tasks)
            for sample in range(K)
        ]
        began = time.process_time()
        results = run_episodes(policy, sampler, environment, requests, EpisodeLimits(), temperature=0.9)
        rates.append(sum(result.sampled_tokens for result in results) / (time.process_time() - began))
    prompts = median(len(result.prompt_ids) for result in results)
    return Measurement(
        name="rollout phase, embedded policy, CPU time",
        compared=f"in-process sampler, {INITIAL_POLICY}",
        ours=median(rates[1:]),
        unit="sampled tokens/s",
        spread=(min(rates[1:]), max(rates[1:])),
        repeats=repeats,
        note=f"compact rendering: {len(results)} rollouts of prompts of {prompts:.0f} tokens, not comparable with the "
        "rows above",
    )


def _tasks() -> tuple[Task, ...]:
    with TemporaryDirectory() as folder:
        output = Path(folder) / "drawn.jsonl"
        command = [sys.executable, "-m", "graph.seed_tasks", "--count", str(TASKS), "--output", str(output)]
        subprocess.run(command, check=True, capture_output=True)
        return tuple(read_jsonl(output, Task))
