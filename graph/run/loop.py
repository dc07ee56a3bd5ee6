"""The loop of a run: every stage of every iteration in order; a stage whose output exists is skipped."""

from __future__ import annotations

from collections.abc import AsyncIterator

from agents.spending import BudgetReached, Ledger
from environments.base import InputError
from graph.report.summary import Summary, summarise
from graph.run.stages import Run, evolve, make_tasks, score_after, score_before, train
from memory.run import read_json, write_json
from memory.tasks import load_tasks, tasks_at


async def iterate(run: Run) -> AsyncIterator[Summary]:
    """Yield the summary of each iteration once it exists, those of an earlier process at once.

    A new run that ends with a user's mistake before its first round is removed, so that the corrected command can be
    repeated; the ledger of costs stays. A spent budget of the chat roles ends the run after that iteration (before the
    first one, if D_0 spent it), with a line on stderr; with a higher one it resumes there. Raises InputError for a
    mistake and for damaged records, ChildFailure when a round or an evaluation failed.
    """
    last = None
    try:
        async for summary in _iterations(run):
            last = summary
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
    try:
        await make_tasks(run)
        await train_iteration(run, 0)
    except InputError:
        if not run.resumed:
            run.directory.unmake()
            if (paid := run.directory.spending_path).exists():
                run.progress.say(f"{paid} is kept: what was paid counts at the next start in this folder")
        raise
    for iteration in range(run.settings.iterations):
        path = run.directory.iteration(iteration).summary
        if not path.exists():
            await train_iteration(run, iteration)
            await score_after(run, iteration)
            await end_iteration(run, iteration)
            for words in read_json(path, Summary).sentences:
                run.progress.say(f"iteration {iteration}: {words}")
        yield read_json(path, Summary)


def check_tasks(run: Run) -> None:
    """Read tasks.jsonl before anything is built on it. Raises InputError for a corrupt line and for missing lines.

    The summaries of finished iterations hold the number of tasks in D_0, and those that each admitted.
    """
    tasks = load_tasks(run.directory)
    left = None
    for iteration in range(run.settings.iterations):
        path = run.directory.iteration(iteration).summary
        if not path.exists():
            break
        summary = read_json(path, Summary)
        left = (summary.tasks if left is None else left) + summary.admitted
        if (there := len(tasks_at(tasks, iteration + 1))) != left:
            file = run.directory.tasks_path
            raise InputError(f"{file} holds {there} tasks of iteration {iteration + 1}, not {left}: restore it")


async def train_iteration(run: Run, iteration: int) -> None:
    """Score the policy that an iteration begins with, and train its round.

    Raises BudgetReached where a budget of the chat roles is spent before the round begins.
    """
    if not _has_begun(run, iteration):
        _check_budget(run)
    await score_before(run, iteration)
    await train(run, iteration)


async def end_iteration(run: Run, iteration: int) -> None:
    await evolve(run, iteration)
    write_json(run.directory.iteration(iteration).summary, summarise(run.directory, run.settings, iteration))


def _has_begun(run: Run, iteration: int) -> bool:
    """Return whether the round of an iteration was begun, so that the budget was not spent then."""
    folder = run.directory.iteration(iteration)
    return folder.round.exists() or folder.training_log.exists()


def _check_budget(run: Run) -> None:
    Ledger(run.directory.spending_path, run.settings.roles.budget).check()
