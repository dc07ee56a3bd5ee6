"""The stories of a run's records: where a task comes from and what became of it, a rollout, a tool, the run.

They say what the report's page says (`coevolve report`), from the same join (``lineage.History``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from statistics import fmean

from rich.table import Table
from rich.text import Text

from environments.base import TurnOutcome
from graph.report.digest import (
    call_words,
    calls_words,
    counts_words,
    draft_words,
    exploration_words,
    number_words,
    one_line,
    signal_words,
    task_words,
    verification_words,
    weakness_words,
)
from graph.report.lineage import Chain, Course, Drafted, Group, History, Rollout
from graph.report.mistakes import first_story, mistake_of
from graph.report.terminal import (
    BAD,
    GOOD,
    LONG,
    NAME,
    QUIET,
    Passage,
    Row,
    bar,
    cropped,
    dots,
    foreign,
    share_words,
    title_of,
)
from memory.records import Signal, Step, Task, Trajectory, TrajectoryTurn

SHORT = 66
"""Characters of a foreign text in a list."""
LISTED = 12
"""Rows of a list, groups of an iteration."""
NEWEST = 3
"""Tasks of an iteration in the list of what can be shown."""
WRONG = "wrong >"
"""Label of the call that a reflector names as the first mistake."""


def story_of(history: History, name: str, *, full: bool = False) -> list[Passage]:
    """Return the story of the record with the id ``name``, or of the tool called so; ``full`` keeps observations whole.

    Raises KeyError for a name that is neither, and InputError for a damaged trajectory.
    """
    if name in history.tasks:
        return list(_task(history, history.tasks[name]))
    if name in history.chains:
        return list(_context(history, history.chains[name]))
    if name in history.signals:
        return list(_signal(history, history.signals[name]))
    if name in history.rollouts:
        return list(_rollout(history, history.rollouts[name], full))
    for chain in history.chains.values():
        if any(one.draft.id == name for one in chain.outcomes):
            return list(_context(history, chain))
    if name in tools_of(history):
        return list(_tool(history, name))
    raise KeyError(name)


def tools_of(history: History) -> list[str]:
    """Return the tools of the run's tasks, sorted."""
    return sorted({tool for task in history.tasks.values() for tool in task.tools})


def _admitted(number: int) -> str:
    return number_words(number, "task") + (f", of these the newest {NEWEST}" if number > NEWEST else "")


def run_story(history: History) -> list[Passage]:
    """Return what can be shown of a run: the newest admitted tasks of each iteration, and its tools."""
    given = sum(task.admitted_at is None for task in history.tasks.values())
    head = [
        Row("tasks", Text(f"{given} at the start, {len(history.tasks) - given} admitted")),
        Row("rollouts", Text(f"{len(history.rollouts)} in {number_words(len(history.iterations), 'iteration')}")),
        Row("contexts", Text(f"{len(history.chains)} weaknesses, {len(history.signals)} signals")),
    ]
    passages = [Passage(title_of("run", str(history.run.root)), head)]
    if story := first_story(history):
        begin = title_of("begin", "with this task", "it was rolled out, and its weak task again")
        passages.append(Passage(begin, [_listed_task(history, story.task)]))
    for number in reversed(history.iterations):
        admitted = [task for task in history.tasks.values() if task.admitted_at == number]
        groups = history.groups_in(number)
        flat = [result for group in groups for result in group.results]
        silent = sum(not group.carries_signal for group in groups)
        words = f"{share_words(fmean(flat), len(flat))} rollouts succeed" if flat else "no rollouts yet"
        if groups:
            words += f"; {silent / len(groups):.0%} of {len(groups)} groups carry no reward signal"
        rows = [Row("success", Text(words)), Row("admitted", Text(_admitted(len(admitted))))]
        rows += [_listed_task(history, task) for task in admitted[-NEWEST:]]
        passages.append(Passage(title_of("iteration", str(number)), rows))
    tools = [tool for tool, _ in Counter(chain.context.tool for chain in history.chains.values()).most_common() if tool]
    if tools:
        named = Text(one_line(", ".join(tools[:LISTED]), LONG))
        passages.append(Passage(title_of("tools", "with the most weaknesses"), [Row("", named)]))
    passages.append(
        Passage(
            Text("coevolve show NAME follows a task, context, signal, rollout or tool; ids may be cut short", QUIET)
        )
    )
    return passages


