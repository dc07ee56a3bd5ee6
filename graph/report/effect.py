"""Whether a run helped: scores on held-out tasks, success of weak tasks beside controls, weaknesses by tool."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from statistics import fmean
from typing import Any

from evaluation.outcomes import TaskOutcome, paired_change
from evaluation.statistics import t_interval
from graph.report.digest import one_line
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


def effect(history: History) -> dict[str, Any]:
    """Return mean success of tasks in one iteration and in the next one that rolled them out, by what marked them.

    A pair is a task and such two iterations. ``half`` is half of a 95 % interval of the mean change (Student's t, pairs
    taken as independent); None for a single pair. A weak task was chosen because it failed, so that it rises by
    regression to the mean alone: only the difference to tasks of the same weakness is evidence for the new tasks.
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
    rows = []
    for name, words in EFFECT_ROWS:
        found = pairs[name]
        changes = [after - before for before, after in found]
        interval = t_interval(changes)
        rows.append(
            {
                "name": name,
                "words": words,
                "pairs": len(found),
                "before": fmean(before for before, _ in found) if found else None,
                "after": fmean(after for _, after in found) if found else None,
                "change": fmean(changes) if changes else None,
                "half": None if interval is None else (interval[1] - interval[0]) / 2,
            }
        )
    return {"rows": rows, "new": _new_tasks(history)}


def effect_table(history: History) -> Table:
    """Show the rows of ``effect``: pairs of a task and two iterations, mean success, mean change, half its interval."""
    cells = ("before", "after", "change", "half")
    rows = [
        (row["words"], row["pairs"], *("" if row[cell] is None else f"{row[cell]:.2f}" for cell in cells))
        for row in effect(history)["rows"]
    ]
    return table(("tasks", "pairs", "before", "after", "change", "+- (95 %)"), rows)


def tool_map(history: History) -> list[list[Any]]:
    """Return a row for each tool with a weakness, most first: its name, and a cell for each iteration with one.

    A cell is the iteration, its weaknesses, the tasks made of them, and of the weak tasks that a later iteration rolled
    out: their number, and their mean success in the iteration and in the next such one.
    """
    found: dict[str, dict[int, list[Chain]]] = defaultdict(lambda: defaultdict(list))
    for chain in history.chains.values():
        if chain.context.tool and chain.iteration is not None:
            found[one_line(chain.context.tool)][chain.iteration].append(chain)
    rows = []
    for tool, by_iteration in found.items():
        cells = []
        for number, chains in sorted(by_iteration.items()):
            pairs = []
            for task_id in sorted({chain.context.task_id for chain in chains}):
                course = history.course(task_id).by_iteration
                later = min((one for one in course if one > number), default=None)
                if number in course and later is not None:
                    pairs.append((course[number][0], course[later][0]))
            means: list[float | None] = [fmean(share) for share in zip(*pairs, strict=True)]
            means = means or [None, None]
            cells.append([number, len(chains), sum(len(chain.admitted) for chain in chains), len(pairs), *means])
        rows.append([tool, cells])
    return sorted(rows, key=lambda row: (-sum(cell[1] for cell in row[1]), row[0]))


def _new_tasks(history: History) -> dict[str, Any]:
    courses = [
        sorted(history.course(task.id).by_iteration.items())
        for task in history.tasks.values()
        if task.admitted_at is not None
    ]
    twice = [(course[0][1][0], course[-1][1][0]) for course in courses if len(course) > 1]
    return {
        "tasks": len(courses),
        "drawn": sum(1 for course in courses if course),
        "twice": len(twice),
        "first": fmean(first for first, _ in twice) if twice else None,
        "last": fmean(last for _, last in twice) if twice else None,
    }
