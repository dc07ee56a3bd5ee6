"""Tools, trajectories and interactions as text for a prompt. Nothing here reads a reference program."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agents.evidence import executed
from environments.base import Outcome, Parameter, ToolSpec, TurnOutcome
from memory.records import FailureContext, Interaction, Trajectory

MAX_OBSERVATION = 1500


def tools_text(tools: Sequence[ToolSpec]) -> str:
    """One paragraph a tool: its name and description, and a line for each parameter."""
    return "\n".join(_tool_text(tool) for tool in tools)


def trajectory_text(trajectory: Trajectory) -> str:
    """User turns, actions and observations, numbered from 1 like ``where`` in the reply."""
    lines = []
    for t, turn in enumerate(trajectory.turns, start=1):
        lines.append(f"Turn {t}, user: {turn.text}")
        for s, step in enumerate(turn.steps, start=1):
            lines.append(f"  {t}.{s} action: {executed(step.action)}")
            lines.append(f"  {t}.{s} answer: {_cut(step.observation.text)}")
        lines.append("  the agent ended the turn" if turn.ended else "  the turn was cut off by a limit")
    return "\n".join(lines)


def outcome_text(outcome: Outcome) -> str:
    """Which checks of which turn failed, in words; never what the reference did."""
    lines = ["The attempt succeeded." if outcome.success else f"The attempt failed: {outcome.failure}."]
    for t, turn in enumerate(outcome.turns, start=1):
        lines.append(f"Turn {t}: {_checks(turn)}, {turn.calls} calls, {turn.malformed} malformed.")
    return "\n".join(lines)


def context_text(context: FailureContext) -> str:
    """What is known of a weakness. The setup is left out: it may hold reference calls of earlier turns."""
    if context.kind is None:
        return "There is no particular weakness: find out what the tools can do here."
    lines = [
        f"Weakness: {context.kind}; cause: {context.cause}; tool: {context.tool or 'unknown'}",
        f"How: {context.how}",
        f"Why: {context.why}",
    ]
    if context.error_class:
        lines.append(f"Error: {context.error_class}")
    if context.facts:
        lines.append("Values around it: " + "; ".join(context.facts))
    if context.explore:
        lines.append("Worth reaching: " + ", ".join(context.explore))
    return "\n".join(lines)


def interactions_text(interactions: Sequence[Interaction]) -> str:
    """Numbered from 0, with the run each belongs to."""
    if not interactions:
        return "(none yet)"
    return "\n".join(
        f"[{number}] run {one.run}: {executed(one.action)} -> {one.observation.status}"
        f"{', changed the state' if one.changed else ''}: {_cut(one.observation.text)}"
        for number, one in enumerate(interactions)
    )


def _tool_text(tool: ToolSpec) -> str:
    return "\n".join([f"{tool.name}: {tool.description}", *(_parameter_text(p) for p in tool.parameters)])


def _parameter_text(parameter: Parameter) -> str:
    need = "required" if parameter.required else f"default {json.dumps(parameter.default)}"
    return f"  {parameter.name} ({parameter.type}, {need}): {parameter.description}"


def _checks(turn: TurnOutcome) -> str:
    named = {"instances": turn.instances, "state": turn.state, "response": turn.response}
    words = {True: "right", False: "wrong", None: "not judged"}
    return ", ".join(f"{name} {words[value]}" for name, value in named.items())


def _cut(text: str) -> str:
    return text if len(text) <= MAX_OBSERVATION else f"{text[:MAX_OBSERVATION]} ... ({len(text)} characters)"
