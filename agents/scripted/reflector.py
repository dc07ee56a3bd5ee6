"""The scripted reflector: reads a signal's evidence and its reference, and writes the failure context.

CoEvolve (section 3) lets an LLM reflect on the failed trajectory; here rules name where, how and why, and which tools
are worth reaching: the one that failed, those that its error asks for, those of the reference that did not succeed,
those of the rare pattern, and neighbours.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

from agents.evidence import error_message, executed, failed_turn, failure_context, step_at
from agents.roles import RoleRefused
from agents.scripted.requirements import remedies
from agents.scripted.words import about
from environments.base import Environment, MalformedCall, ToolCall, ToolSpec
from environments.verification.turn_comparison import Played, TurnComparison
from memory.jsonl import derive_seed
from memory.records import Cause, Evidence, FailureContext

# Names the first thing that went wrong in a failed trajectory, by comparing one turn with its reference.
#
# Scripted roles may read references; nothing of a reference's values enters the sentences, because those may reach a
# prompt. The causes are those of ``memory.records.Cause``; the order of the rules is our choice.


class AttemptDiagnosis(NamedTuple):
    """The cause, the (turn, step) where it shows, the tool it is about, and the tools its error asks for."""

    cause: Cause
    where: tuple[int, int]
    tool: str
    asked: tuple[str, ...] = ()


def diagnose(evidence: Evidence, turn: int, tools: Sequence[ToolSpec], environment: Environment) -> AttemptDiagnosis:
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


def _wrong_step(compared: TurnComparison, turn: int, place: int, tools: Sequence[ToolSpec]) -> AttemptDiagnosis | None:
    """The cause that one step shows, or None where it is right, recovered from later, or harmless."""
    step, missing = compared.steps[place], compared.missing_names()
    where = (turn, place)
    next_tool = compared.reference[compared.missing[0]].name
    if isinstance(step.action, MalformedCall):
        return AttemptDiagnosis(Cause.MALFORMED, where, next_tool)
    if step.observation.failed:
        return _refused_step(compared, where, step.action, tools)
    if place in compared.made.values():
        return None
    if step.action.name in missing:
        return AttemptDiagnosis(Cause.WRONG_ARGUMENT, where, step.action.name)
    is_last = place > max(compared.made.values(), default=-1)
    return AttemptDiagnosis(Cause.WRONG_CALL, where, next_tool) if is_last else None


def _refused_step(
    compared: TurnComparison, where: tuple[int, int], call: ToolCall, tools: Sequence[ToolSpec]
) -> AttemptDiagnosis | None:
    """The cause of an error: the reference's own call refused means that something before it is missing."""
    text = compared.steps[where[1]].observation.text
    asked = tuple(tool.name for tool in remedies(call, text, tools))
    if call.name not in compared.missing_names():
        known = any(call.name == wanted.name for wanted in compared.reference)
        return (
            None
            if known
            else AttemptDiagnosis(Cause.WRONG_CALL, where, compared.reference[compared.missing[0]].name, asked)
        )
    as_wanted = any(compared.same(call, compared.reference[k]) for k in compared.missing)
    if asked or as_wanted:
        return AttemptDiagnosis(Cause.UNMET_PRECONDITION, where, call.name, asked)
    return AttemptDiagnosis(Cause.WRONG_ARGUMENT, where, call.name)


def _too_little(compared: TurnComparison, turn: int) -> AttemptDiagnosis:
    """Nothing wrong was called: the turn ended before the missing calls, or went past one of them."""
    first = compared.missing[0]
    later = [place for k, place in compared.made.items() if k > first]
    tool = compared.reference[first].name
    if later:
        return AttemptDiagnosis(Cause.MISSING_CALL, (turn, min(later)), tool)
    return AttemptDiagnosis(Cause.STOPPED_EARLY, (turn, len(compared.steps)), tool)


def _too_much(evidence: Evidence, turn: int, compared: TurnComparison, environment: Environment) -> AttemptDiagnosis:
    """Every reference call was made: another one changed the state, or they came in the wrong order."""
    extra = [place for place in range(len(compared.steps)) if place not in compared.made.values()]
    changing = _changing_steps(evidence, turn, environment)
    blamed = next((place for place in extra if place in changing), None)
    if blamed is None:
        order = [place for _, place in sorted(compared.made.items())]
        swapped = next(((first, second) for first, second in pairwise(order) if second < first), None)
        if swapped is not None:
            due, early = swapped
            return AttemptDiagnosis(Cause.WRONG_CALL, (turn, early), _tool_of(compared.steps[due]))
        blamed = extra[0] if extra else max(0, len(compared.steps) - 1)
    tool = _tool_of(compared.steps[blamed]) if blamed < len(compared.steps) else ""
    return AttemptDiagnosis(Cause.SUPERFLUOUS_CALL, (turn, blamed), tool)


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