def _task(history: History, task: Task) -> Iterator[Passage]:
    chain = history.chain_of(task.id)
    came = "in D_0" if task.admitted_at is None else f"admitted by iteration {task.admitted_at}"
    yield Passage(title_of("task", task.id, f"{task.origin}, {came}"), [*_spec_rows(task)])
    if chain is not None:
        yield from _origin(history, chain)
        yield Passage(title_of("drafts", str(len(chain.outcomes))), [*_outcome_rows(chain.outcomes, task)])
    yield Passage(title_of("effect", "", "groups of rollouts by iteration"), [*_effect_rows(history, task, chain)])
    if weak := history.chains_at(task.id):
        yield Passage(title_of("weaknesses", f"{len(weak)} at this task"), [*_listed_chains(weak)])


def _context(history: History, chain: Chain) -> Iterator[Passage]:
    where = "D_0" if chain.iteration is None else f"iteration {chain.iteration}"
    yield Passage(title_of("context", chain.context.id, f"{where}, {weakness_words(chain.context)}"))
    yield from _origin(history, chain)
    rows = [*_outcome_rows(chain.outcomes)]
    yield Passage(title_of("drafts", str(len(chain.outcomes))), rows)
    for task in chain.admitted:
        yield Passage(title_of("effect", task.id, "groups by iteration"), [*_effect_rows(history, task, None)])
    if chain.weak is not None:
        rows = [*_parent_rows(history, chain)]
        yield Passage(title_of("effect", chain.weak.id, "the weak task itself"), rows)


def _signal(history: History, signal: Signal) -> Iterator[Passage]:
    rows = [*_signal_rows(history, signal)]
    yield Passage(title_of("signal", signal.id, f"iteration {signal.iteration}"), rows)
    chains = history.chains_of_signal(signal.id)
    if not chains:
        left_out = "not reflected on: its task has another signal of this kind, or the iteration had contexts enough"
        yield Passage(title_of("contexts", "none"), [Row("", Text(left_out, style=QUIET))])
    for chain in chains:
        yield from list(_context(history, chain))


def _rollout(history: History, rollout: Rollout, full: bool) -> Iterator[Passage]:
    trajectory, task = history.trajectory(rollout.id), history.tasks.get(rollout.task_id)
    rows = [Row("task", Text(rollout.task_id))]
    if task is not None:
        rows.append(Row("", Text(task_words(task, LONG))))
    group = next(
        (one for one in history.groups[rollout.task_id] if (one.iteration, one.step) == rollout[2:4]),
        None,
    )
    if group is not None:
        rows.append(Row("group", dots([group], rollout)))
    rows.append(Row("result", _result(trajectory, rollout)))
    place = f"iteration {rollout.iteration}, step {rollout.step}, sample {rollout.sample}"
    yield Passage(title_of("rollout", rollout.id, place), rows)
    chains = [one for one in history.chains.values() if one.context.trajectory_id == rollout.id]
    marks = {one.context.where for one in chains if one.context.cause is not None}
    for index, turn in enumerate(trajectory.turns):
        yield _turn(trajectory, task, index, turn, marks, full)
    if task is not None and len(trajectory.turns) < len(task.turns):
        missed = [
            Row(f"turn {index + 1}", Text(calls_words(task.reference[index], LONG)))
            for index in range(len(trajectory.turns), len(task.turns))
        ]
        yield Passage(title_of("reference", "of the turns that were not reached"), missed)
    other = history.sibling(rollout, success=not rollout.success)
    if other is not None:
        kind = "a successful" if other.success else "a failed"
        yield Passage(title_of("compare", f"{kind} rollout of the same task: {other.id}, step {other.step}"))
    if chains:
        yield Passage(title_of("weaknesses", f"{len(chains)} found in it"), [*_listed_chains(chains)])


