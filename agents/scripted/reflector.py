"""The scripted reflector: reads a signal's evidence and its reference, and writes the failure context.

CoEvolve (section 3) lets an LLM reflect on the failed trajectory; here rules name where, how and why, and which tools
are worth reaching: the one that failed, those that its error asks for, those of the reference that did not succeed,
those of the signal's pattern, and neighbours. The rules find the first error of one turn by comparing it with its
reference; the causes are those of ``memory.records.Cause``, the order of the rules is our choice.

Scripted roles may read references. No value of a reference enters the sentences, because they may go into a prompt.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

from pydantic import JsonValue

from agents.evidence import executed, failed_turn, failure_context, step_at, what_happened
from agents.scripted.knowledge import about, remedies
from agents.spending import RoleRefused
from environments.base import Environment, MalformedCall, ToolCall, ToolSpec
from memory.jsonl import derive_seed
from memory.records import KINDS, Cause, Evidence, FailureContext, SignalKind, Step


class TurnComparison:
    """The steps of one turn compared with its reference.

    ``made`` maps the positions of reference calls to the steps that made them: a program makes those that are among the
    calls it ran. ``tools`` documents the task's tools by name; other tools are compared by their arguments as they are.
    """

    def __init__(self, steps: Sequence[Step], reference: Sequence[ToolCall], tools: Mapping[str, ToolSpec]) -> None:
        self.steps = steps
        self.reference = reference
        self._tools = tools
        self.made: dict[int, int] = {}
        for place, step in enumerate(steps):
            action, observation = step.action, step.observation
            if isinstance(action, ToolCall) and (observation.failed or not self._makes(action, place)):
                for call in observation.calls:
                    if call.name != action.name:
                        self._makes(call, place)

    @property
    def missing(self) -> tuple[int, ...]:
        """Positions of the reference calls that no step made."""
        return tuple(k for k in range(len(self.reference)) if k not in self.made)

    def same(self, call: ToolCall, wanted: ToolCall) -> bool:
        """Return whether the calls are equal; defaults may be left out, and lists of documented choices are sets."""
        return call.name == wanted.name and self._plain(call) == self._plain(wanted)

    def _makes(self, call: ToolCall, place: int) -> bool:
        k = next((k for k in self.missing if self.same(call, self.reference[k])), None)
        if k is not None:
            self.made[k] = place
        return k is not None

    def _plain(self, call: ToolCall) -> dict[str, JsonValue]:
        tool = self._tools.get(call.name)
        plain = dict(call.arguments)
        for name, value in call.arguments.items():
            parameter = tool.parameter(name) if tool else None
            if parameter is not None and not parameter.required and value == parameter.default:
                del plain[name]
            elif parameter is not None and parameter.choices and isinstance(value, list):
                plain[name] = [*sorted(str(item) for item in value)]
        return plain


class FirstError(NamedTuple):
    """The cause, the (turn, step) where it shows, the tool it is about, and the tools its error asks for."""

    cause: Cause
    where: tuple[int, int]
    tool: str
    asked: tuple[str, ...] = ()


def first_error(evidence: Evidence, turn: int, tools: Sequence[ToolSpec], environment: Environment) -> FirstError:
    """Find the first error in ``turn`` of a failed trajectory. ``tools`` are the task's.

    The environment replays the trajectory if only states can decide (every reference call was made, and more).
    """
    turns, reference = evidence.trajectory.turns, evidence.task.reference[turn]
    steps = turns[turn].steps if turn < len(turns) else ()
    compared = TurnComparison(steps, reference, {tool.name: tool for tool in tools})
    if not compared.missing:
        return _too_much(evidence, turn, compared, environment)
    found = (_wrong_step(compared, turn, place, tools) for place in range(len(steps)))
    first_found = next(filter(None, found), None)
    if first_found is not None:
        return first_found
    # No wrong call was made: the turn ended before the missing calls, or skipped one.
    first = compared.missing[0]
    later = [place for k, place in compared.made.items() if k > first]
    cause, place = (Cause.MISSING_CALL, min(later)) if later else (Cause.STOPPED_EARLY, len(steps))
    return FirstError(cause, (turn, place), reference[first].name)


def _wrong_step(compared: TurnComparison, turn: int, place: int, tools: Sequence[ToolSpec]) -> FirstError | None:
    """Return the cause that one step shows; None if it is right, recovered from later, or harmless."""
    step, where = compared.steps[place], (turn, place)
    missing = [compared.reference[k].name for k in compared.missing]
    if isinstance(step.action, MalformedCall):
        return FirstError(Cause.MALFORMED, where, missing[0])
    if step.observation.failed:
        return _refused_step(compared, where, step.action, tools)
    if place in compared.made.values():
        return None
    if step.action.name in missing:
        return FirstError(Cause.WRONG_ARGUMENT, where, step.action.name)
    is_last = place > max(compared.made.values(), default=-1)
    return FirstError(Cause.WRONG_CALL, where, missing[0]) if is_last else None


def _refused_step(
    compared: TurnComparison, where: tuple[int, int], call: ToolCall, tools: Sequence[ToolSpec]
) -> FirstError | None:
    """Return the cause of an error: if the reference's own call is refused, a call before it is missing."""
    asked = tuple(tool.name for tool in remedies(call, compared.steps[where[1]].observation.text, tools))
    missing = [compared.reference[k] for k in compared.missing]
    if not any(call.name == wanted.name for wanted in missing):
        known = any(call.name == wanted.name for wanted in compared.reference)
        return None if known else FirstError(Cause.WRONG_CALL, where, missing[0].name, asked)
    if asked or any(compared.same(call, wanted) for wanted in missing):
        return FirstError(Cause.UNMET_PRECONDITION, where, call.name, asked)
    return FirstError(Cause.WRONG_ARGUMENT, where, call.name)


