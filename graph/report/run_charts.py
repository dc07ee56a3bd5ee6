"""Draws a run for people: its rounds, its graph with counts, one weakness and its tasks, the effect beside controls.

Everything is read from a ``History``. Shares come with 95 % intervals (Student's t over tasks or groups, cut at 0 and
1), because the rollouts of one group are alike and must not be counted as independent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from statistics import fmean
from typing import Any

from environments.base import InputError
from evaluation.statistics import t_interval
from graph.records import ExtractionRecord
from graph.report.charts import (
    Bar,
    BeforeAfter,
    Chart,
    Curve,
    DotRow,
    Dots,
    Mean,
    bar_chart,
    box_chart,
    change_chart,
    curve_chart,
    dot_chart,
)
from graph.report.digest import task_words
from graph.report.lineage import Chain, Group, History
from graph.report.summary import Summary
from graph.report.tables import Table, table
from memory.records import SignalKind, Task
from memory.run import read_json

__all__ = [
    "ancestry",
    "course_chart",
    "deepest",
    "effect_chart",
    "estimate",
    "finished_iterations",
    "flow_chart",
    "followable",
    "generations_chart",
    "groups_chart",
    "held_out_chart",
    "origins_chart",
    "refusals_chart",
    "rounds",
    "seconds_chart",
    "success_chart",
]

_MOST_POINTS = 12
_NAME = 40  # characters of a task beside its dots


def estimate(shares: Sequence[float]) -> Mean:
    """Return the mean of shares in [0, 1], one per task or group, with its 95 % interval; none for fewer than two.

    Raises ValueError for no share.
    """
    interval = t_interval(shares)
    cut = None if interval is None else (max(0.0, interval[0]), min(1.0, interval[1]))
    return Mean(fmean(shares), cut, len(shares))


def groups_chart(history: History, iteration: int, tasks: int = 12) -> Chart:
    """Draw the groups of a round by step: those of the first ``tasks`` tasks in the order in which they were drawn.

    Raises InputError for an iteration without rollouts.
    """
    groups = sorted(_groups(history, iteration), key=lambda group: group.step)
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


def flow_chart(history: History, iteration: int, graph: Any) -> Chart:  # noqa: ANN401 - the library's drawable graph
    """Draw the nodes of a LangGraph graph (``get_graph(xray=True)``) with what each found in an iteration.

    The node of failed branches is left out where none failed. Raises InputError for an iteration whose graph is not
    done.
    """
    folder = history.run.iteration(iteration)
    if not folder.evolution.exists():
        raise InputError(f"the graph of iteration {iteration} of {history.run.root} is not done: name another")
    found = read_json(folder.extraction, ExtractionRecord)
    chains = history.chains_in(iteration)
    new = [one for one in chains if one.deduplication is None or one.deduplication.status == "new"]
    outcomes = [outcome for one in chains for outcome in one.outcomes]
    notes = {
        "extract": f"{sum(found.signals.values())} signals",
        "reflect": f"{len(chains)} contexts",
        "deduplicate": f"{len(new)} new",
        "dispatch": f"{len(new)} branches",
        "explore": f"{sum(len(one.interactions) for one in chains)} actions",
        "abstract": f"{len(outcomes)} drafts",
        "verify": f"{sum(one.verification is not None and one.verification.accepted for one in outcomes)} accepted",
        "update": f"{sum(one.task is not None for one in outcomes)} new tasks",
    }
    failed = sum(one.failure is not None for one in chains)
    notes |= {"branch_failed": f"{failed} branches"} if failed else {}
    left_out = ("__start__", "__end__", "" if failed else "branch_failed")
    names = [_node(name) for name in graph.nodes if _node(name) not in left_out]
    boxes = {name: notes.get(name, "") for name in names}
    arrows = [(_node(edge.source), _node(edge.target)) for edge in graph.edges]
    return box_chart(f"The graph, and what flowed through it in iteration {iteration}", boxes, arrows)


def _node(name: str) -> str:
    return name.rpartition(":")[2]


def followable(history: History, iteration: int = 0) -> Chain:
    """Return a chain that can be followed: from a failed rollout to an admitted task, and into a later round.

    Forgetting comes before boundary and rare, then ids decide; what became of the tasks plays no part in the choice.
    Raises InputError where no chain of the iteration is whole.
    """
    order = list(SignalKind)
    whole = [
        chain
        for chain in history.chains_in(iteration)
        if chain.signal is not None
        and chain.rollout is not None
        and chain.rollout.success is False
        and history.course(chain.context.task_id).after(iteration)
        and any(history.course(task.id).after(iteration) for task in chain.admitted)
    ]
    if not whole:
        raise InputError(
            f"no weakness of iteration {iteration} of {history.run.root} can be followed into a later round: "
            "name a run with more iterations"
        )
    return min(whole, key=lambda one: (order.index(one.signal.kind) if one.signal else 0, one.context.id))


def course_chart(history: History, chain: Chain) -> Chart:
    """Draw the groups of the weak task, the marked rollout framed, and of the tasks that came of it, by step."""
    marked = (chain.rollout.id,) if chain.rollout is not None else ()
    weak = history.groups.get(chain.context.task_id, ())
    rows = [DotRow("weak task", tuple(group_dots(one, marked) for one in weak))]
    for number, task in enumerate(chain.admitted, start=1):
        rows.append(DotRow(f"new task {number}", tuple(group_dots(one) for one in history.groups.get(task.id, ()))))
    rows = [row for row in rows if row.groups]
    return dot_chart(
        "The weak task, and the tasks that came of it", "training step; framed: the rollout", rows, rounds(history)
    )


def effect_chart(history: History, iteration: int = 0) -> Chart:
    """Draw success before and after for the tasks that were followed up, beside two controls.

    Before: the rollouts of round ``iteration``; after: those of later rounds. The controls are tasks that had a signal
    which was not followed up, because the iteration's limit of contexts left it out, and tasks without a signal. Only
    tasks with rollouts on both sides count, each with the share of its own. Tasks with a signal failed in that round by
    definition, so they tend to do better in the next one whatever is done: the first control shows by how much. The
    note of a row is the mean change of its tasks, with an interval of its own: the tasks are the same on both sides.
    """
    marked = {one.task_id for one in history.signals.values() if one.iteration == iteration}
    followed = {one.context.task_id for one in history.chains_in(iteration) if one.signal}
    seen = {group.task_id for group in _groups(history, iteration)}
    changes = []
    for name, tasks in (
        ("followed up", followed),
        ("a signal, left out", marked - followed),
        ("no signal", seen - marked),
    ):
        courses = [history.course(task) for task in sorted(tasks)]
        pairs = [(one.by_iteration[iteration][0], after[0]) for one in courses if (after := one.after(iteration))]
        if pairs:
            first, then = (estimate(shares) for shares in zip(*pairs, strict=True))
            changes.append(BeforeAfter(name, first, then, _difference([later - before for before, later in pairs])))
    if not changes:
        raise InputError(f"no task of iteration {iteration} of {history.run.root} was rolled out in a later round")
    return change_chart("Success on the tasks of the round, before and after it", "share of rollouts", changes)


def _difference(changes: Sequence[float]) -> str:
    interval = t_interval(changes)
    return f"{fmean(changes):+.2f}" + (f" ({interval[0]:+.2f} to {interval[1]:+.2f})" if interval else "")


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


def success_chart(history: History) -> Chart:
    """Draw by step the share of rollouts that succeed, and the share of groups whose reward moves the policy.

    Where there are many steps, neighbouring ones share a point, at the last of them. Raises InputError for a run
    without rollouts.
    """
    steps: dict[int, list[Group]] = {}
    for groups in history.groups.values():
        for group in (one for one in groups if one.results):
            steps.setdefault(group.step, []).append(group)
    if not steps:
        raise InputError(f"{history.run.root} has no rollout yet")
    ordered, size = sorted(steps), -(-len(steps) // _MOST_POINTS)
    blocks = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    found = [(block[-1], [group for step in block for group in steps[step]]) for block in blocks]
    success = [(step, estimate([fmean(one.results) for one in groups])) for step, groups in found]
    mixed = [(step, estimate([float(one.carries_signal) for one in groups])) for step, groups in found]
    label = "training step" if size == 1 else f"training step; each point: {size} steps"
    curves = [Curve("success", tuple(success)), Curve("mixed groups", tuple(mixed))]
    return curve_chart("Rollouts by training step", label, "share, 95 % over groups", curves)


def origins_chart(history: History) -> Chart:
    """Draw by iteration the success on the first tasks and on those that the run added, each task counting once."""
    shares: dict[str, dict[int, list[float]]] = {"first tasks": {}, "added tasks": {}}
    for task_id in history.groups:
        task = history.tasks.get(task_id)
        name = "first tasks" if task is None or task.admitted_at is None else "added tasks"
        for iteration, (share, _) in history.course(task_id).by_iteration.items():
            shares[name].setdefault(iteration, []).append(share)
    curves = [
        Curve(name, tuple((iteration, estimate(found)) for iteration, found in sorted(by_iteration.items())))
        for name, by_iteration in shares.items()
        if by_iteration
    ]
    return curve_chart("Success on first and added tasks", "iteration", "share of rollouts, 95 % over tasks", curves)


def held_out_chart(history: History) -> Chart | Table:
    """Draw the score on held-out tasks before and after each round, or say in a table that the run takes none."""
    scores = [one.evaluation for one in finished_iterations(history)]
    points = [
        (float(number) + after, Mean(score.success, score.widest, score.n))
        for number, change in enumerate(scores)
        if change is not None
        for after, score in ((0, change.before), (1, change.after))
        if after or number == 0
    ]
    if not points:
        return table(("held-out tasks",), [("the run scores none: set evaluation.set",)])
    curve = Curve(f"n = {points[0][1].n}", tuple(points))
    return curve_chart("Success on held-out tasks", "rounds of training", "share, 95 %", [curve])


def finished_iterations(history: History) -> list[Summary]:
    """Return the summaries of the iterations that are finished, in their order."""
    paths = (history.run.iteration(number).summary for number in history.iterations)
    return [read_json(path, Summary) for path in paths if path.exists()]


def refusals_chart(history: History) -> Chart:
    """Draw what became of all drafts: accepted, or the reason of the refusal. Raises InputError for a run without."""
    counts = Counter(
        "accepted" if one.verification.accepted else one.verification.reason or "refused"
        for chain in history.chains.values()
        for one in chain.outcomes
        if one.verification is not None
    )
    if not counts:
        raise InputError(f"{history.run.root} has no verified draft")
    bars = [Bar(name, count, marked=name != "accepted") for name, count in counts.most_common()]
    return bar_chart(f"What verification said of {counts.total()} drafts", "drafts", bars)


def seconds_chart(history: History) -> Chart:
    """Draw the wall seconds of each stage of a run. Raises InputError for a run without a finished iteration."""
    counts: Counter[str] = Counter()
    for summary in finished_iterations(history):
        counts.update(summary.seconds)
    if not counts:
        raise InputError("no iteration is finished")
    bars = [Bar(name, round(seconds, 1), "s") for name, seconds in counts.items()]
    return bar_chart("Where the time of the run went", "seconds of wall-clock time", bars)


def _groups(history: History, iteration: int) -> list[Group]:
    return [one for one in history.groups_in(iteration) if one.results]


def group_dots(group: Group, marked: Container[str] = ()) -> Dots:
    """Return a group for ``dot_chart``, its rollouts with ids in ``marked`` framed."""
    evaluated = [one for one in group.rollouts if one.success is not None]
    return Dots(group.step, group.results, tuple(n for n, one in enumerate(evaluated) if one.id in marked))


def task_name(history: History, task_id: str, width: int) -> str:
    """Return what the user says in a task, cut to ``width``; the id of one that is not in the run."""
    task = history.tasks.get(task_id)
    return task_id if task is None else task_words(task, width)
