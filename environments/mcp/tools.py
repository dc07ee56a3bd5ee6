"""Read the tools that a server lists: which an agent may call, how they are documented, and why others are left out."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from environments.base import ToolSpec
from environments.json_schema import plain_line
from environments.served.environment import documented_tool

if TYPE_CHECKING:
    from mcp_types import Tool

GROUP = "server"
"""The group of every tool, and the class of every task: a server's own name is not read."""

MAX_TOOLS = 128
"""Tools that agents may call, at most (our choice): name some in the option ``tools`` of a larger server."""

_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_MOST_OF_A_DESCRIPTION = 1000


class Listing(NamedTuple):
    """The tools of a server.

    ``tools`` are those that agents may call and ``names`` the server's own name of each. ``probes`` are names of tools
    that say they only read and that need no argument. ``left_out`` maps the names of other tools to the reason.
    ``listed`` are all names of the server, and ``digest`` identifies what it lists.
    """

    tools: dict[str, ToolSpec]
    names: dict[str, str]
    probes: tuple[str, ...]
    left_out: dict[str, str]
    listed: frozenset[str]
    digest: str


def read_listing(
    listed: Sequence[Tool], chosen: Collection[str] | None = None, kept: Collection[str] = (), destructive: bool = False
) -> Listing:
    """Read what a server lists.

    Args:
        listed: its tools.
        chosen: the server's names of those that agents may call; None: all.
        kept: names of tools that agents may not call: the one that resets.
        destructive: whether agents may call tools that say they destroy.
    """
    tools: dict[str, ToolSpec] = {}
    names: dict[str, str] = {}
    left_out: dict[str, str] = {}
    probes = []
    for tool in listed:
        shown = plain_line(tool.name, 80) or "a tool without a name"
        try:
            if tool.name in names.values():
                raise ValueError("it is listed twice")
            spec = _spec(tool)
            hints = tool.annotations
            if hints is not None and hints.read_only_hint and not any(one.required for one in spec.parameters):
                probes.append(tool.name)
            if hints is not None and hints.destructive_hint and not hints.read_only_hint and not destructive:
                raise ValueError("it says that it destroys: option allow_destructive lets agents call it")
            if (chosen is not None and tool.name not in chosen) or tool.name in kept:
                raise ValueError("the options leave it out")
            if spec.name in tools:
                raise ValueError(f"{names[spec.name]} has its name in letters, digits and _")
            if len(tools) == MAX_TOOLS:
                raise ValueError(f"there are more than {MAX_TOOLS}: name those to use in the option tools")
        except ValueError as error:
            if len(left_out) < MAX_TOOLS:
                left_out[shown] = str(error)
            continue
        tools[spec.name], names[spec.name] = spec, tool.name
    written = "\n".join(sorted(tool.model_dump_json() for tool in listed))
    digest = hashlib.sha256(written.encode(errors="replace")).hexdigest()
    return Listing(tools, names, tuple(probes), left_out, frozenset(tool.name for tool in listed), digest)


def _spec(tool: Tool) -> ToolSpec:
    """Return the documentation of a tool. Raises ValueError with the reason where it has none that can be used."""
    name = re.sub(r"\W", "_", tool.name, flags=re.ASCII)
    if not _NAME.fullmatch(name):
        raise ValueError("its name is not of 1 to 64 letters, digits and _")
    spec = documented_tool(name, GROUP, tool.description, tool.input_schema, _MOST_OF_A_DESCRIPTION)
    for parameter in spec.parameters:
        if not _NAME.fullmatch(parameter.name):
            raise ValueError(f"its parameter {parameter.name!r:.80} is not of letters, digits and _")
    return spec
