"""The loop of a run: every stage of every iteration in order, each skipped when its output is there."""

from __future__ import annotations

from collections.abc import AsyncIterator

from agents.spending import BudgetReached, Ledger
from environments.base import InputError
from graph.report.summary import Summary, summarise
from graph.run.stages import Run, evolve, make_tasks, score_after, score_before, train
from memory.jsonl import check_end
from memory.run import read_json, write_json
from memory.tasks import load_tasks, tasks_at


async def iterate(run: Run) -> AsyncIterator[Summary]:
    """The summary of each iteration, from the first, as soon as it is there; those of an earlier process at once.

    A new run that ends with a user's mistake before its first round is unmade, so that the command can be repeated
    with the mistake put right; the ledger of what was paid stays. Raises InputError for that and for damaged records,
    ChildFailure when a round or an evaluation failed.

    A budget of the chat roles that is spent ends the run after the iteration in which that happened (or before the
    first, when it happened in making D_0), with a line that says so: no round is trained whose weaknesses nobody could
    read. With the budget raised, the run goes on where it stopped.
    """
    last = None
    try:
        async for summary in _iterations(run):
            last = summary
            for words in summary.warnings:
                run.progress.say(f"iteration {summary.iteration}: {words}")
            yield summary
    except BudgetReached as reached:
        when = "before the first iteration" if last is None else f"after iteration {last.iteration}"
        key = Ledger(run.directory.spending_path, run.settings.roles.budget).reached()
        run.progress.say(f"{run.directory.root}: stopped {when}: {reached} --set {key}=MORE")
    else:
        if last is not None and last.stopped:
            run.progress.say(f"{run.directory.root}: {last.stopped} is spent: a further iteration needs more of it")


async def _iterations(run: Run) -> AsyncIterator[Summary]:
    """Raises what ``iterate`` raises, and BudgetReached before a stage that a spent budget forbids."""
    if run.resumed:
        check_tasks(run)
        check_ends(run)
    try:
        await make_tasks(run)
        await _train(run, 0)
    except InputError:
        if not run.resumed:
            run.directory.unmake()
            if (paid := run.directory.spending_path).exists():
                run.progress.say(f"{paid} is kept: what was paid counts at the next start in this folder")
        raise
    for iteration in range(run.settings.iterations):
        path = run.directory.iteration(iteration).summary
        if not path.exists():
            await _train(run, iteration)
            await score_after(run, iteration)
            await evolve(run, iteration)
            write_json(path, summarise(run.directory, run.settings, iteration))
        yield read_json(path, Summary)


def check_ends(run: Run) -> None:
    """Look at the ends of the records of finished iterations. Raises InputError for half a line.

    Those of an unfinished one may have one, of a killed writer: its stages cut or replace them.
    """
    for iteration in range(run.settings.iterations):
        folder = run.directory.iteration(iteration)
        if folder.summary.exists():
            for path in sorted(folder.root.glob("*.jsonl")):
                check_end(path)


def check_tasks(run: Run) -> None:
    """Read tasks.jsonl before anything is built on it. Raises InputError for a corrupt line and for missing lines.

    How many tasks the newest finished iteration left behind stands in its summary.
    """
    tasks = load_tasks(run.directory)
    for iteration in reversed(range(run.settings.iterations)):
        path = run.directory.iteration(iteration).summary
        if path.exists():
            summary = read_json(path, Summary)
            there, left = len(tasks_at(tasks, iteration + 1)), summary.tasks + summary.admitted
            if there != left:
                file = run.directory.tasks_path
                raise InputError(f"{file} holds {there} tasks of iteration {iteration + 1}, not {left}: restore it")
            return


async def _train(run: Run, iteration: int) -> None:
    if not run.directory.iteration(iteration).round.exists():
        Ledger(run.directory.spending_path, run.settings.roles.budget).check()
    await score_before(run, iteration)
    await train(run, iteration)
