"""Read what an agent can do on an OpenEnv server: its tools, or its actions as one tool."""

from __future__ import annotations

from pydantic import BaseModel, Field, JsonValue, ValidationError, field_validator

from environments.base import EnvironmentFault, ToolSpec
from environments.json_schema import plain_line
from environments.openenv.host import Host, Refused, Session
from environments.served.environment import documented_tool

ACT = "act"
"""The one tool of a server without tools."""

MOST_TOOLS = 256
_LONGEST = 2000


class _Tool(BaseModel):
    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")
    description: str | None = None
    input_schema: dict[str, JsonValue]


class _Listed(BaseModel):
    tools: list[_Tool] = Field(max_length=MOST_TOOLS)


class _Schemas(BaseModel):
    action: dict[str, JsonValue]

    @field_validator("action")
    @classmethod
    def _without_metadata(cls, action: dict[str, JsonValue]) -> dict[str, JsonValue]:
        properties = action.get("properties")
        if not isinstance(properties, dict):
            raise ValueError("it has no properties")
        return {**action, "properties": {key: one for key, one in properties.items() if key != "metadata"}}


def read_tools(session: Session, host: Host, group: str) -> dict[str, ToolSpec]:
    """Return the tools that the server lists, by name, else ``act``. Raises EnvironmentFault for unusable ones."""
    try:
        listed = session.step({"type": "list_tools"}).observation
    except Refused:  # its actions are not calls of tools
        listed = {"tools": [{"name": ACT, "description": "Take an action.", "input_schema": _schema_of(host)}]}
    try:
        found = {tool.name: _spec(tool, group) for tool in _Listed.model_validate(listed).tools}
    except (ValidationError, ValueError, RecursionError) as error:
        raise EnvironmentFault(f"the server lists tools that cannot be used: {plain_line(str(error), 300)}") from None
    if not found:
        raise EnvironmentFault("the server lists no tool")
    return found


def _schema_of(host: Host) -> dict[str, JsonValue]:
    try:
        return _Schemas.model_validate(host.get("schema")).action
    except ValidationError as error:
        raise EnvironmentFault(f"the server's /schema cannot be used: {plain_line(str(error), 300)}") from None


def _spec(tool: _Tool, group: str) -> ToolSpec:
    try:
        return documented_tool(tool.name, group, tool.description, tool.input_schema, _LONGEST)
    except ValueError as error:
        raise ValueError(f"{tool.name}: {error}") from None
