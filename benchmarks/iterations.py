"""Measures a whole iteration with 100, 1,000 and 10,000 tasks in D_t: the real command, doing the same work in each.

The work is the same because the tasks beyond the first hundred are counted as evolved, and the share of evolved draws
is 0: the same tasks are drawn, and the records of the iterations, which are compared, are equal. Only what an iteration
does with the whole set can grow: reading it, drawing from it, and the fingerprints that drafts are held against.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measurement import Measurement, Pair, of_pairs
from benchmarks.runs import Command, IterationSeconds, iteration_seconds, run_iterations
from environments.checkout import GRPO_ALONE
from graph.recipe import load_recipe
from memory.jsonl import record_id
from memory.records import Task
from memory.run import IterationDirectory, RunDirectory, read_jsonl
from memory.tasks import admit

__all__ = ["measure"]

SIZES = (100, 1_000, 10_000)
GROWTH = 1.1  # times the iteration of the smallest set that one of a larger may take
STEPS = 20  # the recipe's
COMPARED = (
    IterationDirectory.trajectories,
    IterationDirectory.signals,
    IterationDirectory.drafts,
    IterationDirectory.verdicts,
)


def measure(
    repeats: int, sizes: Sequence[int] = SIZES, steps: int = STEPS, options: Sequence[str] = ()
) -> Sequence[Measurement]:
    """Measure wall seconds of an iteration of recipes/grpo-base.yaml by size of the task set; ``options``: settings.

    Raises RuntimeError when two iterations did not do the same.
    """
    overrides = ["iterations=1", f"training.steps={steps}", "tasks.evolved_share=0", "evaluation.set=null", *options]
    commands: dict[int, list[Command]] = {size: [] for size in sizes}
    stages: dict[int, list[IterationSeconds]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory() as folder:
        tasks = _tasks(Path(folder), max(sizes), overrides)
        done: dict[str, list[Any]] = {}
        for repeat in range(repeats):
            for size in random.Random(repeat).sample(sizes, len(sizes)):
                root = Path(folder) / f"{size}-{repeat}"
                run = RunDirectory.create(root, load_recipe(GRPO_ALONE, overrides))
                admit(run, tasks[:size])
                commands[size].append(run_iterations(root, ["--resume"]))
                stages[size] += iteration_seconds(run)
                _expect_equal(run, done)
    return [_row(size, sizes[0], commands, stages) for size in sizes[1:]]


def _tasks(folder: Path, count: int, overrides: Sequence[str]) -> list[Task]:
    """Return the recipe's D_0 and variants of its tasks with other fingerprints, which are never drawn."""
    from graph.run.interruption import Interruption
    from graph.run.progress import Progress
    from graph.run.stages import Run, make_tasks

    settings = load_recipe(GRPO_ALONE, overrides)
    run = RunDirectory.create(folder / "first", settings)
    with Progress() as progress:
        asyncio.run(make_tasks(Run(run, settings, progress, Interruption(), resumed=False)))
    first = read_jsonl(run.tasks_path, Task)
    return [*first, *(_variant(first[number % len(first)], number) for number in range(count - len(first)))]


def _variant(task: Task, number: int) -> Task:
    name, configuration = next(iter(task.initial_state.items()))
    assert isinstance(configuration, dict)
    return task.model_copy(
        update={
            "id": record_id("variant", task.id, number),
            "origin": "evolved",
            "initial_state": {**task.initial_state, name: {**configuration, "variant": number}},
        }
    )


def _expect_equal(run: RunDirectory, done: dict[str, list[Any]]) -> None:
    """Hold what an iteration wrote, without what it measured, against what the first one wrote."""
    for name in (file.name for file in COMPARED):
        lines = (run.iteration(0) / name).read_text().splitlines()
        rows = [{key: value for key, value in json.loads(line).items() if key != "measured"} for line in lines]
        if done.setdefault(name, rows) != rows:
            raise RuntimeError(f"{run.root} wrote another {name} than the iteration before: the times do not compare")


def _row(
    size: int,
    least: int,
    commands: Mapping[int, Sequence[Command]],
    stages: Mapping[int, Sequence[IterationSeconds]],
) -> Measurement:
    pairs = [Pair(a.seconds, b.seconds) for a, b in zip(commands[size], commands[least], strict=True)]
    computed = median(a.cpu / b.cpu for a, b in zip(commands[size], commands[least], strict=True))
    parts = ", ".join(
        f"{name} {median(getattr(one, name) for one in stages[least]):.1f} to "
        f"{median(getattr(one, name) for one in stages[size]):.1f}"
        for name in ("start", "rollouts", "optimisation", "save", "graph")
    )
    return of_pairs(
        f"iterations: {size:,} tasks",
        f"one iteration, {size:,} tasks / {least:,} tasks, the same trajectories",
        pairs,
        "s",
        expected=f"ratio at most {GROWTH:g}",
        met=lambda ratio: ratio <= GROWTH,
        note=f"ratio of computing time {computed:.3f}; median seconds by stage: {parts}",
    )
