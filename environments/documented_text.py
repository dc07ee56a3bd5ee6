"""User turns for tools that have no wordings of their own: written from the tools' documentation, in any environment.

A clause is the first sentence of the tool's description, with each value behind the beginning of its parameter's
description: ``put one parcel from the depot into a van (label of the parcel "lamp", the van north)``. Names of tools
and parameters are left out. Documented choices that are plain words stand bare, other strings as JSON literals in
double quotes and numbers as JSON numbers, so that values can be read back (the conventions of BFCL's wordings).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping

from pydantic import JsonValue

from environments.base import Environment, Parameter, ToolCall, ToolSpec
from environments.task_text import Spec, forced_calls, render_turns

_SENTENCE_END = re.compile(r"(?<=\w\w)[.;!?](?=\s|$)")
_DETAIL = re.compile(r"\s*[,;:.(\[]")
_WORD = re.compile(r"[A-Za-z_]\w*")
_OPENINGS = ("", "please ", "i want you to ")


def render_documented(environment: Environment, spec: Spec, rng: random.Random) -> Spec:
    """``spec`` with its user turns written, drawn with ``rng``; equal arguments give equal text.

    Raises InputError for a task that the environment cannot open, a tool that it does not have and a turn without
    calls.
    """
    names = sorted({call.name for turn in spec.reference for call in turn})
    tools = {tool.name: tool for tool in environment.tools(names)}
    return render_turns(spec, forced_calls(environment, spec), lambda call, drawn: clause(call, tools, drawn), rng)


def clause(
    call: ToolCall, tools: Mapping[str, ToolSpec], rng: random.Random, words: Mapping[str, str | None] | None = None
) -> str:
    """The call as one clause with all of its values. An argument that equals its documented default is left out.

    ``words`` has phrases that say some arguments, by name, instead, and None for those that are left out.
    """
    tool = tools[call.name]
    words = words or {}
    said = []
    for name, value in call.arguments.items():
        parameter = tool.parameter(name)
        if parameter is None or (value == parameter.default and not parameter.required):
            continue
        if name not in words:
            said.append(f"{_start(_DETAIL, parameter.description)} {_words(value, parameter)}")
        elif words[name] is not None:
            said.append(str(words[name]))
    values = f" ({', '.join(said)})" if said else ""
    return f"{rng.choice(_OPENINGS)}{_start(_SENTENCE_END, tool.description)}{values}"


def _start(end: re.Pattern[str], text: str) -> str:
    """The text up to the first ``end``, with a small first letter unless it begins with an abbreviation."""
    start = end.split(text.strip(), maxsplit=1)[0]
    return start[:1].lower() + start[1:] if not start[1:2].isupper() else start


def _words(value: JsonValue, parameter: Parameter) -> str:
    if isinstance(value, list):
        return " and ".join(_words(item, parameter) for item in value) or "nothing"
    if isinstance(value, str) and value in parameter.choices and _WORD.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)
