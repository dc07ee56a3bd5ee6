"""Measures evolution's share of an iteration: seconds of the graph over those of rollouts, optimisation and graph."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from pydantic import BaseModel

from benchmarks.measurement import Measurement, Pair, of_pairs
from benchmarks.runs import iteration_seconds, run_iterations
from environments.checkout import GRPO_ALONE
from memory.run import RunDirectory, read_json

__all__ = ["measure"]


class _Labels(BaseModel):
    """The part of a summary that labels its figures."""

    labels: tuple[str, ...] = ()


def measure(repeats: int, run: Path | None = None) -> Sequence[Measurement]:
    """Measure the share in each iteration of ``run``, or in ``repeats`` ones of a new run of recipes/grpo-base.yaml.

    Raises InputError for a folder that is not a run or has no finished iteration.
    """
    if run is not None:
        return [_share(RunDirectory.open(run))]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        run_iterations(
            root, ["--recipe", str(GRPO_ALONE), "--iterations", str(repeats), "--set", "evaluation.set=null"]
        )
        return [_share(RunDirectory.open(root))]


def _share(run: RunDirectory) -> Measurement:
    iterations = iteration_seconds(run)
    parts = {
        name: median(getattr(one, name) for one in iterations)
        for name in ("start", "rollouts", "optimisation", "save", "graph")
    }
    summary = run.iteration(0).summary
    labels = read_json(summary, _Labels).labels if summary.exists() else ()
    seconds = ", ".join(f"{value:.1f} {name}" for name, value in parts.items())
    return of_pairs(
        "evolution's share",
        "graph / rollouts + optimisation + graph, process start apart",
        [Pair(one.graph, one.work) for one in iterations],
        "s",
        note=f"median seconds of an iteration: {seconds}; the first graph also imports its libraries; "
        + "; ".join(labels),
    )
