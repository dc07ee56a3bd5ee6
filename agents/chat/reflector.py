"""The chat reflector: a model reads a trajectory and reports where, how and why it failed (CoEvolve, section 3.2).

Its reply has the fields of the paper's Figure 11, and those that name the place of the mistake (ours). The paper's
suffice: what else is left out is read from the attempt (``agents.evidence``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from agents.chat.models import StructuredModel
from agents.chat.transcript import outcome_text, prompt, tools_text, trajectory_text
from agents.evidence import (
    MOST_ITEMS,
    blamed_place,
    failure_context,
    step_at,
    tool_at,
    what_happened,
)
from agents.scripted.knowledge import remedies
from agents.spending import RoleRefused
from environments.base import Environment, MalformedCall, ToolSpec
from memory.records import KINDS, Cause, Evidence, FailureContext, SignalKind


class Reflection(BaseModel):
    """A structured reflection on one attempt; everything after the summary follows from it."""

    summary: str = Field(description="2 to 4 sentences: the task, the key actions of the attempt, and how it ended")
    turn: int | SkipJsonSchema[None] = Field(description="number of the turn, from 1, in which the first mistake shows")
    action: int | SkipJsonSchema[None] = Field(
        description="number of the action in that turn, from 1; one past the last if it stopped early"
    )
    cause: Cause | SkipJsonSchema[None] = Field(
        description="the kind of mistake; 'unstable' for a success that is rare or not repeatable"
    )
    tool: str = Field(description="name of the tool that the mistake is about")
    how: str = Field(description="one sentence: what happened")
    failure_cause: str = Field(description="1 to 3 sentences: what the agent did not know or respect")
    instability_pattern: str = Field(
        default="",
        description="1 or 2 sentences: when it goes right and when it goes wrong, as far as the record shows",
    )
    focus_pattern: list[str] = Field(
        default=[], description="1 to 5 short phrases: the operations, or sequences of them, to practise"
    )
    exploration_objectives: list[str] = Field(
        default=[], description="1 to 5 short sentences: what exploration around this weakness should find out or reach"
    )
    do_not_repeat: list[str] = Field(
        default=[], description="up to 5 short phrases: actions of the attempt that led nowhere and need no further try"
    )
    explore: list[str] = Field(description="names of 1 to 8 tools worth trying around this, most promising first")

    @model_validator(mode="before")
    @classmethod
    def _our_fields_may_be_missing(cls, value: Any) -> Any:  # noqa: ANN401 - before validation it may be anything
        return _LEFT_OUT | value if isinstance(value, dict) else value


_LEFT_OUT: dict[str, Any] = {"turn": None, "action": None, "cause": None, "tool": "", "how": "", "explore": []}
"""Our fields of a reflection that has only the paper's."""


class ChatReflector:
    """Reflector on a chat model. Its prompt has the task's text, the attempt and its checks, never the reference."""

    def __init__(self, model: StructuredModel) -> None:
        self._model = model

    async def reflect(self, evidence: Evidence, environment: Environment) -> FailureContext:
        """Return the context of a signal. Raises RoleRefused when the reply stays unusable after one repair."""
        trajectory = evidence.trajectory
        if trajectory.outcome is None:
            raise RoleRefused(f"trajectory {trajectory.id} ended in an infrastructure error: nothing to read")
        tools = environment.tools(evidence.task.tools)
        system, user = prompt(
            "reflect",
            tools=tools_text(tools),
            signal=_signal_text(evidence),
            trajectory=trajectory_text(trajectory),
            outcome=outcome_text(trajectory.outcome),
            counterpart=_counterpart_text(evidence),
        )
        reply, measured = await self._model.ask(
            Reflection,
            system,
            user,
            lambda reply, final: _problem(reply, evidence),
            subject=evidence.signal.id,
            iteration=evidence.signal.iteration,
        )
        where = blamed_place(evidence)
        if reply.turn is not None and reply.action is not None:
            where = (reply.turn - 1, reply.action - 1)
        tool, asked = reply.tool or tool_at(evidence, where), _asked_for(evidence, where, tools)
        return failure_context(
            evidence,
            cause=reply.cause or _cause(evidence, where, asked),
            where=where,
            tool=tool,
            how=reply.how or what_happened(evidence, where),
            why=reply.failure_cause,
            explore=tuple(dict.fromkeys(reply.explore)) or _worth_trying(reply, evidence, [tool, *asked]),
            summary=reply.summary,
            instability_pattern=reply.instability_pattern,
            focus_pattern=reply.focus_pattern,
            exploration_objectives=reply.exploration_objectives,
            do_not_repeat=reply.do_not_repeat,
            measured=measured,
        )


