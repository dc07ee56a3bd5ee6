"""Schema cues: what a tool's schema says about its parameters, said again in their descriptions."""

from __future__ import annotations

import json

from pydantic import JsonValue

from environments.base import Parameter, ToolSpec


def with_schema_cues(tool: ToolSpec) -> ToolSpec:
    """``tool`` with ``[required]`` and ``Allowed values: ...`` behind the descriptions (SEAL)."""
    return tool.model_copy(update={"parameters": tuple(map(_cued, tool.parameters))})


def _cued(parameter: Parameter) -> Parameter:
    cues = ["[required]"] if parameter.required else []
    if parameter.choices:
        cues.append(f"Allowed values: {', '.join(map(shown_value, parameter.choices))}.")
    return parameter.model_copy(update={"description": " ".join((parameter.description, *cues))})


def shown_value(value: JsonValue) -> str:
    """A documented value as text: strings as they are, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
