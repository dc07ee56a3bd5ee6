"""What `coevolve show` tells of a name: the story of a task or a weakness, a signal, a rollout, a tool, the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from itertools import chain as joined
from statistics import fmean

from environments.base import TurnOutcome
from graph.report.digest import calls_words, counts_words, number_words, one_line, task_words
from graph.report.lineage import History, Rollout
from graph.report.mistakes import first_story
from graph.report.story import (
    LISTED,
    LONG,
    SHORT,
    WRONG,
    Chapter,
    Row,
    chain_rows,
    context_story,
    result_row,
    rollout_words,
    share_words,
    signal_rows,
    task_story,
    written,
)
from memory.records import Signal, Task, TrajectoryTurn

NEWEST = 3
"""Tasks of an iteration in the list of what can be shown."""


def story_of(history: History, name: str, *, full: bool = False) -> list[Chapter]:
    """Return the story of the record with the id ``name``, or of the tool called so; ``full`` keeps observations whole.

    Raises KeyError for a name that is neither, and InputError for a damaged trajectory.
    """
    if name in history.tasks:
        return task_story(history, history.tasks[name])
    if name in history.chains:
        return context_story(history, history.chains[name])
    if name in history.signals:
        return list(_signal(history, history.signals[name]))
    if name in history.rollouts:
        return list(_rollout(history, history.rollouts[name], full))
    for chain in history.chains.values():
        if any(one.draft.id == name for one in chain.outcomes):
            return context_story(history, chain)
    if name in tools_of(history):
        return list(_tool(history, name))
    raise KeyError(name)


def tools_of(history: History) -> list[str]:
    """Return the tools of the run's tasks, sorted."""
    return sorted({tool for task in history.tasks.values() for tool in task.tools})


def run_story(history: History) -> list[Chapter]:
    """Return what can be shown of a run: the newest admitted tasks of each iteration, and its tools."""
    given = sum(task.admitted_at is None for task in history.tasks.values())
    head = (
        Row("tasks", f"{given} at the start, {len(history.tasks) - given} admitted"),
        Row("rollouts", f"{len(history.rollouts)} in {number_words(len(history.iterations), 'iteration')}"),
        Row("contexts", f"{len(history.chains)} weaknesses, {len(history.signals)} signals"),
    )
    steps = [Chapter("run", str(history.run.root), "", head)]
    if story := first_story(history):
        about = "it was rolled out, and its weak task again"
        steps.append(Chapter("begin", "with this task", about, (_listed_task(history, story.task),)))
    for number in reversed(history.iterations):
        admitted = [task for task in history.tasks.values() if task.admitted_at == number]
        groups = history.groups_in(number)
        flat = [result for group in groups for result in group.results]
        silent = sum(not group.carries_signal for group in groups)
        words = f"{share_words(fmean(flat), len(flat))} rollouts succeed" if flat else "no rollouts yet"
        if groups:
            words += f"; {silent / len(groups):.0%} of {len(groups)} groups carry no reward signal"
        newest = f", of these the newest {NEWEST}" if len(admitted) > NEWEST else ""
        rows = [Row("success", words), Row("admitted", number_words(len(admitted), "task") + newest)]
        rows += [_listed_task(history, task) for task in admitted[-NEWEST:]]
        steps.append(Chapter("iteration", str(number), "", tuple(rows)))
    tools = [tool for tool, _ in Counter(chain.context.tool for chain in history.chains.values()).most_common() if tool]
    if tools:
        named = one_line(", ".join(tools[:LISTED]), LONG)
        steps.append(Chapter("tools", "with the most weaknesses", "", (Row("", named),)))
    return [
        *steps,
        Chapter("coevolve show NAME follows a task, context, signal, rollout or tool; ids may be short"),
    ]


def _signal(history: History, signal: Signal) -> Iterator[Chapter]:
    yield Chapter("signal", signal.id, f"iteration {signal.iteration}", tuple(signal_rows(history, signal)))
    chains = history.chains_of_signal(signal.id)
    if not chains:
        left_out = "not reflected on: its task has another signal of this kind, or the iteration had contexts enough"
        yield Chapter("contexts", "none", "", (Row("", left_out, "quiet"),))
    for chain in chains:
        yield from context_story(history, chain)


