"""Measures short iterations of recipes/grpo-base.yaml with exploration beside training, against one after the other.

Both are the real command, interleaved. The records differ, because rounds train on other tasks; both play as many
rollouts, under one limit of contexts. The time of the graph can be saved, if there is a core for it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.measurement import Measurement, Pair, of_pairs
from benchmarks.runs import Command, iteration_seconds, run_iterations
from environments.checkout import GRPO_ALONE
from memory.run import RunDirectory

__all__ = ["measure"]

ITERATIONS = 3
SHORT = ("training.steps=5", "tasks.initial_count=40")  # a quarter of the recipe's steps, as many contexts


def measure(repeats: int, iterations: int = ITERATIONS, options: Sequence[str] = SHORT) -> Sequence[Measurement]:
    """Measure wall seconds per iteration; ``options`` are settings of both sides."""
    pairs: list[tuple[Command, Command]] = []
    graph: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            done = {}
            for concurrent in ((True, False), (False, True))[repeat % 2]:
                root = Path(folder) / f"{repeat}-{concurrent}"
                settings = [f"iterations={iterations}", "evaluation.set=null", *options]
                settings.append(f"evolution.concurrent={str(concurrent).lower()}")
                overrides = [word for one in settings for word in ("--set", one)]
                done[concurrent] = run_iterations(root, ["--recipe", str(GRPO_ALONE), *overrides])
                if not concurrent:
                    graph += [one.graph for one in iteration_seconds(RunDirectory.open(root))]
            pairs.append((done[True], done[False]))
    computed = median(ours.cpu / other.cpu for ours, other in pairs)
    return [
        of_pairs(
            "concurrent evolution: quickstart, 5 steps",
            f"{iterations} iterations, wall seconds per iteration, exploration beside training / after it",
            [Pair(ours.seconds / iterations, other.seconds / iterations) for ours, other in pairs],
            "s",
            note=f"ratio of computing time {computed:.3f}; the graph took {median(graph):.1f} s of an iteration; "
            f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}",
        )
    ]
