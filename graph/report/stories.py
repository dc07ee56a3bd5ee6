"""What `coevolve show` tells of a name: the story of a task or a weakness, a signal, a rollout, a tool, the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain as joined
from itertools import zip_longest
from statistics import fmean

from agents.evidence import error_message
from environments.base import ToolCall, TurnOutcome
from graph.report.digest import (
    calls_words,
    counts_words,
    number_words,
    one_line,
    result_of,
    signal_words,
    spoken,
    task_words,
)
from graph.report.lineage import History
from graph.report.mistakes import called, first_story
from graph.report.story import (
    LISTED,
    LONG,
    WRONG,
    Chapter,
    Row,
    chain_rows,
    context_story,
    result_row,
    rollout_words,
    share_words,
    task_story,
    written,
)
from memory.records import Task, Trajectory, TrajectoryTurn
from training.seal.diagnosis import turn_label

NEWEST = 3
"""Tasks of an iteration in the list of what can be shown."""


def story_of(history: History, name: str) -> list[Chapter]:
    """Return the story of the record with the id ``name``, or of the tool called so.

    Raises KeyError for a name that is neither, and InputError for a damaged trajectory.
    """
    if name in history.tasks:
        return task_story(history, history.tasks[name])
    if name in history.chains:
        return context_story(history, history.chains[name])
    if name in history.signals:
        chains = history.chains_from(name)
        if chains:
            return [chapter for chain in chains for chapter in context_story(history, chain)]
        name = history.signals[name].trajectory_id  # no context was made of it
    if name in history.rollouts:
        return list(rollout_story(history, history.trajectory(name)))
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


def rollout_story(history: History, trajectory: Trajectory, *, diagnosed: bool = False) -> Iterator[Chapter]:
    """Yield the story of a rollout, turn by turn; ``diagnosed``: with SEAL's label of each turn."""
    rollout, task = history.rollouts[trajectory.id], history.tasks.get(trajectory.task_id)
    rows = [Row("task", rollout.task_id, to=("task", rollout.task_id) if task is not None else None)]
    if task is not None:
        rows.append(Row("", task_words(task, LONG)))
    group = history.group_of(rollout)
    if group is not None:
        rows.append(Row("group", groups=(group,), marked=rollout.id))
    rows += [result_row(trajectory, rollout), *_figure_rows(trajectory)]
    rows += [Row("signal", signal_words(one, width=LONG)) for one in history.marks.get(rollout.id, ())]
    yield Chapter("rollout", rollout.id, rollout_words(rollout), tuple(rows))
    chains = history.chains_from(rollout.id)
    marks = {one.context.where: spoken(str(one.context.cause)) for one in chains if one.context.cause is not None}
    checks = () if trajectory.outcome is None else trajectory.outcome.turns
    reference = () if task is None else task.reference
    for index, (turn, found, calls) in enumerate(zip_longest(trajectory.turns, checks, reference)):
        yield Chapter(f"turn {index + 1}", rows=tuple(_turn_rows(index, turn, found, calls, marks, diagnosed)))
    beside = []
    for success in (True, False):
        other = history.sibling(rollout, success=success)
        if other is not None:
            words = f"{'a successful' if success else 'a failed'} rollout: {other.id}, {rollout_words(other)}"
            beside.append(Row("", words, to=("rollout", other.id)))
    if beside:
        yield Chapter("compare", "", "with others of the same task", tuple(beside))
    if chains:
        yield Chapter("weaknesses", f"{len(chains)} found in it", "", tuple(chain_rows(chains)))


def _figure_rows(trajectory: Trajectory) -> Iterator[Row]:
    if trajectory.reward is not None:
        yield Row("reward", f"{trajectory.reward:g}")
    if trajectory.outcome is not None and trajectory.outcome.partial is not None:
        yield Row("passed", f"{trajectory.outcome.partial:.0%} of the checks")
    yield Row("tokens", f"{trajectory.sampled_tokens} sampled")


