"""The wrong call of a failed rollout beside the expected one, and the task of a run that is followed first.

A context names the first error of a rollout by turn and step, and the tool that the error is about. The expected call
is the first one of the turn's reference that calls this tool and that no earlier step made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agents.scripted.reflector import TurnComparison
from environments.base import MalformedCall, ToolCall
from graph.report.lineage import Chain, History
from memory.records import Cause, Signal, SignalKind, Step, Task


class Mistake(NamedTuple):
    """What a failed rollout did first of all wrongly, and the call that the reference has there.

    ``wrong`` is None where the rollout ended the turn, or did not come to it.
    """

    wrong: Step | None
    expected: ToolCall


class Followed(NamedTuple):
    """An admitted task, the weak task and the signal that it came from, their chain, and the mistake behind it.

    ``mistake`` is None where no call was expected, or the task's reference does not call the expected call's tool.
    """

    task: Task
    weak: Task
    signal: Signal
    chain: Chain
    mistake: Mistake | None


def mistake_of(history: History, chain: Chain) -> Mistake | None:
    """Return the mistake that a chain begins with; None where no call was expected in place of what was done.

    So it is for rollouts that succeeded, and where a call too many is the error. Raises InputError for a damaged
    trajectory.
    """
    context, weak = chain.context, chain.weak
    if weak is None or chain.rollout is None or chain.rollout.success is not False:
        return None
    turn, place = context.where
    if (
        context.cause in (None, Cause.UNSTABLE, Cause.SUPERFLUOUS_CALL)
        or place < 0
        or not 0 <= turn < len(weak.reference)
    ):
        return None
    turns = history.trajectory(chain.rollout.id).turns
    steps = turns[turn].steps if turn < len(turns) else ()
    before = TurnComparison(steps[:place], weak.reference[turn], {})
    missing = (weak.reference[turn][position] for position in before.missing)
    expected = next((call for call in missing if call.name == context.tool), None)
    wrong = steps[place] if place < len(steps) else None
    if expected is None or (wrong is not None and wrong.action == expected):
        return None
    return Mistake(wrong, expected)


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
            rank = 2 + (chain.signal.kind is SignalKind.RARE)
            if mistake is not None:
                rank = int(mistake.wrong is not None and isinstance(mistake.wrong.action, MalformedCall))
            story = Followed(task, chain.weak, chain.signal, chain, mistake)
            if rank == 0:
                return story
            found.setdefault(rank, story)
    return found[min(found)] if found else None


def called(reference: Sequence[Sequence[ToolCall]]) -> frozenset[str]:
    """Return the names of the tools that a reference calls."""
    return frozenset(call.name for turn in reference for call in turn)