def _asked_for(evidence: Evidence, where: tuple[int, int], tools: Sequence[ToolSpec]) -> list[str]:
    step = step_at(evidence.trajectory, where)
    if step is None or not step.observation.failed or isinstance(step.action, MalformedCall):
        return []
    return [tool.name for tool in remedies(step.action, step.observation.text, tools)]


def _cause(evidence: Evidence, where: tuple[int, int], asked: Sequence[str]) -> Cause:
    """Return the cause that a step shows by itself (ours; it reads no reference)."""
    step = step_at(evidence.trajectory, where)
    if evidence.trajectory.success:
        return Cause.UNSTABLE
    if step is None:
        return Cause.STOPPED_EARLY
    if isinstance(step.action, MalformedCall):
        return Cause.MALFORMED
    if not step.observation.failed:
        return Cause.WRONG_CALL
    return Cause.UNMET_PRECONDITION if asked else Cause.WRONG_ARGUMENT


def _worth_trying(reply: Reflection, evidence: Evidence, first: Sequence[str]) -> tuple[str, ...]:
    """Return the tools in ``first``, then those that the reflection names (ours)."""
    texts = (*reply.focus_pattern, *reply.exploration_objectives, reply.failure_cause, reply.instability_pattern)
    named = re.findall(r"[^\W\d](?:[\w.-]*\w)?", "\n".join(texts))
    return tuple(name for name in dict.fromkeys([*first, *named]) if name in evidence.task.tools)[:MOST_ITEMS]


def _problem(reply: Reflection, evidence: Evidence) -> str | None:
    unknown = [name for name in (reply.tool, *reply.explore) if name and name not in evidence.task.tools]
    if unknown:
        return f"{unknown[0]!r} is none of the tools"
    if reply.turn is None or reply.action is None:
        return None
    turns = evidence.trajectory.turns
    if not 1 <= reply.turn <= max(1, len(turns)):
        return f"turn {reply.turn} is not in the attempt, which has {len(turns)}"
    if turns and turns[reply.turn - 1].played:
        return f"turn {reply.turn} was played before the agent began"
    steps = len(turns[reply.turn - 1].steps) if turns else 0
    if not 1 <= reply.action <= steps + 1:
        return f"action {reply.action} is not in turn {reply.turn}, which has {steps}"
    return None


def _signal_text(evidence: Evidence) -> str:
    """Write why the attempt was chosen; of a kind that has no sentence here, its meaning."""
    signal = evidence.signal
    texts: dict[SignalKind, str] = {
        SignalKind.FORGETTING: "The agent solved this task before"
        + (f" ({signal.recent[0]} of its last {signal.recent[1]} attempts)" if signal.recent else "")
        + " and no longer does.",
        SignalKind.BOUNDARY: "Some attempts at this task succeed and some fail"
        + (f" ({signal.group[0]} of {signal.group[1]} succeeded)" if signal.group else "")
        + ".",
        SignalKind.RARE: f"The attempt holds a rarely seen combination of calls: {', '.join(signal.pattern)}.",
    }
    note = " This attempt succeeded." if signal.successful_evidence else ""
    return texts.get(signal.kind, f"The attempt is {KINDS[signal.kind].meaning}.") + note


def _counterpart_text(evidence: Evidence) -> str:
    """Write the rollout of the same group that ended the other way, to compare with; empty without one."""
    other = evidence.counterpart
    if other is None or other.outcome is None:
        return ""
    result = "succeeded" if other.success else "failed"
    return (
        f"\n\nAnother attempt at the same task, by the same policy, {result}. Compare: what separates success from "
        f"failure? Turns and actions of your reply are those of the first attempt.\n{trajectory_text(other)}\n\n"
        f"Its checks:\n{outcome_text(other.outcome)}"
    )
