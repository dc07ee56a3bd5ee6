"""The records of a run as plain JSON values: rows of the table, and whole chains, tasks and rollouts for its cards.

What agents, tools and models wrote is foreign: a text is cut to a length here, and the page shows it as text only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from environments.base import Action, MalformedCall, Observation, ToolCall, TurnOutcome
from graph.report.digest import (
    REASONS,
    call_words,
    context_words,
    one_line,
    signal_words,
    task_words,
    weakness_words,
)
from graph.report.lineage import Chain, Drafted, History, Rollout
from graph.report.mistakes import Mistake, mistake_of
from memory.records import DraftVerification, Signal, Task, Trajectory, TrajectoryTurn
from training.seal.diagnosis import turn_label

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


def reason_of(verification: DraftVerification) -> str:
    """Return the reason of a refusal in one line."""
    return one_line(verification.reason or "refused")


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
        reason_of(one.verification) for one in chain.outcomes if one.verification and not one.verification.accepted
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
        context_words(context),
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

    What explorers did and observed is cut to ``length`` characters a text.
    """
    pool = Pool()
    return {
        "chains": {chain.context.id: _chain(chain, mistake_of(history, chain), pool, length) for chain in chains},
        "tasks": {task.id: _task(task, pool) for task in tasks},
        "pool": pool.values,
    }


def _task(task: Task, pool: Pool) -> Json:
    return {
        "turns": [cut(turn) for turn in task.turns],
        "reference": [_calls(turn) for turn in task.reference],
        "setup": _calls(task.setup),
        "tools": pool.number(list(task.tools)),
        "state": pool.number(_state(task.initial_state)),
    }


def _state(state: Json) -> Json | str:
    return state if len(text := repr(state)) <= 10 * LONGEST_TEXT else cut(text)


def _chain(chain: Chain, mistake: Mistake | None, pool: Pool, length: int) -> Json:
    context, compared = chain.context, chain.deduplication
    return {
        "name": weakness_words(context),
        "iteration": chain.iteration,
        "task": context.task_id,
        "rollout": context.trajectory_id,
        "signal": None if chain.signal is None else _signal(chain.signal),
        "where": list(context.where),
        "expected": None if mistake is None else cut(written(mistake.expected)),
        **{name: cut(str(getattr(context, name) or "")) for name in ("cause", "error_class", "label")},
        **{name: cut(str(getattr(context, name) or "")) for name in ("turn_cause", "how", "why", "summary")},
        "instability": cut(context.instability_pattern),
        "objectives": [cut(one) for one in context.exploration_objectives],
        "avoid": [cut(one) for one in context.do_not_repeat],
        "focus": [cut(one) for one in context.focus_pattern],
        "facts": [cut(one) for one in context.facts],
        "explore": list(context.explore),
        "setup": _calls(context.setup),
        "state": pool.number(_state(context.initial_state)),
        "deduplication": None if compared is None else [compared.status, compared.nearest, compared.cosine],
        "interactions": [
            [one.id, one.run, one.position, *_act(one.action, one.observation, length), one.changed]
            for one in chain.interactions
        ],
        "drafts": [_draft(one) for one in chain.outcomes],
        "failure": None if chain.failure is None else f"{chain.failure.node}: {cut(chain.failure.detail)}",
    }


def _signal(signal: Signal) -> Json:
    return {
        "id": signal.id,
        "kind": str(signal.kind),
        "words": signal_words(signal),
        "counterpart": signal.counterpart_id,
    }


def _draft(outcome: Drafted) -> Json:
    draft, verification = outcome.draft, outcome.verification
    reason = None if verification is None else verification.reason
    return {
        "id": draft.id,
        "difficulty": None if draft.difficulty is None else str(draft.difficulty),
        "turns": [cut(turn) for turn in draft.turns],
        "reference": [_calls(turn) for turn in draft.reference],
        "parents": list(draft.parents),
        "accepted": None if verification is None else verification.accepted,
        "reason": reason,
        "meaning": REASONS.get(reason or "", ""),
        "detail": "" if verification is None else cut(verification.detail),
        "agent": None
        if verification is None or verification.agent is None
        else verification.agent.model_dump(mode="json"),
        "task": None if outcome.task is None else outcome.task.id,
    }


def _calls(calls: Iterable[ToolCall], length: int = LONGEST_TEXT) -> list[str]:
    return [cut(written(call), length) for call in calls]


def written(call: ToolCall | MalformedCall) -> str:
    """Return a call as Python would write it, a program in its arguments over several lines."""
    if isinstance(call, MalformedCall) or not any("\n" in str(value) for value in call.arguments.values()):
        return call_words(call)
    values = (
        f"{name}=\n{value}\n" if isinstance(value, str) and "\n" in value else f"{name}={value!r}"
        for name, value in call.arguments.items()
    )
    return f"{call.name}({', '.join(values)})"


def _act(action: Action, observation: Observation, length: int = LONGEST_TEXT) -> list[Any]:
    """Return the action, the observation, its status, and the calls that ran where they are not the action alone."""
    ran = [] if observation.calls == (action,) else _calls(observation.calls, length)
    hint = "" if observation.hint is None else f"{observation.hint.kind}: {observation.hint.text}"
    call, text = cut(written(action), length), cut(observation.text, length)
    return [call, text, str(observation.status), ran, cut(hint, length)]


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
        "tokens": [one.sampled_tokens for one in rows],
        "result": "".join(map(_letter, rows)),
    }


def _letter(rollout: Rollout) -> str:
    if rollout.success is None:
        return "-"
    return "1" if rollout.success else "0"


def signals(history: History) -> Json:
    """Return id, kind and words of each signal by its rollout; the words of one that was followed are in its chain."""
    found: dict[str, list[list[str]]] = {}
    for one in history.signals.values():
        found.setdefault(one.trajectory_id, []).append([one.id, str(one.kind), signal_words(one)])
    return found


def trajectory(one: Trajectory, *, diagnosed: bool) -> Json:
    """Return a rollout with its turns; ``diagnosed``: with SEAL's label of each turn."""
    checks: Sequence[TurnOutcome] = () if one.outcome is None else one.outcome.turns
    return {
        "turns": [_turn(turn) for turn in one.turns],
        "checks": [_check(check, diagnosed) for check in checks],
        "failure": None if one.outcome is None else one.outcome.failure,
        "failed_turn": None if one.outcome is None else one.outcome.failed_turn,
        "partial": None if one.outcome is None else one.outcome.partial,
        "reward": one.reward,
        "error": None if one.infrastructure_error is None else cut(one.infrastructure_error),
    }


def _turn(turn: TrajectoryTurn) -> list[Any]:
    """Return the user's text, guidelines, steps, whether the agent ended it, and why it stopped."""
    return [
        cut(turn.text),
        [f"{cue.kind}: {cue.text}" for cue in turn.guidelines],
        [_act(step.action, step.observation) for step in turn.steps],
        turn.ended,
        None if turn.stop_reason is None else str(turn.stop_reason),
    ]


def _check(check: TurnOutcome, diagnosed: bool) -> list[Any]:
    """Return calls, malformed, reference's calls, three checks, the checker's error, and SEAL's label."""
    return [
        check.calls,
        check.malformed,
        check.reference_calls,
        check.instances,
        check.state,
        check.response,
        "the reference raised" if check.reference_error else check.checker_error,
        str(turn_label(check)) if diagnosed else None,
    ]


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
