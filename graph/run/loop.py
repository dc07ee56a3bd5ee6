"""The loop of a run: every stage of every iteration in order; a stage whose output exists is skipped."""

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
    """Yield the summary of each iteration once it exists, those of an earlier process at once.

    A new run that ends with a user's mistake before its first round is removed, so that the corrected command can be
    repeated; the ledger of costs stays. Raises InputError for that and for damaged records, ChildFailure when a round
    or an evaluation failed.

    A spent budget of the chat roles ends the run after that iteration (before the first one, if D_0 spent it), with a
    line on stderr: a round whose weaknesses no role could read is not trained. With a higher budget the run resumes
    where it stopped.
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
    """Yield the summaries. Raises what ``iterate`` raises, and BudgetReached before a stage that needs a budget."""
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
    """Check the ends of the records of finished iterations. Raises InputError for half a line.

    Records of an unfinished iteration may end in one after a kill: its stages truncate or replace them.
    """
    for iteration in range(run.settings.iterations):
        folder = run.directory.iteration(iteration)
        if folder.summary.exists():
            for path in sorted(folder.root.glob("*.jsonl")):
                check_end(path)


def check_tasks(run: Run) -> None:
    """Read tasks.jsonl before anything is built on it. Raises InputError for a corrupt line and for missing lines.

    The summary of the newest finished iteration holds the number of tasks that it left.
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
