"""The scripted reflector: reads a signal's evidence and its reference, and writes the failure context.

CoEvolve (section 3) lets an LLM reflect on the failed trajectory; here rules name where, how and why, and which tools
are worth reaching: the one that failed, those that its error asks for, those of the reference that did not succeed,
those of the rare pattern, and neighbours.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from agents.context import failed_turn, failure_context
from agents.evidence import error_message, executed, step_at
from agents.roles import RoleRefused
from agents.scripted.diagnosis import Diagnosis, diagnose
from agents.scripted.words import about
from environments.base import Environment, ToolSpec
from memory.ids import derive_seed
from memory.records import Cause, Evidence, FailureContext

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


def _unstable(evidence: Evidence) -> Diagnosis:
    """A success that is rare or not repeatable: it is about the pattern's last tool, else about the last call."""
    wanted = evidence.signal.pattern[-1:] or tuple(call.name for call in evidence.task.reference[-1][-1:])
    for t, turn in enumerate(evidence.trajectory.turns):
        for s, step in enumerate(turn.steps):
            if any(call.name in wanted for call in step.observation.calls):
                return Diagnosis(Cause.UNSTABLE, (t, s), wanted[0])
    return Diagnosis(Cause.UNSTABLE, (0, 0), wanted[0] if wanted else "")


def _how(evidence: Evidence, found: Diagnosis) -> str:
    turn, place = found.where
    step = step_at(evidence.trajectory, found.where)
    if step is None:
        return f"Turn {turn + 1} ended after {place} actions."
    kind = "was refused" if step.observation.failed else "was answered"
    answer = error_message(step.observation.text)[:200]
    return f"Turn {turn + 1}, action {place + 1}: {executed(step.action)[:200]} {kind}: {answer}"


def _worth_reaching(evidence: Evidence, found: Diagnosis, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
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
