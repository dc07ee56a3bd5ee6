"""Recovery hints: one sentence of advice for each kind of error, derived from the call and its documentation.

A hint holds names and values of the documentation only: nothing that the agent wrote, nothing of the task's reference.
It depends on the error alone, as in SEAL's released code; the paper's phi_err (equation 9) also has the diagnostic
context of earlier rollouts, H_t. The sentences are ours.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from enum import StrEnum

from pydantic import JsonValue

from environments.base import Action, Cue, MalformedCall, Observation, ObservationStatus, Parameter, ToolCall, ToolSpec
from environments.verification.replay import argument_problem

NAMES = 20
"""Most tools that one hint names (our choice): the first ones, or those with the most similar names."""

_NOT_AUTHENTICATED = re.compile(
    r"not authenticated|not logged in|log ?in first|no user is currently logged in|unauthori[sz]ed"
    r"|(?:invalid|missing) access token|token (?:expired|not initialized)",
    re.IGNORECASE,
)
_BAD_PATH = re.compile(
    r"no such (?:file|directory)|not a directory|unsupported path|path not allowed|already the root", re.IGNORECASE
)


class HintKind(StrEnum):
    """Kinds of errors that have a hint: SEAL's six (arXiv 2605.24426), and malformed calls (ours)."""

    MISSING_ARGUMENT = "missing_argument"
    UNEXPECTED_ARGUMENT = "unexpected_argument"
    BAD_PATH = "bad_path"
    NOT_AUTHENTICATED = "not_authenticated"
    UNKNOWN_TOOL = "unknown_tool"
    WRONG_TYPE = "wrong_type"
    MALFORMED = "malformed"


def hint_for(action: Action, observation: Observation, tools: Mapping[str, ToolSpec]) -> Cue | None:
    """Return the hint for ``observation``; None where it is not an error, and for an error of an unknown kind.

    ``tools`` documents the tools that the agent was shown, by name.
    """
    if isinstance(action, MalformedCall):
        if observation.status is not ObservationStatus.MALFORMED:
            return None
        say = "write one call in the format of the tools, a name and named arguments, and nothing else; the tools are"
        return _hint(HintKind.MALFORMED, f"{say} {_listed([*tools][:NAMES], len(tools))}.")
    if observation.status is not ObservationStatus.ERROR:
        return None
    tool = tools.get(action.name)
    if tool is None:
        return None if observation.calls else _unknown_tool(action.name, tools)
    return _argument_hint(action, tool) or _message_hint(observation.text)


def _hint(kind: HintKind, text: str) -> Cue:
    return Cue(kind=kind.value, text=text)


def _unknown_tool(name: str, tools: Mapping[str, ToolSpec]) -> Cue:
    near = difflib.get_close_matches(name[:100], tools, n=NAMES, cutoff=0.0)
    return _hint(HintKind.UNKNOWN_TOOL, f"there is no such tool; the tools are {_listed(near, len(tools))}.")


def _argument_hint(call: ToolCall, tool: ToolSpec) -> Cue | None:
    """Compare the arguments with the documentation: unknown names first, because a misspelt one is missing too."""
    known = [parameter.name for parameter in tool.parameters]
    if any(name not in known for name in call.arguments):
        takes = f"takes {', '.join(known)} and nothing else" if known else "takes no arguments"
        return _hint(HintKind.UNEXPECTED_ARGUMENT, f"{tool.name} {takes}.")
    missing = [one.name for one in tool.parameters if one.required and one.name not in call.arguments]
    if missing:
        return _hint(HintKind.MISSING_ARGUMENT, f"{tool.name} also needs {', '.join(missing)}.")
    wrong = next((one for one in tool.parameters if one.name in call.arguments and _is_wrong(call, tool, one)), None)
    return None if wrong is None else _hint(HintKind.WRONG_TYPE, f"{tool.name} takes {_kind_of(wrong)}.")


def _is_wrong(call: ToolCall, tool: ToolSpec, parameter: Parameter) -> bool:
    alone = call.model_copy(update={"arguments": {parameter.name: call.arguments[parameter.name]}})
    return argument_problem(alone, tool.model_copy(update={"parameters": (parameter,)})) is not None


def _kind_of(parameter: Parameter) -> str:
    kind = f"{parameter.type} of {parameter.items}" if parameter.items else parameter.type
    choices = f", from {', '.join(map(shown_value, parameter.choices))}" if parameter.choices else ""
    return f"{parameter.name} as {kind}{choices}"


def _message_hint(text: str) -> Cue | None:
    if _NOT_AUTHENTICATED.search(text):
        return _hint(HintKind.NOT_AUTHENTICATED, "log in first, with the tool that does it, then call this one again.")
    if _BAD_PATH.search(text):
        return _hint(HintKind.BAD_PATH, "look where you are and what is there, then give a name that exists there.")
    return None


def _listed(names: list[str], of: int) -> str:
    return ", ".join(names) + (" and others" if len(names) < of else "")


def shown_value(value: JsonValue) -> str:
    """Return a documented value as text: strings as they are, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
