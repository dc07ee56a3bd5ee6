"""Whether a run helped: scores on held-out tasks, success of weak tasks beside controls, weaknesses by tool."""

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
from graph.report.tables import Table, table
from memory.records import SignalKind
from memory.run import read_existing, read_json

EFFECT_ROWS = (
    ("followed", "weak (marked by another signal than rare), and new tasks were made of it"),
    ("weak", "weak, and no new task was made of it"),
    ("rare", "a rare combination of calls alone"),
    ("none", "without any signal: the simplest control"),
)


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


class Effect(NamedTuple):
    """Mean success of tasks in one iteration and in the next one that rolled them out, in [0, 1].

    ``pairs``: a task and such two iterations. ``half`` is half of a 95 % interval of the mean change (Student's t,
    pairs taken as independent); None for a single pair.
    """

    pairs: int
    before: float | None = None
    after: float | None = None
    change: float | None = None
    half: float | None = None


def effect(history: History) -> dict[str, Effect]:
    """Return the success of tasks before and after by what marked them, the keys of ``EFFECT_ROWS``.

    A weak task was chosen because it failed, so that it rises by regression to the mean alone: only the difference to
    tasks of the same weakness is evidence for the new tasks.
    """
    followed = {(chain.context.task_id, chain.iteration) for chain in history.chains.values() if chain.admitted}
    marked: dict[tuple[str, int], set[SignalKind]] = defaultdict(set)
    for one in history.signals.values():
        marked[one.task_id, one.iteration].add(one.kind)
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in EFFECT_ROWS}
    for task_id in history.groups:
        course = sorted(history.course(task_id).by_iteration.items())
        for (first, (before, _)), (_, (after, _)) in pairwise(course):
            kinds = marked.get((task_id, first), set())
            if kinds - {SignalKind.RARE}:
                name = "followed" if (task_id, first) in followed else "weak"
            else:
                name = "rare" if kinds else "none"
            pairs[name].append((before, after))
    return {name: _effect(found) for name, found in pairs.items()}


def _effect(pairs: Sequence[tuple[float, float]]) -> Effect:
    if not pairs:
        return Effect(0)
    before, after = (fmean(shares) for shares in zip(*pairs, strict=True))
    interval = t_interval([after - before for before, after in pairs])
    return Effect(len(pairs), before, after, after - before, interval and (interval[1] - interval[0]) / 2)


def effect_table(history: History) -> Table:
    """Show ``effect``: pairs of a task and two iterations, mean success, mean change, half its interval."""
    found = effect(history)
    rows = [
        (words, found[name].pairs, *("" if cell is None else f"{cell:.2f}" for cell in found[name][1:]))
        for name, words in EFFECT_ROWS
    ]
    return table(("tasks", "pairs", "before", "after", "change", "+- (95 %)"), rows)


class ToolCell(NamedTuple):
    """A tool in one iteration: its weaknesses, the tasks made of them, and the weak tasks' success.

    ``pairs`` are the weak tasks that a later iteration rolled out, ``before`` their mean success in the iteration,
    ``after`` that in the next such one; None without a pair.
    """

    weak: int
    tasks: int
    pairs: int
    before: float | None
    after: float | None

    @property
    def made(self) -> str:
        return f"{self.weak} weak, {number_words(self.tasks, 'task')}"

    @property
    def success(self) -> str:
        """The success in words."""
        if self.before is None or self.after is None:
            return "not rolled out again"
        return f"{self.before:.0%} \u2192 {self.after:.0%} of {self.pairs}"

    @property
    def tone(self) -> str:
        """Whether success rose (``good``) or fell (``bad``)."""
        if self.before is None or self.after is None or self.before == self.after:
            return ""
        return "good" if self.after > self.before else "bad"


def tool_map(history: History) -> list[tuple[str, dict[int, ToolCell]]]:
    """Return each tool with a weakness, most first, with a cell for each iteration that found one at it."""
    found: dict[str, dict[int, list[Chain]]] = defaultdict(lambda: defaultdict(list))
    for chain in history.chains.values():
        if chain.context.tool and chain.iteration is not None:
            found[one_line(chain.context.tool)][chain.iteration].append(chain)
    weaknesses = {tool: sum(map(len, numbers.values())) for tool, numbers in found.items()}
    return [
        (tool, {number: _cell(history, number, chains) for number, chains in sorted(found[tool].items())})
        for tool in sorted(found, key=lambda tool: (-weaknesses[tool], tool))
    ]


def _cell(history: History, number: int, chains: Sequence[Chain]) -> ToolCell:
    pairs = []
    for task_id in sorted({chain.context.task_id for chain in chains}):
        course = history.course(task_id).by_iteration
        later = min((one for one in course if one > number), default=None)
        if number in course and later is not None:
            pairs.append((course[number][0], course[later][0]))
    before, after = (fmean(shares) for shares in zip(*pairs, strict=True)) if pairs else (None, None)
    return ToolCell(len(chains), sum(len(chain.admitted) for chain in chains), len(pairs), before, after)


def new_tasks(history: History) -> str:
    """Return what became of the new tasks in one sentence, "" without one."""
    added = [task for task in history.tasks.values() if task.admitted_at is not None]
    courses = [sorted(course.items()) for task in added if (course := history.course(task.id).by_iteration)]
    twice = [(course[0][1][0], course[-1][1][0]) for course in courses if len(course) > 1]
    words = f"Of {number_words(len(added), 'new task')}, {len(courses)} were rolled out." if added else ""
    if twice:
        first, last = (fmean(shares) for shares in zip(*twice, strict=True))
        words += f" The {len(twice)} that were in two iterations or more went from {first:.0%} in their first to "
        words += f"{last:.0%} in their last."
    return words