def _rollout(history: History, rollout: Rollout, full: bool) -> Iterator[Chapter]:
    trajectory, task = history.trajectory(rollout.id), history.tasks.get(rollout.task_id)
    rows = [Row("task", rollout.task_id)]
    if task is not None:
        rows.append(Row("", task_words(task, LONG)))
    group = history.group_of(rollout)
    if group is not None:
        rows.append(Row("group", groups=(group,), marked=rollout.id))
    yield Chapter("rollout", rollout.id, rollout_words(rollout), (*rows, result_row(trajectory, rollout)))
    chains = [one for one in history.chains.values() if one.context.trajectory_id == rollout.id]
    marks = {one.context.where for one in chains if one.context.cause is not None}
    checks = () if trajectory.outcome is None else trajectory.outcome.turns
    for index, turn in enumerate(trajectory.turns):
        found = checks[index] if index < len(checks) else None
        yield Chapter("turn", str(index + 1), "", tuple(_turn_rows(task, index, turn, found, marks, full)))
    if task is not None and len(trajectory.turns) < len(task.turns):
        missed = tuple(
            Row(f"turn {index + 1}", calls_words(task.reference[index], LONG))
            for index in range(len(trajectory.turns), len(task.turns))
        )
        yield Chapter("reference", "of the turns that were not reached", "", missed)
    other = history.sibling(rollout, success=not rollout.success)
    if other is not None:
        kind = "a successful" if other.success else "a failed"
        yield Chapter("compare", f"{kind} rollout of the same task: {other.id}, step {other.step}")
    if chains:
        yield Chapter("weaknesses", f"{len(chains)} found in it", "", tuple(chain_rows(chains)))


def _turn_rows(
    task: Task | None,
    index: int,
    turn: TrajectoryTurn,
    found: TurnOutcome | None,
    marks: Set[tuple[int, int]],
    full: bool,
) -> Iterator[Row]:
    """Yield what the user said, the reference's calls, and the agent's calls with their answers."""
    yield Row("user", turn.full_text)
    if task is not None and index < len(task.reference):
        yield Row("reference", calls_words(task.reference[index], LONG), "quiet", code=True)
    for position, step in enumerate(turn.steps):
        wrong = (index, position) in marks
        label = WRONG if wrong else "agent" if position == 0 else ""
        yield Row(label, written(step.action), "bad" if wrong else "plain", code=True)
        text = step.observation.full_text
        lines = text.splitlines()
        yield Row("", text if full else one_line(lines[0] if lines else "", SHORT), "quiet", code=True, whole=full)
        if not full and (len(lines) > 1 or len(text) > SHORT):
            yield Row("", f"({number_words(len(lines), 'line')}, {len(text)} characters)", "quiet")
    if not turn.steps:
        yield Row("agent", "no action", "quiet")
    if found is not None:
        yield _checks_row(found)
    yield Row("stopped", str(turn.stop_reason or ("end_of_turn" if turn.ended else "cut off")))


def _checks_row(found: TurnOutcome) -> Row:
    results = {name: getattr(found, name) for name in ("instances", "state", "response")}
    passed = [f"{name} {'passed' if one else 'failed'}" for name, one in results.items() if one is not None]
    said = "; ".join(filter(None, (", ".join(passed), found.checker_error))) or "none"
    failed = bool(found.checker_error) or False in results.values()
    return Row(
        "checks", f"{said}; {found.calls} calls, reference {found.reference_calls}", "bad" if failed else "plain"
    )


def _tool(history: History, tool: str) -> Iterator[Chapter]:
    tasks = history.using(tool)
    chains = [one for one in history.chains.values() if one.context.tool == tool]
    offered = sum(tool in task.tools for task in history.tasks.values())
    rows = [Row("tasks", f"{len(tasks)} whose reference calls it, of {offered} that offer it")]
    course = history.course(*(task.id for task in tasks)).by_iteration
    rows += [Row(f"iter. {number}", share_words(share, count)) for number, (share, count) in sorted(course.items())]
    if len(course) > 1:
        rows.append(Row("", "of rollouts of tasks that change: not a measure of progress", "quiet"))
    yield Chapter("tool", tool, "success of the tasks whose reference calls it", tuple(rows))
    if chains:
        causes = Counter(str(one.context.cause or one.context.kind or "unguided") for one in chains)
        admitted = len([*joined(*(one.admitted for one in chains))])
        head = (
            Row("causes", counts_words(causes.most_common()).replace("_", " ")),
            Row("admitted", f"{admitted} tasks"),
        )
        yield Chapter("contexts", f"{len(chains)} weaknesses at it", "", (*head, *chain_rows(chains)))
    if tasks:
        listed = tuple(_listed_task(history, task) for task in reversed(tasks[-LISTED:]))
        yield Chapter("tasks", f"the newest {len(listed)} of {len(tasks)}", "", listed)


def _listed_task(history: History, task: Task) -> Row:
    course = history.course(task.id).by_iteration
    success = ""
    if course:
        (first, (before, _)), (last, (after, _)) = min(course.items()), max(course.items())
        success = f"{before:.0%}" if first == last else f"{before:.0%} -> {after:.0%}"
    return Row("", f"{task.id}  {success:11}  {task_words(task, LONG)}", listed=True)
