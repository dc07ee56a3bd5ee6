"""Whether a run helped: scores on held-out tasks, weak tasks that were followed beside others, weaknesses by tool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from evaluation.outcomes import TaskOutcome, paired_change
from evaluation.statistics import t_interval
from graph.report.digest import number_words, one_line
from graph.report.lineage import Chain, History
from graph.report.summary import Summary
from memory.records import KINDS
from memory.run import read_existing, read_json

Pairs = Sequence[tuple[float, float]]
"""Success of a task in an iteration and in the next one that rolled it out, in [0, 1]."""

LEAST_PAIRS = 10
"""Fewest pairs of which an interval is shown (ours): of three, one of a hundred points and more says nothing."""


def finished_iterations(history: History) -> list[Summary]:
    """Return the summaries of the iterations that are finished, in their order."""
    paths = (history.run.iteration(number).summary for number in history.iterations)
    return [read_json(path, Summary) for path in paths if path.exists()]


def did_it_help(history: History) -> str:
    """Return success on held-out tasks before the run's training and after it, with intervals, and the lookup's.

    Both are paired by task. Raises InputError for a damaged record.
    """
    scored = [one for one in history.iterations if history.run.iteration(one).evaluation_after.exists()]
    if not scored:
        return "No iteration was scored on held-out tasks, so that the run does not say whether training helped."
    first, last = history.run.iteration(scored[0]), history.run.iteration(scored[-1])
    before, after, lookup = (
        read_existing(path, TaskOutcome)
        for path in (first.evaluation_before_outcomes, last.evaluation_after_outcomes, last.lookup_outcomes)
    )
    change, control = paired_change(before, after), paired_change(lookup, after)
    if change is None:
        return "No held-out task was evaluated both before and after training."
    words = f"On {change.tasks} held-out tasks ({after[0].group}) success went from {change.before:.1%} to "
    words += f"{change.after:.1%}: {change.words()}."
    if change.interval is not None and change.interval[0] <= 0 <= change.interval[1]:
        words += " The interval holds zero: this run alone does not show that training helped."
    if control is not None:
        words += f" A lookup over the training tasks, without a model, solves {control.before:.1%}: "
        words += f"the policy minus the lookup is {control.words()}."
    return words


def weak_tasks(history: History) -> str:
    """Return the success of the tasks that a failing kind of signal marked, in that iteration and the next with them.

    Those of which new tasks were made come beside those of which none was: a weak task was chosen because it failed, so
    that it rises by regression to the mean alone, and only the difference of the two is evidence for the new tasks.
    """
    followed = {(chain.context.task_id, chain.iteration) for chain in history.chains.values() if chain.admitted}
    marked = {(one.task_id, one.iteration) for one in history.signals.values() if KINDS[one.kind].failing}
    pairs: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for task_id, number in sorted(marked):
        if pair := _changes(history, task_id).get(number):
            pairs[(task_id, number) in followed].append(pair)
    return (
        f"Weak tasks of which new tasks were made: {went(pairs[True])}; weak tasks of which none was made: "
        f"{went(pairs[False])}. Both rise by regression to the mean alone: compare the two, not one of them with zero."
    )


def _changes(history: History, task_id: str) -> dict[int, tuple[float, float]]:
    """Return, by iteration, a task's success in it and in the next one with rollouts of the task."""
    course = history.course(task_id).items()
    return {first: (before, after) for (first, (before, _)), (_, (after, _)) in pairwise(course)}


def went(pairs: Pairs) -> str:
    """Return ``41% to 60% (+19 points, 95 %: 10 to 28; 23 pairs)``: means, and Student's t with pairs independent.

    No interval comes of fewer pairs than ``LEAST_PAIRS``, and none is wider than rates can differ.
    """
    if not pairs:
        return "no pair yet"
    before, after = (fmean(shares) for shares in zip(*pairs, strict=True))
    interval = t_interval([after - before for before, after in pairs]) if len(pairs) >= LEAST_PAIRS else None
    spread = "" if interval is None else f", 95 %: {100 * max(-1, interval[0]):.0f} to {100 * min(1, interval[1]):.0f}"
    change = f"{100 * (after - before):+.0f} points{spread}"
    return f"{before:.0%} to {after:.0%} ({change}; {number_words(len(pairs), 'pair')})"


class ToolCell(NamedTuple):
    """A tool in one iteration: its weaknesses, the tasks made of them, and the weak tasks that were rolled out again.

    Pairs are the success of such a task in the iteration and in the next one that rolled it out.
    """

    weak: int
    tasks: int
    pairs: Pairs

    @property
    def made(self) -> str:
        return f"{self.weak} weak, {number_words(self.tasks, 'task')}"

    @property
    def success(self) -> str:
        """The mean success before and after, in words."""
        if not self.pairs:
            return "not rolled out again"
        return "{:.0%} \u2192 {:.0%} of {}".format(*map(fmean, zip(*self.pairs, strict=True)), len(self.pairs))

    @property
    def tone(self) -> str:
        """Whether success rose (``good``) or fell (``bad``)."""
        change = sum(after - before for before, after in self.pairs)
        return "good" if change > 0 else "bad" if change < 0 else ""


def tool_map(history: History) -> list[tuple[str, dict[int, ToolCell]]]:
    """Return each tool with a weakness, most first, with a cell for each iteration that found one at it."""
    found: dict[str, dict[int, list[Chain]]] = defaultdict(lambda: defaultdict(list))
    for chain in history.chains.values():
        if chain.context.tool and chain.iteration is not None:
            found[one_line(chain.context.tool)][chain.iteration].append(chain)
    cells: dict[str, dict[int, ToolCell]] = defaultdict(dict)
    for tool, numbers in found.items():
        for number, chains in sorted(numbers.items()):
            tasks = sorted({chain.context.task_id for chain in chains})
            pairs = [pair for task_id in tasks if (pair := _changes(history, task_id).get(number))]
            cells[tool][number] = ToolCell(len(chains), sum(len(chain.admitted) for chain in chains), pairs)
    return sorted(cells.items(), key=lambda one: (-sum(cell.weak for cell in one[1].values()), one[0]))
