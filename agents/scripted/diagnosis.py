"""Names the first thing that went wrong in a failed trajectory, by comparing one turn with its reference.

Scripted roles may read references; nothing of a reference's values enters the sentences, because those may reach a
prompt. The causes are those of ``memory.records.Cause``; the order of the rules is our choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

from agents.scripted.requirements import remedies
from environments.base import Environment, MalformedCall, ToolCall, ToolSpec
from environments.turn_comparison import Played, TurnComparison
from memory.records import Cause, Evidence


class Diagnosis(NamedTuple):
    """The cause, the (turn, step) where it shows, the tool it is about, and the tools its error asks for."""

    cause: Cause
    where: tuple[int, int]
    tool: str
    asked: tuple[str, ...] = ()


def diagnose(evidence: Evidence, turn: int, tools: Sequence[ToolSpec], environment: Environment) -> Diagnosis:
    """What went wrong in ``turn`` of a failed trajectory. ``tools`` are the task's.

    The environment replays the trajectory where only the states can tell (every reference call was made, and more).
    """
    turns, reference = evidence.trajectory.turns, evidence.task.reference[turn]
    steps = turns[turn].steps if turn < len(turns) else ()
    compared = TurnComparison(steps, reference, {tool.name: tool for tool in tools})
    if not compared.missing:
        return _too_much(evidence, turn, compared, environment)
    for place in range(len(steps)):
        found = _wrong_step(compared, turn, place, tools)
        if found is not None:
            return found
    return _too_little(compared, turn)


def _wrong_step(compared: TurnComparison, turn: int, place: int, tools: Sequence[ToolSpec]) -> Diagnosis | None:
    """The cause that one step shows, or None where it is right, recovered from later, or harmless."""
    step, missing = compared.steps[place], compared.missing_names()
    where = (turn, place)
    next_tool = compared.reference[compared.missing[0]].name
    if isinstance(step.action, MalformedCall):
        return Diagnosis(Cause.MALFORMED, where, next_tool)
    if step.observation.failed:
        return _refused_step(compared, where, step.action, tools)
    if place in compared.made.values():
        return None
    if step.action.name in missing:
        return Diagnosis(Cause.WRONG_ARGUMENT, where, step.action.name)
    is_last = place > max(compared.made.values(), default=-1)
    return Diagnosis(Cause.WRONG_CALL, where, next_tool) if is_last else None


def _refused_step(
    compared: TurnComparison, where: tuple[int, int], call: ToolCall, tools: Sequence[ToolSpec]
) -> Diagnosis | None:
    """The cause of an error: the reference's own call refused means that something before it is missing."""
    text = compared.steps[where[1]].observation.text
    asked = tuple(tool.name for tool in remedies(call, text, tools))
    if call.name not in compared.missing_names():
        known = any(call.name == wanted.name for wanted in compared.reference)
        return (
            None if known else Diagnosis(Cause.WRONG_CALL, where, compared.reference[compared.missing[0]].name, asked)
        )
    as_wanted = any(compared.same(call, compared.reference[k]) for k in compared.missing)
    if asked or as_wanted:
        return Diagnosis(Cause.UNMET_PRECONDITION, where, call.name, asked)
    return Diagnosis(Cause.WRONG_ARGUMENT, where, call.name)


def _too_little(compared: TurnComparison, turn: int) -> Diagnosis:
    """Nothing wrong was called: the turn ended before the missing calls, or went past one of them."""
    first = compared.missing[0]
    later = [place for k, place in compared.made.items() if k > first]
    tool = compared.reference[first].name
    if later:
        return Diagnosis(Cause.MISSING_CALL, (turn, min(later)), tool)
    return Diagnosis(Cause.STOPPED_EARLY, (turn, len(compared.steps)), tool)


def _too_much(evidence: Evidence, turn: int, compared: TurnComparison, environment: Environment) -> Diagnosis:
    """Every reference call was made: another one changed the state, or they came in the wrong order."""
    extra = [place for place in range(len(compared.steps)) if place not in compared.made.values()]
    changing = _changing_steps(evidence, turn, environment)
    blamed = next((place for place in extra if place in changing), None)
    if blamed is None:
        order = [place for _, place in sorted(compared.made.items())]
        swapped = next(((first, second) for first, second in pairwise(order) if second < first), None)
        if swapped is not None:
            due, early = swapped
            return Diagnosis(Cause.WRONG_CALL, (turn, early), _tool_of(compared.steps[due]))
        blamed = extra[0] if extra else max(0, len(compared.steps) - 1)
    tool = _tool_of(compared.steps[blamed]) if blamed < len(compared.steps) else ""
    return Diagnosis(Cause.SUPERFLUOUS_CALL, (turn, blamed), tool)


def _changing_steps(evidence: Evidence, turn: int, environment: Environment) -> frozenset[int]:
    """Steps of the turn after which the state differs, found by replaying the trajectory."""
    changing = set()
    with closing(environment.open(evidence.task)) as episode:
        episode.start()
        for index, played in enumerate(evidence.trajectory.turns[: turn + 1]):
            for place, step in enumerate(played.steps):
                before = episode.state()
                episode.step(step.action)
                if index == turn and episode.state() != before:
                    changing.add(place)
            if index < turn:
                episode.end_turn()
    return frozenset(changing)


def _tool_of(step: Played) -> str:
    return step.action.name if isinstance(step.action, ToolCall) else ""
