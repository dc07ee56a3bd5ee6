"""Starts runs for benchmarks with the project's own command, and reads the seconds in their records."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from environments.base import InputError, Record
from graph.records import StageSeconds
from memory.processes import run_child
from memory.run import RunDirectory, read_json
from training.grpo.record import RoundRecord

__all__ = ["Command", "IterationSeconds", "iteration_seconds", "run_iterations"]

DEADLINE = 3000.0  # seconds for one command


class Command(Record):
    """The cost of one command with its children: wall seconds, and CPU seconds on all cores."""

    seconds: float
    cpu: float


class IterationSeconds(Record):
    """Wall seconds of an iteration by stage; ``start`` is the imports and model loading of the round's process."""

    start: float
    rollouts: float
    optimisation: float
    save: float
    graph: float

    @property
    def work(self) -> float:
        """Seconds of rollouts, optimisation and graph."""
        return self.rollouts + self.optimisation + self.graph


def run_iterations(root: Path, options: Sequence[str]) -> Command:
    """Run `python -m graph.run_iteration --run ROOT OPTIONS`. Raises ChildFailure with the end of its log."""
    argv = [sys.executable, "-m", "graph.run_iteration", "--run", str(root), *options]
    before, began = _cpu(), time.perf_counter()
    asyncio.run(run_child(argv, log_path=root.with_name(f"{root.name}.log"), deadline=DEADLINE))
    return Command(seconds=time.perf_counter() - began, cpu=_cpu() - before)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def iteration_seconds(run: RunDirectory) -> list[IterationSeconds]:
    """Return the seconds of every finished iteration. Raises InputError for a run that has none."""
    found = []
    number = 0
    while run.iteration(number).evolution.exists():
        folder = run.iteration(number)
        measured = read_json(folder.round, RoundRecord).measured
        stages = read_json(folder.seconds, StageSeconds).seconds
        found.append(
            IterationSeconds(
                start=measured.load,
                rollouts=measured.rollouts,
                optimisation=measured.optimisation,
                save=measured.save,
                graph=stages["evolve"],
            )
        )
        number += 1
    if not found:
        raise InputError(f"{run.root} has no finished iteration: let python -m graph.run_iteration finish one")
    return found