def _too_much(evidence: Evidence, turn: int, compared: TurnComparison, environment: Environment) -> FirstError:
    """Return the cause if every reference call was made: another changed the state, or the order is wrong."""
    extra = [place for place in range(len(compared.steps)) if place not in compared.made.values()]
    changing = _changing_steps(evidence, turn, environment)
    blamed = next((place for place in extra if place in changing), None)
    if blamed is None:
        order = [place for _, place in sorted(compared.made.items())]
        swapped = next(((first, second) for first, second in pairwise(order) if second < first), None)
        if swapped is not None:
            due, early = swapped
            return FirstError(Cause.WRONG_CALL, (turn, early), _tool_of(compared.steps[due]))
        blamed = extra[0] if extra else max(0, len(compared.steps) - 1)
    tool = _tool_of(compared.steps[blamed]) if blamed < len(compared.steps) else ""
    return FirstError(Cause.SUPERFLUOUS_CALL, (turn, blamed), tool)


def _changing_steps(evidence: Evidence, turn: int, environment: Environment) -> frozenset[int]:
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


def _tool_of(step: Step) -> str:
    return step.action.name if isinstance(step.action, ToolCall) else ""


_SIMILAR = 2  # neighbours of the tool that are named for their likeness (ours)
_OTHERS = 2  # further tools of its group that are drawn (ours)
_MOST = 8  # tools that a context names as worth reaching, at most (ours)

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
_OBJECTIVES = {
    Cause.MALFORMED: "Reach a successful call of {tool}.",
    Cause.UNMET_PRECONDITION: "Find out which calls {tool} needs before it.",
    Cause.WRONG_ARGUMENT: "Call {tool} with other arguments, and see which it accepts.",
    Cause.WRONG_CALL: "Reach a successful call of {tool}.",
    Cause.MISSING_CALL: "Find out what {tool} changes for the calls after it.",
    Cause.STOPPED_EARLY: "Go on after the first calls, up to a successful call of {tool}.",
    Cause.SUPERFLUOUS_CALL: "Find out what {tool} changes beside what was asked for.",
    Cause.UNSTABLE: "Repeat {tool} with other values.",
}


class RuleReflector:
    """Reflector without a model. It reads references: its contexts name tools of them but none of their values."""

    async def reflect(self, evidence: Evidence, environment: Environment) -> FailureContext:
        """Return the context of a signal. Raises RoleRefused for a trajectory with an infrastructure error."""
        return await asyncio.to_thread(self.reflect_now, evidence, environment)

    def reflect_now(self, evidence: Evidence, environment: Environment) -> FailureContext:
        """Reflect without an event loop."""
        if evidence.trajectory.outcome is None:
            raise RoleRefused(f"trajectory {evidence.trajectory.id} ended in an infrastructure error: nothing to read")
        tools = environment.tools(evidence.task.tools)
        if evidence.signal.successful_evidence or evidence.trajectory.success:
            found = _unstable(evidence)
        else:
            found = first_error(evidence, failed_turn(evidence), tools, environment)
        objective = _OBJECTIVES[found.cause].format(tool=found.tool) if found.tool else ""
        return failure_context(
            evidence,
            cause=found.cause,
            where=found.where,
            tool=found.tool,
            how=what_happened(evidence, found.where),
            why=_WHY[found.cause].format(tool=found.tool),
            explore=_worth_reaching(evidence, found, tools),
            summary=_summary(evidence),
            instability_pattern=_instability(evidence),
            focus_pattern=_focus(evidence, found),
            exploration_objectives=[objective, KINDS[evidence.signal.kind].objective],
            do_not_repeat=_refused_in_vain(evidence, found),
        )


def _unstable(evidence: Evidence) -> FirstError:
    """Diagnose a success that is rare or not repeatable: the pattern's last tool, else the last call."""
    wanted = evidence.signal.pattern[-1:] or tuple(call.name for call in evidence.task.reference[-1][-1:])
    for where, step in evidence.trajectory.own_steps():
        if any(call.name in wanted for call in step.observation.calls):
            return FirstError(Cause.UNSTABLE, where, wanted[0])
    return FirstError(Cause.UNSTABLE, (evidence.trajectory.played, 0), wanted[0] if wanted else "")