def _tool(history: History, tool: str) -> Iterator[Passage]:
    tasks = history.using(tool)
    chains = [one for one in history.chains.values() if one.context.tool == tool]
    offered = sum(tool in task.tools for task in history.tasks.values())
    rows = [Row("tasks", Text(f"{len(tasks)} whose reference calls it, of {offered} that offer it"))]
    course = history.course(*(task.id for task in tasks))
    rows += [
        Row(f"iter. {number}", bar(share, count)) for number, (share, count) in sorted(course.by_iteration.items())
    ]
    if len(course.by_iteration) > 1:
        rows.append(Row("", Text("of rollouts of tasks that change: not a measure of progress", style=QUIET)))
    yield Passage(title_of("tool", tool, "success of the tasks whose reference calls it"), rows)
    if chains:
        causes = Counter(str(one.context.cause or one.context.kind or "unguided") for one in chains)
        admitted = sum(len(one.admitted) for one in chains)
        rows = [
            Row("causes", Text(counts_words(causes.most_common()).replace("_", " "))),
            Row("admitted", Text(f"{admitted} tasks")),
            *_listed_chains(chains),
        ]
        yield Passage(title_of("contexts", f"{len(chains)} weaknesses at it"), rows)
    if tasks:
        listed = [_listed_task(history, task) for task in reversed(tasks[-LISTED:])]
        yield Passage(title_of("tasks", f"the newest {len(listed)} of {len(tasks)}"), listed)


def _origin(history: History, chain: Chain) -> Iterator[Passage]:
    """Yield rollout, signal, reflection and exploration of a chain, as far as it has them."""
    context = chain.context
    if chain.rollout is not None:
        yield _failure(history, chain, chain.rollout)
    if chain.signal is not None:
        yield Passage(title_of("signal", chain.signal.id), [*_signal_rows(history, chain.signal, numbers_only=True)])
    rows = [Row("weakness", Text(weakness_words(context, LONG)))]
    texts = (
        ("how", context.how),
        ("why", context.why),
        ("summary", context.summary),
        ("unstable", context.instability_pattern),
        ("focus", "; ".join(context.focus_pattern)),
        ("aims", "; ".join(context.exploration_objectives)),
        ("avoid", "; ".join(context.do_not_repeat)),
        ("diagnosis", " ".join(filter(None, (context.label, context.turn_cause)))),
        ("explore", ", ".join(context.explore)),
    )
    rows += [Row(label, foreign(text)) for label, text in texts if text]
    if chain.deduplication is not None:
        known: str = chain.deduplication.status
        if chain.deduplication.nearest is not None:
            known += f", nearest {chain.deduplication.nearest} (cosine {chain.deduplication.cosine})"
        rows.append(Row("memory", Text(one_line(known, LONG))))
    if len(rows) > 1:  # nobody reflects where exploration has no guide
        yield Passage(title_of("reflection", context.id), rows)
    if chain.interactions or chain.failure is not None:
        about = [] if len(rows) > 1 else [Row("context", Text(f"{context.id}, {weakness_words(context)}"))]
        rows = [*about, Row("actions", Text(exploration_words(chain.interactions, LONG)))]
        if chain.failure is not None:
            words = f"{chain.failure.node}, {chain.failure.cause}: {chain.failure.detail}"
            rows.append(Row("gave up", foreign(words, BAD)))
        yield Passage(title_of("exploration", ""), rows)


