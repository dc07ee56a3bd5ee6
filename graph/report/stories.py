"""What `coevolve show` tells of a name: the story of a task or a weakness, a signal, a rollout, a tool, the run.

A run's end, its page and its notebook begin with the same task: ``first_story``.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from statistics import fmean
from typing import NamedTuple

from agents.evidence import error_message
from environments.base import InputError, MalformedCall, TurnOutcome
from graph.report.digest import (
    calls_words,
    counts_words,
    number_words,
    one_line,
    result_of,
    signal_words,
    spoken,
    task_words,
    written_words,
)
from graph.report.lineage import Chain, History, called
from graph.report.story import (
    LISTED,
    LONG,
    Chapter,
    Mistake,
    Row,
    action_rows,
    chain_rows,
    context_story,
    marks_of,
    mistake_of,
    result_row,
    rollout_words,
    share_words,
    task_story,
)
from memory.records import KINDS, Task, Trajectory
from training.seal.diagnosis import turn_label

NEAR = 0.8
"""Share of equal letters of a name that is proposed (ours): ids of one kind begin alike."""
NEWEST = 3
"""Tasks of an iteration in the list of what can be shown."""


class Followed(NamedTuple):
    """An admitted task, the chain that it came from, with a signal and a weak task, and the mistake behind it.

    ``mistake`` is None where no call was expected, or the task's reference does not call the expected call's tool.
    """

    task: Task
    chain: Chain
    mistake: Mistake | None


def first_story(history: History) -> Followed | None:
    """Return the first admitted task that was rolled out, and whose weak task was rolled out again after it was made.

    First come tasks about the tool of a wrong or missing call, then those about the tool that a text without a call
    should have called, then those of other signals than rare. The outcome plays no part in the choice. None without
    such a task. Raises InputError for a damaged trajectory.
    """
    found: dict[int, Followed] = {}
    for number in history.iterations:
        for task in history.tasks.values():
            chain = history.chain_of(task.id) if task.admitted_at == number else None
            if chain is None or chain.signal is None or chain.weak is None:
                continue
            later = max(history.course(chain.weak.id), default=number) > number
            if not later or not history.course(task.id):
                continue
            mistake = mistake_of(history, chain) if chain.context.tool in called(task.reference) else None
            rank = 2 + (not KINDS[chain.signal.kind].failing)
            if mistake is not None:
                rank = int(mistake.wrong is not None and isinstance(mistake.wrong.action, MalformedCall))
            story = Followed(task, chain, mistake)
            if rank == 0:
                return story
            found.setdefault(rank, story)
    return found[min(found)] if found else None


def story_of(history: History, name: str) -> list[Chapter]:
    """Return the story of the record whose id is or begins with ``name``, or of the tool called so.

    Raises InputError for a name that is neither, with a near one, for several ids, and for a damaged trajectory.
    """
    name = _found(history, name)
    if name in history.tasks:
        return task_story(history, history.tasks[name])
    if name in history.chains:
        return context_story(history, history.chains[name])
    if name in history.signals:
        if chains := history.chains_from(name):
            return [chapter for chain in chains for chapter in context_story(history, chain)]
        name = history.signals[name].trajectory_id  # no context was made of it
    if name in history.rollouts:
        return list(rollout_story(history, history.trajectory(name)))
    for chain in history.chains.values():
        if any(one.draft.id == name for one in chain.outcomes):
            return context_story(history, chain)
    return list(_tool(history, name))


def _found(history: History, name: str) -> str:
    tools, known = tools_of(history), history.starting_with(name)
    if name in tools or name in known:
        return name
    if len(known) > 1:
        some = one_line(", ".join(known[:3]))
        raise InputError(f"{one_line(name)} begins {len(known)} ids, such as {some}: give more of one")
    if known:
        return known[0]
    alike = [*tools, *history.starting_with(f"{name.partition('-')[0]}-")]
    near = difflib.get_close_matches(name, alike, n=1, cutoff=NEAR)
    mean = f": did you mean {one_line(near[0])}?" if near else ": coevolve show without a name lists some"
    raise InputError(f"{history.run.root} has no record and no tool {one_line(name)}{mean}")


def tools_of(history: History) -> list[str]:
    """Return the tools of the run's tasks, sorted."""
    return sorted({tool for task in history.tasks.values() for tool in task.tools})


def run_story(history: History) -> list[Chapter]:
    """Return what can be shown of a run: the newest admitted tasks of each iteration, and its tools."""
    given = sum(task.admitted_at is None for task in history.tasks.values())
    head: tuple[Row, ...] = (
        Row("tasks", f"{given} at the start, {len(history.tasks) - given} admitted"),
        Row("rollouts", f"{len(history.rollouts)} in {number_words(len(history.iterations), 'iteration')}"),
        Row("contexts", f"{len(history.chains)} weaknesses, {len(history.signals)} signals"),
    )
    if worded := written_words((one.draft, one.verification) for one in history.drafted):
        head = (*head, Row("wording", worded))
    steps = [Chapter("run", str(history.run.root), "", head)]
    if story := first_story(history):
        about = "it has rollouts, and its weak task has later ones"
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
    tools = Counter(chain.context.tool for chain in history.chains.values() if chain.context.tool)
    if tools:
        named = ", ".join(tool for tool, _ in tools.most_common(LISTED))
        steps.append(Chapter("tools", "with the most weaknesses", "", (Row("", named),)))
    steps.append(Chapter("coevolve show NAME follows a task, context, signal, rollout or tool; ids may be short"))
    return steps