def _summary(evidence: Evidence) -> str:
    trajectory = evidence.trajectory
    called = ", ".join(dict.fromkeys(call.name for call in trajectory.calls())) or "no tool"
    turns = len(trajectory.turns) - trajectory.played
    failure = trajectory.outcome.failure if trajectory.outcome is not None else None
    ended = "succeeded" if trajectory.success else f"failed{f': {failure}' if failure else ''}"
    return f"The attempt called {called} in {turns} user turn{'' if turns == 1 else 's'}, and {ended}."


def _instability(evidence: Evidence) -> str:
    """Return the signal in numbers, and the tools that only one of two rollouts with different results called."""
    signal, other = evidence.signal, evidence.counterpart
    texts = []
    if signal.recent is not None:
        solved_of, last = signal.recent
        texts.append(f"{solved_of} of the last {last} attempts at the task succeeded, this one failed.")
    if signal.kind is SignalKind.RARE and signal.count is not None:
        texts.append(f"{', '.join(signal.pattern)}: seen {signal.count} times so far.")
    if signal.kind is SignalKind.BOUNDARY and signal.group is not None:
        texts.append(f"{signal.group[0]} of {signal.group[1]} attempts of one step succeeded.")
    if other is not None:
        pair = (evidence.trajectory, other) if evidence.trajectory.success else (other, evidence.trajectory)
        solved, failed = ({call.name for call in one.calls()} for one in pair)
        if solved - failed:
            texts.append(f"Only the success called {', '.join(sorted(solved - failed))}.")
        if failed - solved:
            texts.append(f"Only the failure called {', '.join(sorted(failed - solved))}.")
        if solved == failed:
            texts.append("Success and failure called the same tools: arguments, order or number separate them.")
    return " ".join(texts)


def _focus(evidence: Evidence, found: FirstError) -> list[str]:
    """Return the tools to practise, then the sequences: of the cause, of the signal. Names alone, no values.

    The pair of a cause is the confused tools of a wrong call, a missing call and the one made in its place, a remedy
    and the call that needs it. A task that was solved before, or was left early, gives the path of the turn's
    reference; two rollouts with different results give the tools of the calls that only one of them made.
    """
    sequences: list[str] = []
    step = step_at(evidence.trajectory, found.where)
    made = _tool_of(step) if step is not None else ""
    if found.asked:
        sequences.append(f"{found.asked[0]}, then {found.tool}")
    elif made and made != found.tool and made in evidence.task.tools:
        if found.cause is Cause.WRONG_CALL:
            sequences.append(f"{found.tool}, not {made}")
        if found.cause is Cause.MISSING_CALL:
            sequences.append(f"{found.tool}, then {made}")
    path = [call.name for turn in evidence.task.reference[found.where[0] :][:1] for call in turn]
    if len(path) > 1 and (found.cause is Cause.STOPPED_EARLY or evidence.signal.kind is SignalKind.FORGETTING):
        sequences.append(", then ".join(path))
    if evidence.counterpart is not None:
        ours, theirs = (
            {executed(call): call.name for call in one.calls()} for one in (evidence.trajectory, evidence.counterpart)
        )
        differing = dict.fromkeys(
            name for text, name in [*theirs.items(), *ours.items()] if text not in ours or text not in theirs
        )
        if len(differing) > 1:
            sequences.append(" and ".join(differing))
    if len(evidence.signal.pattern) > 1:
        sequences.append(", then ".join(evidence.signal.pattern))
    return [*dict.fromkeys((found.tool, *found.asked, *evidence.signal.pattern)), *sequences]


def _refused_in_vain(evidence: Evidence, found: FirstError) -> list[str]:
    """Return the refused calls of tools that the attempt never called with success.

    The tool whose precondition was not met is left out: the same call is right after it.
    """
    worked = _succeeded(evidence)
    if found.cause is Cause.UNMET_PRECONDITION:
        worked.add(found.tool)
    refused = (step.action for _, step in evidence.trajectory.own_steps() if step.observation.failed)
    return [executed(action) for action in refused if isinstance(action, ToolCall) and action.name not in worked]


def _succeeded(evidence: Evidence) -> set[str]:
    steps = [step for _, step in evidence.trajectory.own_steps() if not step.observation.failed]
    return {call.name for step in steps for call in step.observation.calls}


def _worth_reaching(evidence: Evidence, found: FirstError, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    """Return tools to explore, most promising first. Some neighbours are drawn at random, by the signal's id."""
    succeeded = _succeeded(evidence)
    wanted = [call.name for turn in evidence.task.reference[evidence.task.played :] for call in turn]
    missed = (name for name in wanted if name not in succeeded)
    named = [found.tool, *found.asked, *missed, *evidence.signal.pattern]
    known = {tool.name: tool for tool in tools}
    centre = known.get(found.tool) or known.get(next(iter(wanted), ""))
    rng = random.Random(derive_seed("reflector", evidence.signal.id))
    return with_neighbours([name for name in dict.fromkeys(named) if name in known], centre, tools, rng)


def with_neighbours(
    chosen: Sequence[str], centre: ToolSpec | None, tools: Sequence[ToolSpec], rng: random.Random
) -> tuple[str, ...]:
    """Return ``chosen``, the tools of ``centre``'s group most similar to it, and a few more of the group by ``rng``."""
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