def _failure(history: History, chain: Chain, rollout: Rollout) -> Passage:
    trajectory = history.trajectory(rollout.id)
    rows = [Row("task", Text(rollout.task_id))]
    if chain.weak is not None:
        rows.append(Row("", Text(task_words(chain.weak, LONG))))
        rows.append(Row("reference", Text(calls_words((call for turn in chain.weak.reference for call in turn), LONG))))
    number, position = chain.context.where
    mistake = mistake_of(history, chain)
    expected = [] if mistake is None else [Row("expected", foreign(call_words(mistake.expected), GOOD), GOOD)]
    for index, turn in enumerate(trajectory.turns):
        if len(trajectory.turns) > 1:
            rows.append(Row(f"turn {index + 1}", foreign(turn.text, QUIET)))
        marked = chain.context.cause is not None and index == number
        for at, step in enumerate(turn.steps):
            wrong = marked and at == position
            label = WRONG if wrong else "calls" if at == 0 else ""
            rows.append(Row(label, foreign(call_words(step.action), BAD if wrong else ""), BAD if wrong else ""))
            if wrong:
                rows += [Row("answer", foreign(step.observation.full_text)), *expected]
        if marked and position >= len(turn.steps):
            words = f"nothing more here: {str(chain.context.cause).replace('_', ' ')}"
            rows += [Row(WRONG, Text(words, style=BAD), BAD), *expected]
    rows = rows if len(rows) <= 2 * LISTED else [*rows[: 2 * LISTED], Row("", Text("...", style=QUIET))]
    rows.append(Row("result", _result(trajectory, rollout)))
    place = f"iteration {rollout.iteration}, step {rollout.step}, sample {rollout.sample}"
    return Passage(title_of("rollout", rollout.id, place), rows)


def _turn(
    trajectory: Trajectory,
    task: Task | None,
    index: int,
    turn: TrajectoryTurn,
    marks: Set[tuple[int, int]],
    full: bool,
) -> Passage:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    table.add_column("  agent", ratio=3, overflow="fold")
    table.add_column("reference", ratio=2, overflow="fold")
    reference = task.reference[index] if task is not None and index < len(task.reference) else ()
    cells = [*_agent_cells(turn.steps, index, marks, full)] or [Text("  no action", style=QUIET)]
    expected = [foreign(call_words(call)) for call in reference]
    for number in range(max(len(cells), len(expected))):
        table.add_row(
            cells[number] if number < len(cells) else "",
            expected[number] if number < len(expected) else "",
        )
    rows = [Row("user", foreign(turn.full_text))]
    found = trajectory.outcome.turns[index] if trajectory.outcome and index < len(trajectory.outcome.turns) else None
    ended = [Row("stopped", Text(str(turn.stop_reason or ("end_of_turn" if turn.ended else "cut off"))))]
    if found is not None:
        ended.insert(0, Row("checks", _checks(found)))
    return Passage(title_of("turn", str(index + 1)), [*rows, Row("", table), *ended])


def _agent_cells(steps: Sequence[Step], turn: int, marks: Set[tuple[int, int]], full: bool) -> Iterator[Text]:
    for position, step in enumerate(steps):
        wrong = (turn, position) in marks
        cell = Text("> " if wrong else "  ", style=BAD if wrong else "")
        cell.append_text(foreign(call_words(step.action), BAD if wrong else NAME))
        text = step.observation.full_text
        lines = text.splitlines() or [""]
        shown = lines if full else lines[:1]
        for line in shown:
            cell.append("\n  ")
            cell.append_text(Text(one_line(line, len(line) if full else SHORT), style=QUIET))
        if not full and (len(lines) > 1 or len(text) > SHORT):
            cell.append(f"\n  ({number_words(len(lines), 'line')}, {len(text)} characters)", style=QUIET)
        yield cell


def _spec_rows(task: Task) -> Iterator[Row]:
    for number, (turn, reference) in enumerate(zip(task.turns, task.reference, strict=True), start=1):
        yield Row("user" if len(task.turns) == 1 else f"user {number}", foreign(turn))
        yield Row("reference", Text(calls_words(reference, LONG)))


def _signal_rows(history: History, signal: Signal, *, numbers_only: bool = False) -> Iterator[Row]:
    yield Row("", Text(signal_words(signal, width=LONG)))
    if numbers_only:
        return
    task = history.tasks.get(signal.task_id)
    yield Row("task", Text(signal.task_id))
    if task is not None:
        yield Row("", Text(task_words(task, LONG)))
    yield Row("rollout", Text(signal.trajectory_id))
    if signal.counterpart_id:
        yield Row("beside", Text(f"{signal.counterpart_id}, of the same group with the other result"))


