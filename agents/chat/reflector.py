"""The chat reflector: a model reads a trajectory and reports where, how and why it failed (CoEvolve, section 3)."""

from __future__ import annotations

from pydantic import BaseModel, Field

from agents.chat.structured import StructuredModel
from agents.chat.transcript import outcome_text, prompt, tools_text, trajectory_text
from agents.evidence import failure_context
from agents.roles import RoleRefused
from environments.base import Environment
from memory.records import Cause, Evidence, FailureContext


class Reflection(BaseModel):
    """Where, how and why the attempt went wrong, and which tools to explore."""

    turn: int = Field(description="number of the turn, from 1, in which the first mistake shows")
    action: int = Field(description="number of the action in that turn, from 1; one past the last if it stopped early")
    cause: Cause = Field(description="the kind of mistake; 'unstable' for a success that is rare or not repeatable")
    tool: str = Field(description="name of the tool that the mistake is about")
    how: str = Field(description="one sentence: what happened")
    why: str = Field(description="one sentence: what the agent did not know or respect")
    explore: list[str] = Field(description="names of 1 to 8 tools worth trying around this, most promising first")


class ChatReflector:
    """Reflector on a chat model. Its prompt has the task's text, the attempt and its checks, never the reference."""

    def __init__(self, model: StructuredModel) -> None:
        self._model = model

    async def reflect(self, evidence: Evidence, environment: Environment) -> FailureContext:
        """Return the context of a signal. Raises RoleRefused when the reply stays unusable after one repair."""
        trajectory = evidence.trajectory
        if trajectory.outcome is None:
            raise RoleRefused(f"trajectory {trajectory.id} ended in an infrastructure error: nothing to read")
        messages = prompt(
            "reflect",
            tools=tools_text(environment.tools(evidence.task.tools)),
            signal=_signal_text(evidence),
            trajectory=trajectory_text(trajectory),
            outcome=outcome_text(trajectory.outcome),
        )
        reply, measured = await self._model.ask(
            Reflection,
            messages.system,
            messages.user,
            lambda reply, final: _problem(reply, evidence),
            subject=evidence.signal.id,
            iteration=evidence.signal.iteration,
        )
        return failure_context(
            evidence,
            cause=reply.cause,
            where=(reply.turn - 1, reply.action - 1),
            tool=reply.tool,
            how=reply.how,
            why=reply.why,
            explore=tuple(dict.fromkeys(reply.explore)),
            measured=measured,
        )


def _problem(reply: Reflection, evidence: Evidence) -> str | None:
    unknown = [name for name in (reply.tool, *reply.explore) if name not in evidence.task.tools]
    if unknown:
        return f"{unknown[0]!r} is none of the tools"
    turns = evidence.trajectory.turns
    if not 1 <= reply.turn <= max(1, len(turns)):
        return f"turn {reply.turn} is not in the attempt, which has {len(turns)}"
    steps = len(turns[reply.turn - 1].steps) if turns else 0
    if not 1 <= reply.action <= steps + 1:
        return f"action {reply.action} is not in turn {reply.turn}, which has {steps}"
    return None


def _signal_text(evidence: Evidence) -> str:
    signal = evidence.signal
    texts = {
        "forgetting": f"The agent solved this task before (score {signal.previous}) and no longer does.",
        "boundary": "Some attempts at this task succeed and some fail.",
        "rare": f"The attempt holds a rarely seen sequence of calls: {', '.join(signal.pattern)}.",
    }
    note = " No failed attempt showed it: this one succeeded." if signal.successful_evidence else ""
    return texts[signal.kind.value] + note
