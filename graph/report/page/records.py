"""The records of a run as plain JSON values: rows of the table, and whole chains, tasks and rollouts for its cards.

What agents, tools and models wrote is foreign: a text is cut to a length here, and the page shows it as text only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from environments.base import ToolCall
from graph.report.digest import (
    named_weakness,
    one_line,
    result_of,
    task_words,
    weakness_words,
)
from graph.report.lineage import Chain, History, Rollout
from graph.report.stories import rollout_story
from graph.report.story import Chapter, Row, chain_steps, effect_steps, task_steps, written
from memory.records import Task, Trajectory

Json = dict[str, Any]

LONGEST_TEXT = 4000
"""Characters of a foreign text that the page holds (ours)."""


class Pool:
    """Numbers equal values, so that the start state that many tasks share is written once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: Any) -> int:  # noqa: ANN401 - any JSON value
        """Return the number of ``value``, a new one for a value that was not seen before."""
        key = repr(value)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]


def cut(text: str, length: int = LONGEST_TEXT) -> str:
    """Return ``text``, the beginning of a longer one with a line that says so."""
    if len(text) <= length:
        return text
    return f"{text[:length]}\n[cut: {length:,} of {len(text):,} characters]"


def table(history: History) -> Json:
    """Return a row for each task and each context, with the strings that they share numbered."""
    tools, reasons = Pool(), Pool()
    return {
        "tasks": [_task_row(history, task, tools) for task in history.tasks.values()],
        "contexts": [_context_row(chain, tools, reasons) for chain in history.chains.values()],
        "tools": tools.values,
        "reasons": reasons.values,
    }


def _task_row(history: History, task: Task, tools: Pool) -> list[Any]:
    """Return id, origin, iteration, text, tools, context, groups, course by iteration."""
    chain = history.chain_of(task.id)
    course = history.course(task.id).by_iteration
    return [
        task.id,
        task.origin,
        task.admitted_at,
        task_words(task),
        [tools.number(name) for name in _named(task.reference)],
        None if chain is None else chain.context.id,
        len(history.groups.get(task.id, ())),
        [[number, round(share, 4), count] for number, (share, count) in sorted(course.items())],
    ]


def _context_row(chain: Chain, tools: Pool, reasons: Pool) -> list[Any]:
    """Return id, iteration, kind, words, status, drafts, admitted, reasons, tools, task."""
    context = chain.context
    refused = [
        result_of(one.verification) for one in chain.outcomes if one.verification and not one.verification.accepted
    ]
    drafted = [name for one in chain.outcomes for name in _named(one.draft.reference)]
    if chain.failure is not None:
        status = "failed"
    else:
        status = "explored" if chain.deduplication is None else chain.deduplication.status
    return [
        context.id,
        chain.iteration,
        None if context.kind is None else str(context.kind),
        named_weakness(context, chain.signal, chain.weak),
        status,
        len(chain.outcomes),
        len(chain.admitted),
        [reasons.number(reason) for reason in dict.fromkeys(refused)],
        [tools.number(name) for name in dict.fromkeys([*([one_line(context.tool)] if context.tool else []), *drafted])],
        context.task_id,
    ]


def _named(reference: Iterable[Iterable[ToolCall]]) -> list[str]:
    return list(dict.fromkeys(one_line(call.name) for turn in reference for call in turn))


def stage_block(history: History, chains: Sequence[Chain], tasks: Sequence[Task], length: int) -> Json:
    """Return a stage's chains and the tasks that it admitted, by id; ``pool`` has their shared values.

    What is behind a row, as what explorers did and observed, is cut to ``length`` characters a text.
    """
    pool = Pool()
    return {
        "chains": {chain.context.id: _chain(history, chain, length) for chain in chains},
        "tasks": {task.id: _task(history, task, pool, length) for task in tasks},
        "pool": pool.values,
    }


def _chain(history: History, chain: Chain, length: int) -> Json:
    return {
        "name": weakness_words(chain.context),
        "steps": [_step(one, length) for one in chain_steps(history, chain)],
        "effect": [_step(one, length) for one in effect_steps(history, chain)],
    }


def _step(step: Chapter, length: int) -> list[Any]:
    return [step.name, step.id, step.about, [_row(one, LONGEST_TEXT, length) for one in step.rows]]


def _row(row: Row, longest: int, behind: int) -> Json:
    """Return what a row has; groups are named by task, iteration and steps: the page has all rollouts."""
    found: Json = {"label": row.label, "text": cut(row.text, longest), "tone": row.tone, "to": row.to, "code": row.code}
    if row.groups:
        steps = [one.step for one in row.groups]
        found["groups"] = [row.groups[0].task_id, row.groups[0].iteration, steps, row.marked]
    found["more"] = [_row(one, behind, behind) for one in row.more]
    return {name: value for name, value in found.items() if value and value != "plain"}


def _task(history: History, task: Task, pool: Pool, length: int) -> Json:
    return {
        "steps": [_step(one, length) for one in task_steps(history, task)],
        "setup": _calls(task.setup),
        "tools": pool.number(list(task.tools)),
        "state": pool.number(_state(task.initial_state)),
    }


def _state(state: Json) -> Json | str:
    return state if len(text := repr(state)) <= 10 * LONGEST_TEXT else cut(text)


def _calls(calls: Iterable[ToolCall]) -> list[str]:
    return [cut(written(call)) for call in calls]


def rollouts(history: History) -> Json:
    """Return every rollout in columns, by task, iteration, step and sample.

    A result is one letter: 1 success, 0 failure, - infrastructure error.
    """
    rows = [one for of_task in history.groups.values() for group in of_task for one in group.rollouts]
    tasks = {task_id: number for number, task_id in enumerate(history.groups)}
    return {
        "tasks": list(tasks),
        "id": [one.id for one in rows],
        "task": [tasks[one.task_id] for one in rows],
        "iteration": [one.iteration for one in rows],
        "step": [one.step for one in rows],
        "sample": [one.sample for one in rows],
        "result": "".join(map(_letter, rows)),
    }


def _letter(rollout: Rollout) -> str:
    if rollout.success is None:
        return "-"
    return "1" if rollout.success else "0"


def trajectory(history: History, one: Trajectory, *, diagnosed: bool) -> list[Any]:
    """Return the steps of a rollout's story; ``diagnosed``: with SEAL's label of each turn."""
    return [_step(step, LONGEST_TEXT) for step in rollout_story(history, one, diagnosed=diagnosed)]


def in_order_of_worth(history: History) -> Iterator[Rollout]:
    """Yield all rollouts, those that the page must not lack first.

    The rollouts that contexts come from, with their counterparts and nearest successful siblings; then failures, then
    successes: the first of every group before the second of any, later iterations first.
    """
    first: dict[str, None] = {}
    for chain in history.chains.values():
        if chain.rollout is None:
            continue
        first[chain.rollout.id] = None
        if chain.signal is not None and chain.signal.counterpart_id in history.rollouts:
            first[chain.signal.counterpart_id] = None
        sibling = history.sibling(chain.rollout, success=True)
        if sibling is not None:
            first[sibling.id] = None
    rest: list[tuple[bool, int, int, int, Rollout]] = []
    for of_task in history.groups.values():
        for group in of_task:
            seen = {True: 0, False: 0}
            for one in group.rollouts:
                if one.id not in first:
                    result = bool(one.success)
                    rest.append((result, seen[result], -one.iteration, one.start, one))
                    seen[result] += 1
    yield from sorted((history.rollouts[one] for one in first), key=lambda one: (one.iteration, one.start))
    yield from (row[-1] for row in sorted(rest, key=lambda row: row[:-1]))
