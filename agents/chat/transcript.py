"""Prompts of the chat roles, and tools, trajectories and interactions as text for them.

Prompts are text files with ``$name`` placeholders in ``agents/chat/prompts``. Text that an environment, a user or a
policy wrote goes between tags (``data``); every system message ends with ``data.txt``, which declares tagged text to be
data and never instructions. Nothing here reads a reference program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template

from pydantic import JsonValue

from agents.evidence import executed
from environments.base import Action, MalformedCall, Observation, Outcome, Parameter, ToolCall, ToolSpec, TurnOutcome
from environments.verification.programs import program_tool
from memory.records import FailureContext, Interaction, Trajectory, Unsignalled

_FOLDER = Path(__file__).parent / "prompts"


def prompt(name: str, **values: str) -> tuple[str, str]:
    """Fill the placeholders of a role's prompt: its system and its user message. Raises KeyError for one not given."""
    system = f"{_template(f'{name}_system').substitute(values)}\n\n{_template('data').substitute()}"
    return system, _template(f"{name}_user").substitute(values)


@cache
def _template(name: str) -> Template:
    return Template((_FOLDER / f"{name}.txt").read_text(encoding="utf-8").strip())


MAX_OBSERVATION = 1500
"""Most characters of an observation."""
MAX_ACTION = 600
"""Most characters of an action."""
MAX_PROGRAM = 4000
"""Most characters of an action that is a program."""
MAX_WHOLE = 60_000
"""Characters within which the newest answers to programs are not cut: they may be documentation, which is long."""

_TAGS = ("observation", "action", "user", "weakness")
_TAG = re.compile(rf"<(?=\s*/?\s*(?:{'|'.join(_TAGS)})\b)", re.IGNORECASE)


def data(tag: str, text: str, most: int | None = None) -> str:
    """Put ``text`` between ``<tag>`` and ``</tag>``, cut after ``most`` characters and with such tags escaped."""
    shown = text if most is None or len(text) <= most else f"{text[:most]} ... ({len(text)} characters)"
    return f"<{tag}>{_TAG.sub('&lt;', shown)}</{tag}>"


def tools_text(tools: Sequence[ToolSpec]) -> str:
    """Write one paragraph per tool: its name and description, and a line for each parameter."""
    return "\n".join(_tool_text(tool) for tool in tools)


