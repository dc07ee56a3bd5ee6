"""Schema cues: repeat what a tool's schema says about its parameters in their descriptions, and a note on them.

SEAL's phi_schema (arXiv 2605.24426, appendix D.2; the marks are the paper's, the wording of the note is ours).
"""

from __future__ import annotations

import json

from pydantic import JsonValue

from environments.base import Parameter, ToolSpec

SCHEMA_NOTE = (
    "About the tools: give every argument that is marked [required], as its description says, and call no tool that is "
    "not documented here."
)
"""The sentence of the system message that goes with the marks."""


def with_schema_cues(tool: ToolSpec) -> ToolSpec:
    """Return ``tool`` with ``[required]`` and ``Allowed values: ...`` after the parameters' descriptions."""
    return tool.model_copy(update={"parameters": tuple(map(_cued, tool.parameters))})


def _cued(parameter: Parameter) -> Parameter:
    cues = ["[required]"] if parameter.required else []
    if parameter.choices:
        cues.append(f"Allowed values: {', '.join(map(shown_value, parameter.choices))}.")
    return parameter.model_copy(update={"description": " ".join((parameter.description, *cues))})


def shown_value(value: JsonValue) -> str:
    """Return a documented value as text: strings as they are, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