def rollout_story(history: History, trajectory: Trajectory, *, diagnosed: bool = False) -> Iterator[Chapter]:
    """Yield the story of a rollout, turn by turn; ``diagnosed``: with SEAL's label of each turn."""
    rollout, task = history.rollouts[trajectory.id], history.tasks.get(trajectory.task_id)
    rows = [Row("task", rollout.task_id, to=("task", rollout.task_id) if task is not None else None)]
    if task is not None:
        rows.append(Row("", task_words(task, LONG)))
    rows += [Row("group", groups=(history.group_of(rollout),), marked=rollout.id), result_row(trajectory)]
    if trajectory.reward is not None:
        rows.append(Row("reward", f"{trajectory.reward:g}"))
    if trajectory.outcome is not None and trajectory.outcome.partial is not None:
        rows.append(Row("passed", f"{trajectory.outcome.partial:.0%} of the checks"))
    rows.append(Row("tokens", f"{trajectory.sampled_tokens} sampled"))
    rows += [Row("signal", signal_words(one, width=LONG)) for one in history.marks.get(rollout.id, ())]
    yield Chapter("rollout", rollout.id, rollout_words(rollout), tuple(rows))
    chains = history.chains_from(rollout.id)
    marks = marks_of(history, chains)
    checks = () if trajectory.outcome is None else trajectory.outcome.turns
    reference = () if task is None else task.reference
    for index, (turn, found, calls) in enumerate(zip_longest(trajectory.turns, checks, reference)):
        rows = [] if turn is None else [Row("user", turn.full_text)]
        if calls is not None:
            rows.append(Row("reference", calls_words(calls, LONG) or "no call", "quiet", code=True))
        rows += action_rows(index, turn, marks, whole=True)
        if found is not None:
            rows += _checks_rows(found, diagnosed and not (turn is not None and turn.played))
        if turn is not None:
            ended = turn.stop_reason or ("end_of_turn" if turn.ended else "cut off")
            rows.append(Row("stopped", spoken(ended)))
        yield Chapter(f"turn {index + 1}", rows=tuple(rows))
    beside = []
    for success, kind in ((True, "a successful"), (False, "a failed")):
        if (other := history.sibling(rollout, success=success)) is not None:
            words = f"{kind} rollout: {other.id}, {rollout_words(other)}"
            beside.append(Row("", words, to=("rollout", other.id)))
    if beside:
        yield Chapter("compare", "", "with others of the same task", tuple(beside))
    if chains:
        yield Chapter("weaknesses", f"{len(chains)} found in it", "", tuple(chain_rows(chains)))


def _checks_rows(found: TurnOutcome, diagnosed: bool) -> Iterator[Row]:
    results = {name: getattr(found, name) for name in ("instances", "state", "response")}
    passed = [f"{name} {'passed' if one else 'failed'}" for name, one in results.items() if one is not None]
    error = "the reference raised" if found.reference_error else found.checker_error
    said = "; ".join(filter(None, (", ".join(passed), error))) or "none"
    words = f"{said}; {found.calls} calls, reference {found.reference_calls}"
    words += f", {found.malformed} malformed" if found.malformed else ""
    yield Row("checks", words, "bad" if error or False in results.values() else "plain")
    if diagnosed:
        yield Row("SEAL", spoken(turn_label(found)))


def _tool(history: History, tool: str) -> Iterator[Chapter]:
    tasks, every = history.using(tool), history.chains.values()
    chains = [one for one in every if one.context.tool == tool]
    offered = sum(tool in task.tools for task in history.tasks.values())
    rows = [Row("tasks", f"{len(tasks)} whose reference calls it, of {offered} that offer it")]
    course = history.course(*(task.id for task in tasks))
    rows += [Row(f"iter. {number}", share_words(share, count)) for number, (share, count) in course.items()]
    if len(course) > 1:
        rows.append(Row("", "of rollouts of tasks that change: not a measure of progress", "quiet"))
    acts = [one for chain in every for one in chain.interactions if tool in called([one.observation.calls])]
    failed = Counter(error_message(one.observation.text) for one in acts if one.observation.failed)
    words = f"{number_words(len(acts), 'action')} of explorations, {failed.total()} failed"
    rows.append(Row("explored", words + (f", most often: {failed.most_common(1)[0][0]}" if failed else "")))
    drafts = (one for chain in every for one in chain.outcomes if tool in called(one.draft.reference))
    rows.append(Row("drafts", counts_words(Counter(result_of(one.verification) for one in drafts).most_common())))
    yield Chapter("tool", tool, "success of the tasks whose reference calls it", tuple(rows))
    if chains:
        causes = Counter(spoken(one.context.cause or one.context.kind or "unguided") for one in chains)
        admitted = sum(len(one.admitted) for one in chains)
        head = (Row("causes", counts_words(causes.most_common())), Row("admitted", f"{admitted} tasks"))
        yield Chapter("contexts", f"{len(chains)} weaknesses at it", "", (*head, *chain_rows(chains)))
    if tasks:
        listed = tuple(_listed_task(history, task) for task in reversed(tasks[-LISTED:]))
        yield Chapter("tasks", f"the newest {len(listed)} of {len(tasks)}", "", listed)


def _listed_task(history: History, task: Task) -> Row:
    course = history.course(task.id)
    success = ""
    if course:
        (first, (before, _)), (last, (after, _)) = min(course.items()), max(course.items())
        success = f"{before:.0%}" if first == last else f"{before:.0%} -> {after:.0%}"
    return Row("", f"{task.id}  {success:11}  {task_words(task, LONG)}", listed=True)