def _turn_rows(
    index: int,
    turn: TrajectoryTurn | None,
    found: TurnOutcome | None,
    reference: Sequence[ToolCall] | None,
    marks: Mapping[tuple[int, int], str],
    diagnosed: bool,
) -> Iterator[Row]:
    if turn is not None:
        yield Row("user", turn.full_text)
    if reference is not None:
        yield Row("reference", calls_words(reference, LONG) or "no call", "quiet", code=True)
    for position, step in enumerate(() if turn is None else turn.steps):
        mark = marks.get((index, position))
        label = ("given" if turn is not None and turn.played else "agent") if position == 0 else ""
        yield Row(WRONG if mark else label, written(step.action), "bad" if mark else "plain", code=True)
        if mark:
            yield Row("", mark, "bad")
        ran = () if step.observation.calls == (step.action,) else step.observation.calls
        yield from (Row("ran", written(call), "quiet", code=True) for call in ran)
        yield Row("", step.observation.full_text, "quiet", code=True, folded=True)
    if turn is None or not turn.steps:
        words = "not reached" if turn is None else "no action"
        yield Row("given" if turn is not None and turn.played else "agent", words, "quiet")
    if mark := marks.get((index, 0 if turn is None else len(turn.steps))):
        yield Row(WRONG, f"nothing more here: {mark}", "bad")
    if found is not None:
        yield _checks_row(found)
        if diagnosed and not (turn is not None and turn.played):
            yield Row("SEAL", spoken(str(turn_label(found))))
    if turn is not None:
        yield Row("stopped", spoken(str(turn.stop_reason or ("end_of_turn" if turn.ended else "cut off"))))


def _checks_row(found: TurnOutcome) -> Row:
    results = {name: getattr(found, name) for name in ("instances", "state", "response")}
    passed = [f"{name} {'passed' if one else 'failed'}" for name, one in results.items() if one is not None]
    error = "the reference raised" if found.reference_error else found.checker_error
    said = "; ".join(filter(None, (", ".join(passed), error))) or "none"
    words = f"{said}; {found.calls} calls, reference {found.reference_calls}"
    words += f", {found.malformed} malformed" if found.malformed else ""
    return Row("checks", words, "bad" if error or False in results.values() else "plain")


def _tool(history: History, tool: str) -> Iterator[Chapter]:
    tasks = history.using(tool)
    chains = [one for one in history.chains.values() if one.context.tool == tool]
    offered = sum(tool in task.tools for task in history.tasks.values())
    rows = [Row("tasks", f"{len(tasks)} whose reference calls it, of {offered} that offer it")]
    course = history.course(*(task.id for task in tasks))
    rows += [Row(f"iter. {number}", share_words(share, count)) for number, (share, count) in course.items()]
    if len(course) > 1:
        rows.append(Row("", "of rollouts of tasks that change: not a measure of progress", "quiet"))
    rows += _tried_rows(history, tool)
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


def _tried_rows(history: History, tool: str) -> Iterator[Row]:
    every = history.chains.values()
    acts = [one for chain in every for one in chain.interactions if tool in called([one.observation.calls])]
    failed = [error_message(one.observation.text) for one in acts if one.observation.failed]
    words = f"{number_words(len(acts), 'action')} of explorations, {len(failed)} failed"
    yield Row("explored", words + (f", most often: {Counter(failed).most_common(1)[0][0]}" if failed else ""))
    drafts = (one for chain in every for one in chain.outcomes if tool in called(one.draft.reference))
    yield Row("drafts", counts_words(Counter(result_of(one.verification) for one in drafts).most_common()))


def _listed_task(history: History, task: Task) -> Row:
    course = history.course(task.id)
    success = ""
    if course:
        (first, (before, _)), (last, (after, _)) = min(course.items()), max(course.items())
        success = f"{before:.0%}" if first == last else f"{before:.0%} -> {after:.0%}"
    return Row("", f"{task.id}  {success:11}  {task_words(task, LONG)}", listed=True)