def _outcome_rows(outcomes: Sequence[Drafted], this: Task | None = None) -> Iterator[Row]:
    if not outcomes:
        yield Row("", Text("none", style=QUIET))
    for one in outcomes:
        accepted = one.verification is not None and one.verification.accepted
        label = "accepted" if accepted else "refused" if one.verification is not None else "draft"
        yield Row(label, Text(draft_words(one.draft, LONG)), GOOD if accepted else BAD)
        words = verification_words(one.verification, LONG)
        if one.task is not None:
            words = f"{words}: {'this task' if one.task == this else one.task.id}"
        yield Row("", Text(f"{one.draft.id}: {words}", style=QUIET))


def _effect_rows(history: History, task: Task, chain: Chain | None) -> Iterator[Row]:
    groups = history.groups.get(task.id, ())
    if not groups:
        yield Row("", Text("no rollout of it yet", style=QUIET))
    yield from _group_rows(groups, history.course(task.id))
    if chain is not None and chain.weak is not None:
        yield from _parent_rows(history, chain)


def _group_rows(groups: Sequence[Group], course: Course) -> Iterator[Row]:
    by_iteration: dict[int, list[Group]] = defaultdict(list)
    for group in groups:
        by_iteration[group.iteration].append(group)
    for number, found in sorted(by_iteration.items()):
        line = dots(found[:LISTED])
        if len(found) > LISTED:
            line.append(f"  and {len(found) - LISTED} groups more", style=QUIET)
        if number in course.by_iteration:
            line.append(f"  {share_words(*course.by_iteration[number])}")
        yield Row(f"iter. {number}", line)


def _parent_rows(history: History, chain: Chain) -> Iterator[Row]:
    """Yield the success of the weak task up to the chain's iteration, and after it."""
    if chain.weak is None or chain.iteration is None:
        return
    course = history.course(chain.weak.id)
    before, after = course.until(chain.iteration), course.after(chain.iteration)
    words = Text(chain.weak.id)
    words.append(f": {share_words(*before) if before else 'no rollout'} until iteration {chain.iteration}, ")
    style = "" if before is None or after is None or before[0] == after[0] else GOOD if after[0] > before[0] else BAD
    words.append(f"{share_words(*after)} after it" if after else "no rollout after it yet", style=style)
    yield Row("parent", words)


def _listed_chains(chains: Sequence[Chain]) -> Iterator[Row]:
    for one in chains[-LISTED:]:
        where = "D_0" if one.iteration is None else f"iteration {one.iteration}"
        admitted = f"{len(one.admitted)} admitted"
        yield cropped(f"{one.context.id}  {where}, {admitted}, {weakness_words(one.context, SHORT)}")
    if len(chains) > LISTED:
        yield Row("", Text(f"and {len(chains) - LISTED} before them", style=QUIET), listed=True)


def _listed_task(history: History, task: Task) -> Row:
    course = history.course(task.id).by_iteration
    success = ""
    if course:
        (first, (before, _)), (last, (after, _)) = min(course.items()), max(course.items())
        success = f"{before:.0%}" if first == last else f"{before:.0%} -> {after:.0%}"
    return cropped(f"{task.id}  {success:11}  {task_words(task, LONG)}")


def _result(trajectory: Trajectory, rollout: Rollout) -> Text:
    if trajectory.outcome is None:
        return foreign(f"infrastructure error: {trajectory.infrastructure_error}", BAD)
    if trajectory.outcome.success:
        words = "success"
    else:
        turn = trajectory.outcome.failed_turn
        words = f"failed: {trajectory.outcome.failure}{'' if turn is None else f' in turn {turn + 1}'}"
    return foreign(words, GOOD if trajectory.outcome.success else BAD)


def _checks(found: TurnOutcome) -> Text:
    line = Text()
    for name in ("instances", "state", "response"):
        passed: bool | None = getattr(found, name)
        if passed is not None:
            line.append(", " if line else "").append(f"{name} ", style=QUIET)
            line.append("passed" if passed else "failed", style=GOOD if passed else BAD)
    if found.checker_error:
        line.append("; " if line else "").append_text(foreign(found.checker_error, BAD))
    if not line:
        line.append("none", style=QUIET)
    return line.append(f"; {found.calls} calls, reference {found.reference_calls}", style=QUIET)
