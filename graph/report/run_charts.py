"""Draws a run for notebooks: the groups of a round, a task and its ancestors, what became of the drafts.

The page of a run has its curves (``coevolve report``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from environments.base import InputError
from graph.report.charts import Bar, Chart, DotRow, Dots, bar_chart, dot_chart
from graph.report.digest import result_of, task_words
from graph.report.lineage import Chain, Group, History
from memory.records import Task

_NAME = 40  # characters of a task beside its dots


def groups_chart(history: History, iteration: int, tasks: int = 12) -> Chart:
    """Draw the groups of a round by step: those of the first ``tasks`` tasks in the order in which they were drawn.

    Raises InputError for an iteration without rollouts.
    """
    groups = sorted((one for one in history.groups_in(iteration) if one.results), key=lambda group: group.step)
    if not groups:
        raise InputError(f"iteration {iteration} of {history.run.root} has no rollout: name another iteration")
    names = list(dict.fromkeys(group.task_id for group in groups))[:tasks]
    rows = [
        DotRow(task_name(history, name, _NAME), tuple(group_dots(group) for group in groups if group.task_id == name))
        for name in names
    ]
    return dot_chart(f"Round {iteration}: groups of the first {len(rows)} tasks", "training step", rows)


def rounds(history: History) -> dict[int, str]:
    """Return the name of each round by its first step, for ``dot_chart``."""
    first: dict[int, int] = {}
    for rollout in history.rollouts.values():
        first[rollout.iteration] = min(rollout.step, first.get(rollout.iteration, rollout.step))
    return {step: f"round {iteration}" for iteration, step in first.items()}


def ancestry(history: History, task_id: str) -> tuple[Chain, ...]:
    """Return the chains that lead to a task, the oldest first: a weakness at an added task has a chain of its own.

    Those of D_0 are left out: no weakness led to it.
    """
    found: list[Chain] = []
    while (chain := history.chain_of(task_id)) is not None and chain.iteration is not None and chain not in found:
        found.append(chain)
        task_id = chain.context.task_id
    return tuple(reversed(found))


def deepest(history: History) -> Task:
    """Return the added task with the longest ancestry, the oldest of several.

    Raises InputError for a run that added none.
    """
    added = [task for task in history.tasks.values() if task.admitted_at is not None]
    if not added:
        raise InputError(f"{history.run.root} has added no task: name a run with a finished iteration")
    return max(added, key=lambda task: len(ancestry(history, task.id)))


def generations_chart(history: History, task_id: str) -> Chart:
    """Draw the groups of a task and of the tasks that it descends from, by step; framed: rollouts that led on.

    Raises InputError where none of them was rolled out.
    """
    chains = ancestry(history, task_id)
    marked = {chain.context.task_id: chain.context.trajectory_id for chain in chains}
    rows = []
    for number, name in enumerate([*marked, task_id]):
        dots = tuple(group_dots(one, (marked.get(name, ""),)) for one in history.groups.get(name, ()) if one.results)
        rows.append(DotRow(f"generation {number}", dots))
    if not any(row.groups for row in rows):
        raise InputError(f"neither {task_id} nor a task that it descends from was rolled out: name another task")
    return dot_chart(
        "A task and its ancestors", "training step; framed: the rollouts that led on", rows, rounds(history)
    )


def refusals_chart(history: History) -> Chart:
    """Draw what became of all drafts: accepted, or the reason of the refusal. Raises InputError for a run without."""
    counts = Counter(
        result_of(one.verification)
        for chain in history.chains.values()
        for one in chain.outcomes
        if one.verification is not None
    )
    if not counts:
        raise InputError(f"{history.run.root} has no verified draft")
    bars = [Bar(name, count, marked=name != "accepted") for name, count in counts.most_common()]
    return bar_chart(f"What verification said of {counts.total()} drafts", "drafts", bars)


def group_dots(group: Group, marked: Container[str] = ()) -> Dots:
    """Return a group for ``dot_chart``, its rollouts with ids in ``marked`` framed."""
    evaluated = [one for one in group.rollouts if one.success is not None]
    return Dots(group.step, group.results, tuple(n for n, one in enumerate(evaluated) if one.id in marked))


def task_name(history: History, task_id: str, width: int) -> str:
    """Return what the user says in a task, cut to ``width``; the id of one that is not in the run."""
    task = history.tasks.get(task_id)
    return task_id if task is None else task_words(task, width)