def acting_tools(tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools to document in a prompt for acting: only the one that runs programs, if there is one.

    Programs can call all the others and look up their documentation.
    """
    program = program_tool(tools)
    return tuple(tools) if program is None else (program,)


def preface_text(preface: str) -> str:
    """Write an environment's preface as the beginning of a prompt; empty without one."""
    return f"What is told to everybody who acts in the environment:\n{preface}\n\n" if preface else ""


def trajectory_text(trajectory: Trajectory) -> str:
    """Write user turns, actions and observations, numbered from 1 like ``where`` in the reply."""
    lines = []
    for t, turn in enumerate(trajectory.turns, start=1):
        given = " (given: played before the agent began, and right)" if turn.played else ""
        lines.append(f"Turn {t}{given}, user: {data('user', turn.full_text)}")
        for s, step in enumerate(turn.steps, start=1):
            lines.append(f"  {t}.{s} action: {action_text(step.action)}")
            lines.append(f"  {t}.{s} answer: {data('observation', step.observation.full_text, MAX_OBSERVATION)}")
        if not turn.played:
            lines.append("  the agent ended the turn" if turn.ended else "  the turn was cut off by a limit")
    return "\n".join(lines)


def outcome_text(outcome: Outcome) -> str:
    """Write which checks of which turn failed, without anything of the reference."""
    lines = ["The attempt succeeded." if outcome.success else f"The attempt failed: {outcome.failure}."]
    for t, turn in enumerate(outcome.turns, start=1):
        lines.append(f"Turn {t}: {_checks(turn)}, {turn.calls} calls, {turn.malformed} malformed.")
    return "\n".join(lines)


def context_text(context: FailureContext) -> str:
    """Write a failure context, and how to explore around a weakness of its kind (the paper's Figure 10, in our words).

    The setup is left out, because it may contain reference calls of earlier turns.
    """
    guidance = f"guidance_{context.kind}"  # of a kind without advice there is no such file
    if not (_FOLDER / f"{guidance}.txt").is_file():
        return _weakness_text(context)
    return f"{_weakness_text(context)}\n\n{_template(guidance).substitute()}"


def _weakness_text(context: FailureContext) -> str:
    if context.kind in (None, Unsignalled.UNGUIDED):
        return "There is no particular weakness: find out what the tools can do here."
    if context.kind is Unsignalled.COVERAGE:
        aims = " ".join(context.exploration_objectives)
        return f"There is no particular weakness: tasks are wanted. {context.why} {aims} Worth reaching beside it: " + (
            ", ".join(name for name in context.explore if name not in context.focus_pattern) or "nothing in particular"
        )
    seen = "none, a call drawn at random" if context.cause is None else f"{context.kind}; cause: {context.cause}"
    told = {
        "Summary": context.summary,
        "Weakness": f"{seen}; tool: {context.tool or 'unknown'}",
        "How": context.how,
        "Why": context.why,
        "When it goes wrong": context.instability_pattern,
        "Error": context.error_class,
        "Diagnosis of the turn": context.label,
        "Values around it": "; ".join(context.facts),
        "Worth reaching": ", ".join(context.explore),
    }
    lines = [f"{title}: {said}" for title, said in told.items() if said]
    for title, items in (
        ("Practise", context.focus_pattern),
        ("Find out", context.exploration_objectives),
        ("Do not repeat", context.do_not_repeat),
    ):
        lines += [f"{title}:", *(f"- {item}" for item in items)] if items else []
    return data("weakness", "\n".join(lines))


def interactions_text(interactions: Sequence[Interaction], program: ToolSpec | None = None) -> str:
    """Write interactions, numbered from 0, with their runs; ``program`` is the tool that runs programs, if any."""
    if not interactions:
        return "(none yet)"
    answers = _answers([one.observation for one in interactions], program)
    return "\n".join(
        f"[{number}] run {one.run}: {action_text(one.action, program)} -> {one.observation.status}"
        f"{', changed the state' if one.changed else ''}: {answer}"
        for number, (one, answer) in enumerate(zip(interactions, answers, strict=True))
    )


def attempt_text(actions: Sequence[tuple[Action, Observation]], program: ToolSpec | None = None) -> str:
    """Write the model's own actions in one user turn and their observations, in order.

    ``program`` is the tool that runs programs, if any.
    """
    if not actions:
        return "(no action yet)"
    answers = _answers([observation for _, observation in actions], program)
    shown = zip((action_text(action, program) for action, _ in actions), answers, strict=True)
    return "\n".join(f"{action} -> {answer}" for action, answer in shown)


def _tool_text(tool: ToolSpec) -> str:
    return "\n".join([f"{tool.name}: {tool.description}", *(_parameter_text(p) for p in tool.parameters)])


def _parameter_text(parameter: Parameter, indent: str = "  ") -> str:
    need = "required" if parameter.required else f"default {json.dumps(parameter.default)}"
    inner = parameter.item or parameter
    kind = f"array of {inner.type}" if parameter.item else parameter.type
    line = f"{indent}{parameter.name} ({kind}, {need}): {parameter.description}"
    return "\n".join([line, *(_parameter_text(field, indent + "  ") for field in inner.fields)])


def _checks(turn: TurnOutcome) -> str:
    named = {"instances": turn.instances, "state": turn.state, "response": turn.response}
    words = {True: "right", False: "wrong", None: "not judged"}
    return ", ".join(f"{name} {words[value]}" for name, value in named.items())


def _answers(observations: Sequence[Observation], program: ToolSpec | None) -> list[str]:
    """Write observations, of programs the newest ones whole."""
    left = 0 if program is None else MAX_WHOLE
    answers = []
    for observation in reversed(observations):
        left -= len(observation.full_text)
        answers.append(data("observation", observation.full_text, MAX_OBSERVATION if left < 0 else None))
    return answers[::-1]


def action_text(action: Action, program: ToolSpec | None = None) -> str:
    """Write an action; ``program`` is the tool that runs programs, if any, whose code is shown as it is."""
    if program is not None and program.program is not None and isinstance(action, ToolCall):
        code = action.arguments.get(program.program.name)
        if action.name == program.name and isinstance(code, str):
            return data("action", f"{action.name}:\n{code}\n", MAX_PROGRAM)
    return data("action", executed(action), MAX_ACTION)


_MAX_NAME = 80


def offered(name: str, arguments: Mapping[str, JsonValue], tools: Collection[str]) -> Action:
    """Turn a model's reply into an action: a call, or a malformed call if ``name`` is not one of ``tools``."""
    if name in tools:
        return ToolCall(name=name, arguments=dict(arguments))
    shown = name[:_MAX_NAME]
    return MalformedCall(text=shown, reason=f"{shown!r} is none of the tools")
