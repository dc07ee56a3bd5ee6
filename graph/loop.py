"""The loop of a run: every stage of every iteration in order, each skipped when its output is there."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

from environments.base import InputError
from graph.stages import Run, evolve, make_tasks, score_after, score_before, train
from graph.state import SEED_STAGE
from graph.summary import SUMMARY_FILE, Summary, summarise
from memory.run import RunDirectory, read_json, write_json


async def iterate(run: Run) -> AsyncIterator[Summary]:
    """The summary of each iteration, from the first, as soon as it is there; those of an earlier process at once.

    A new run that ends with a user's mistake before its first round is unmade, so that the command can be repeated
    with the mistake put right. Raises InputError for that, ChildFailure when a round or an evaluation failed.
    """
    try:
        await make_tasks(run)
        await _train(run, 0)
    except InputError:
        if not run.resumed:
            unmake(run.directory)
        raise
    for iteration in range(run.settings.iterations):
        path = run.directory.iteration(iteration) / SUMMARY_FILE
        if not path.exists():
            await _train(run, iteration)
            await score_after(run, iteration)
            await evolve(run, iteration)
            write_json(path, summarise(run.directory, run.settings, iteration))
        yield read_json(path, Summary)


async def _train(run: Run, iteration: int) -> None:
    await score_before(run, iteration)
    await train(run, iteration)


def unmake(run: RunDirectory) -> None:
    """Remove what a run that never began has left; settings.yaml first, because it is what makes a folder a run."""
    run.settings_path.unlink(missing_ok=True)
    run.tasks_path.unlink(missing_ok=True)
    shutil.rmtree(run.root / SEED_STAGE, ignore_errors=True)
    shutil.rmtree(run.iteration(0).parent, ignore_errors=True)
