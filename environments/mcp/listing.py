"""Read what an MCP server lists: which tools agents may call, how they are documented, what shows the state."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence, Set
from typing import NamedTuple

from pydantic import JsonValue

from environments.base import ToolCall, ToolSpec
from environments.json_schema import documented_tool, plain_line
from environments.mcp.options import MCPOptions

GROUP = "server"
"""The group of every tool, and the class of every task: a server's own name is not read."""

MAX_TOOLS = 128
"""Tools that agents may call, at most (our choice): name some in the option ``tools`` of a larger server."""

_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_MOST_OF_A_DESCRIPTION = 1000

MAX_SCHEMAS = 512
"""Schemas of a list of tools that are read, at most (our choice)."""


class Listing(NamedTuple):
    """The tools of a server.

    ``tools`` are those that agents may call and ``names`` the server's own name of each. ``probe`` are the calls that
    show its state: without an option, of tools that say they only read and that need no argument. ``left_out`` maps the
    names of other tools to the reason. ``listed`` are all names of the server, ``destructive`` those of tools that may
    destroy by the protocol: neither do they only read, nor is destructiveHint false. ``fixed`` maps each name to the
    parameters that the option ``fixed`` sets. ``digest`` identifies the list.
    """

    tools: dict[str, ToolSpec]
    names: dict[str, str]
    probe: tuple[ToolCall, ...]
    left_out: dict[str, str]
    listed: frozenset[str]
    destructive: frozenset[str]
    fixed: dict[str, frozenset[str]]
    digest: str


def read_listing(listed: Sequence[JsonValue], options: MCPOptions) -> Listing:
    """Read what a server lists: which of its tools agents may call by the options, and how they are documented.

    Of each tool its name and hints are looked at first, and a schema is read only while the limits allow it.
    """
    resets = options.reset_call.name if options.reset_call else None
    tools: dict[str, ToolSpec] = {}
    names: dict[str, str] = {}
    left_out: dict[str, str] = {}
    hinted: list[ToolCall] = []
    read = 0
    for place, entry in enumerate(listed, 1):
        name = _name(entry)
        try:
            if name in names.values():
                raise ValueError("it is listed twice")
            reads, destroys = _reads(entry), _hint(entry, "destructiveHint")
            if not isinstance(destroys, bool | None):
                raise ValueError("its destructiveHint is neither true nor false")
            shows = options.probe_calls is None and reads
            why = None
            if destroys and not reads and not options.allow_destructive:
                why = "it says that it destroys: option allow_destructive lets agents call it"
            elif (options.tools is not None and name not in options.tools) or name == resets:
                why = "the options leave it out"
            elif len(tools) == MAX_TOOLS or (read >= MAX_SCHEMAS and options.tools is None):
                why = f"there are more than {len(tools)}: name those to use in the option tools"
            if why and (not shows or read >= MAX_SCHEMAS):
                raise ValueError(why)
            read += 1
            spec = _spec(entry, options.fixed.keys())
            if shows and not any(one.required for one in spec.parameters):
                hinted.append(ToolCall(name=name))
            if why:
                raise ValueError(why)
            if spec.name in tools:
                raise ValueError(f"{names[spec.name]} has its name in letters, digits and _")
        except ValueError as error:
            if len(left_out) < MAX_TOOLS:
                left_out.setdefault(plain_line(name, 80) or f"tool {place} of its list", str(error))
            continue
        tools[spec.name], names[spec.name] = spec, name
    whole = "\n".join(sorted(json.dumps(entry, sort_keys=True) for entry in listed))
    digest = hashlib.sha256(whole.encode()).hexdigest()
    probe = tuple(hinted) if options.probe_calls is None else options.probe_calls
    destructive = frozenset(_name(entry) for entry in listed if _may_destroy(entry))
    fixed = {_name(entry): frozenset(options.fixed.keys() & _properties(entry).keys()) for entry in listed}
    return Listing(tools, names, probe, left_out, frozenset(map(_name, listed)), destructive, fixed, digest)


def _may_destroy(entry: JsonValue) -> bool:
    return not (_reads(entry) or _hint(entry, "destructiveHint") is False)


def _reads(entry: JsonValue) -> bool:
    return _hint(entry, "readOnlyHint") is True


def _hint(entry: JsonValue, name: str) -> JsonValue:
    hints = entry.get("annotations") if isinstance(entry, dict) else None
    return hints.get(name) if isinstance(hints, dict) else None


def _name(entry: JsonValue) -> str:
    name = entry.get("name") if isinstance(entry, dict) else None
    return name if isinstance(name, str) else ""


def _properties(entry: JsonValue) -> dict[str, JsonValue]:
    """Return the parameters that a schema documents at its root, which a schema of strangers need not do."""
    schema = entry.get("inputSchema") if isinstance(entry, dict) else None
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def _spec(entry: JsonValue, fixed: Set[str]) -> ToolSpec:
    """Read an entry of a server's list, without the parameters that are ``fixed`` where they are at its schema's root.

    Raises ValueError with the reason where it is not a tool that can be called.
    """
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    name = re.sub(r"\W", "_", _name(entry), flags=re.ASCII)
    if not _NAME.fullmatch(name):
        raise ValueError("its name is not of 1 to 64 letters, digits and _, a letter or _ first")
    given = entry.get("inputSchema")
    if isinstance(given, dict) and fixed & _properties(entry).keys():
        required = given.get("required")
        given = {**given, "properties": {key: one for key, one in _properties(entry).items() if key not in fixed}}
        if isinstance(required, list):
            given["required"] = [key for key in required if key not in fixed]
    spec = documented_tool(
        name, GROUP, entry.get("description"), {} if given is None else given, _MOST_OF_A_DESCRIPTION
    )
    if elsewhere := [one.name for one in spec.parameters if one.name in fixed]:
        raise ValueError(f"it documents {elsewhere[0]}, which option fixed sets, elsewhere than at its schema's root")
    return spec