_SIMILAR = 2
_OTHERS = 2
_MOST = 8

_WHY = {
    Cause.MALFORMED: "What was written is no call of a tool.",
    Cause.UNMET_PRECONDITION: "{tool} needs other calls before it, which were not made.",
    Cause.WRONG_ARGUMENT: "{tool} is the right tool here, with other arguments.",
    Cause.WRONG_CALL: "The task needs {tool} here.",
    Cause.MISSING_CALL: "A call of {tool} was left out before this step.",
    Cause.STOPPED_EARLY: "The turn ended before {tool} was called.",
    Cause.SUPERFLUOUS_CALL: "Everything that the task needs was done, and this call changed more.",
    Cause.UNSTABLE: "The task is solved only sometimes, or in a way that is rarely tried.",
}


class RuleReflector:
    """Reflector without a model; reads references, so what it writes names tools of them but none of their values."""

    async def reflect(self, evidence: Evidence, environment: Environment) -> FailureContext:
        """The context of a signal. Raises RoleRefused for a trajectory that an infrastructure error ended."""
        return await asyncio.to_thread(self.reflect_now, evidence, environment)

    def reflect_now(self, evidence: Evidence, environment: Environment) -> FailureContext:
        """The same without an event loop."""
        if evidence.trajectory.outcome is None:
            raise RoleRefused(f"trajectory {evidence.trajectory.id} ended in an infrastructure error: nothing to read")
        tools = environment.tools(evidence.task.tools)
        if evidence.signal.successful_evidence or evidence.trajectory.success:
            found = _unstable(evidence)
        else:
            found = diagnose(evidence, failed_turn(evidence), tools, environment)
        return failure_context(
            evidence,
            cause=found.cause,
            where=found.where,
            tool=found.tool,
            how=_how(evidence, found),
            why=_WHY[found.cause].format(tool=found.tool),
            explore=_worth_reaching(evidence, found, tools),
        )


def _unstable(evidence: Evidence) -> AttemptDiagnosis:
    """A success that is rare or not repeatable: it is about the pattern's last tool, else about the last call."""
    wanted = evidence.signal.pattern[-1:] or tuple(call.name for call in evidence.task.reference[-1][-1:])
    for t, turn in enumerate(evidence.trajectory.turns):
        for s, step in enumerate(turn.steps):
            if any(call.name in wanted for call in step.observation.calls):
                return AttemptDiagnosis(Cause.UNSTABLE, (t, s), wanted[0])
    return AttemptDiagnosis(Cause.UNSTABLE, (0, 0), wanted[0] if wanted else "")


def _how(evidence: Evidence, found: AttemptDiagnosis) -> str:
    turn, place = found.where
    step = step_at(evidence.trajectory, found.where)
    if step is None:
        return f"Turn {turn + 1} ended after {place} actions."
    kind = "was refused" if step.observation.failed else "was answered"
    answer = error_message(step.observation.text)[:200]
    return f"Turn {turn + 1}, action {place + 1}: {executed(step.action)[:200]} {kind}: {answer}"


def _worth_reaching(evidence: Evidence, found: AttemptDiagnosis, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    """Tools to explore, most promising first. The neighbours beyond the most similar ones are drawn by the signal."""
    succeeded = {
        call.name
        for turn in evidence.trajectory.turns
        for step in turn.steps
        for call in step.observation.calls
        if not step.observation.failed
    }
    wanted = [call.name for turn in evidence.task.reference for call in turn]
    named = [found.tool, *found.asked, *(name for name in wanted if name not in succeeded), *evidence.signal.pattern]
    known = {tool.name: tool for tool in tools}
    centre = known.get(found.tool) or known.get(next(iter(wanted), ""))
    rng = random.Random(derive_seed("reflector", evidence.signal.id))
    return with_neighbours([name for name in dict.fromkeys(named) if name in known], centre, tools, rng)


def with_neighbours(
    chosen: Sequence[str], centre: ToolSpec | None, tools: Sequence[ToolSpec], rng: random.Random
) -> tuple[str, ...]:
    """The ``chosen`` tools, those of the group of ``centre`` that are most like it, and a few more of it by ``rng``."""
    if centre is None:
        return tuple(chosen[:_MOST])
    near = [tool for tool in tools if tool.group == centre.group and tool.name not in chosen]
    near.sort(key=lambda tool: (-_similarity(tool, centre), tool.name))
    rest = [tool.name for tool in near[_SIMILAR:]]
    others = rng.sample(rest, min(_OTHERS, len(rest)))
    return (*chosen, *(tool.name for tool in near[:_SIMILAR]), *others)[:_MOST]


def _similarity(left: ToolSpec, right: ToolSpec) -> float:
    shared = about(left) & about(right)
    return len(shared) / len(about(left) | about(right))
