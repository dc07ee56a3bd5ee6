"""Define an MCP server as an environment that recipes and commands name: options, and what they may run."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from pydantic import Field, JsonValue

from environments.addresses import Address
from environments.base import Environment, InputError, ToolCall
from environments.benchmark import TRUST_VARIABLE, Benchmark, KnownValue, Options
from environments.checkout import append_working_directory
from environments.declared import where
from environments.mcp.connection import handed_on
from environments.mcp.environment import NAME, MCPEnvironment
from environments.mcp.fleet import OWN_FOLDER, ServerPlan, ServerStart, fleet_of
from environments.mcp.transports import ServerLaunch

Plain = str | int | float

FILES = "files"
"""The word of the options ``probe`` and ``reset`` for the files of the server's folder."""


class MCPOptions(Options):
    """Options of the environment; one of ``command``, ``factory`` and ``url`` is given."""

    command: tuple[str, ...] = Field(
        (),
        description="the program and its arguments, for example [mcp-server-git]; {folder} becomes a folder of the "
        "server's own, new for each, in which it then runs; it runs as you, so it needs "
        f"{TRUST_VARIABLE}=1 in the environment",
    )
    factory: str | None = Field(
        None,
        description="module:function without arguments that returns a new server of the package mcp, for servers in "
        f"this process: the fastest; it needs {TRUST_VARIABLE}=1, too",
    )
    url: Address | None = Field(None, description="the address of a running server (streamable HTTP)")
    env: tuple[str, ...] = Field(
        (), description="names of environment variables that the command gets, beside PATH and LANG; no others"
    )
    starts: tuple[tuple[ToolCall, ...] | ServerStart, ...] = Field(
        ((),),
        min_length=1,
        description="start states: each a list of calls {name, arguments}, or {files: {path: text}, calls: [...]} with "
        "files of {folder}; tasks begin in one of them",
    )
    probe: tuple[str | ToolCall, ...] | None = Field(
        None,
        description="what shows the state: names of tools, calls {name, arguments}, and the word files for those of "
        "{folder}; null: every tool with readOnlyHint that needs no argument, and files where the command has {folder}",
    )
    reset: str | ToolCall | None = Field(
        None,
        description="what brings a server to its beginning: a tool, or the word files, where all that it keeps is in "
        "{folder}, which is then emptied; null: a new server for each episode, which takes its time to start",
    )
    tools: tuple[str, ...] | None = Field(None, description="names of the tools that agents may call; null: all")
    allow_destructive: bool = Field(False, description="true: agents may call tools with destructiveHint")
    servers: int = Field(4, ge=1, le=64, description="servers that are kept running at a time, at most")
    call_seconds: float = Field(30.0, gt=0, le=3600, description="timeout of each call; a start has 30 s at least")


class MCP(Benchmark[MCPOptions]):
    """An MCP server of the user's. It holds nothing out: name a file of tasks in ``evaluation.tasks``."""

    name = NAME
    options_type = MCPOptions
    brought = True

    def open(self, options: MCPOptions) -> Environment:
        """Start the server and open the environment.

        Raises InputError where the options name no server or several, it does not start, or it has no tool for agents.
        """
        given = [one for one in ("command", "factory", "url") if getattr(options, one)]
        if len(given) != 1:
            raise InputError("environment.options: give one of command, factory and url: how the MCP server is reached")
        if given != ["url"] and os.environ.get(TRUST_VARIABLE) != "1":
            raise InputError(
                f"environment.options.{given[0]}: a recipe does not decide which programs run: if you trust this one, "
                f"set the environment variable {TRUST_VARIABLE} to 1"
            )
        fleet = fleet_of(_plan(options))
        if not fleet.listing.tools:
            why = next(iter(fleet.listing.left_out.items()), None)
            raise InputError(
                "environment.options: the MCP server has no tool for agents"
                + (f": {why[0]} is left out, {why[1]}" if why else "")
            )
        unknown = set(options.tools or ()) | {call.name for call in fleet.probe} | _names(options.reset)
        for name in sorted(unknown - fleet.listing.listed):
            raise InputError(f"environment.options: the MCP server has no tool {name!r}")
        return MCPEnvironment(
            fleet, [one if isinstance(one, ServerStart) else ServerStart(calls=one) for one in options.starts]
        )

    def notes(self, environment: Environment) -> tuple[str, ...]:
        """Return the tools for agents, those left out with the reason, and what shows the state."""
        if not isinstance(environment, MCPEnvironment):
            return ()
        fleet = environment.fleet
        shown = [*(call.name for call in fleet.probe), *([FILES] if fleet.plan.files else [])]
        return (
            f"tools      {', '.join(fleet.listing.tools)}",
            *(f"left out   {name}: {why}" for name, why in fleet.listing.left_out.items()),
            f"state      {', '.join(shown) or 'not seen: no tool says that it only reads, name some as probe'}",
        )

    def known_values(self, environment: Environment) -> tuple[KnownValue, ...]:
        """Return what the user's own calls (starts and probe) give to parameters, also to those of the same name.

        A parameter that no such call of its tool gives takes what calls of other tools do: most servers name one thing
        alike throughout, and a path that all tools want is not found by chance.
        """
        if not isinstance(environment, MCPEnvironment):
            return ()
        named = {own: name for name, own in environment.fleet.listing.names.items()}
        given: dict[str, dict[tuple[str, Plain], frozenset[Plain]]] = {}
        for call in (*environment.fleet.probe, *environment.start_calls()):
            plain = {key: value for key, value in call.arguments.items() if isinstance(value, str | int | float)}
            for key, value in plain.items():
                given.setdefault(key, {})[named.get(call.name, ""), value] = frozenset(plain.values()) - {value}
        found = []
        for tool in environment.fleet.listing.tools.values():
            for parameter in (one for one in tool.parameters if one.name in given):
                own = {place: near for place, near in given[parameter.name].items() if place[0] == tool.name}
                for (_, value), near in (own or given[parameter.name]).items():
                    found.append(KnownValue(tool.name, parameter.name, value, near))
        return tuple(dict.fromkeys(found))

    def evaluation_options(self, options: MCPOptions) -> dict[str, JsonValue]:
        """Return all options: without them there is no server."""
        return options.model_dump(mode="json", exclude_defaults=True)


def _plan(options: MCPOptions) -> ServerPlan:
    foldered = any(OWN_FOLDER in part for part in options.command)
    probe = options.probe
    return ServerPlan(
        launch=ServerLaunch(
            command=options.command,
            variables=handed_on(options.env),
            url=options.url,
            factory=_factory(options.factory) if options.factory else None,
        ),
        probe=None if probe is None else tuple(_call(one) for one in probe if one != FILES),
        files=foldered if probe is None else FILES in probe,
        reset=_call(options.reset) if options.reset not in (None, FILES) else None,
        refilled=options.reset == FILES,
        servers=options.servers,
        seconds=options.call_seconds,
        chosen=None if options.tools is None else frozenset(options.tools),
        destructive=options.allow_destructive,
    )


def _call(given: str | ToolCall | None) -> ToolCall:
    return given if isinstance(given, ToolCall) else ToolCall(name=given or "")


def _names(reset: str | ToolCall | None) -> set[str]:
    return {_call(reset).name} if reset not in (None, FILES) else set()


def _factory(name: str) -> Callable[[], Any]:
    module, _, attribute = name.partition(":")
    append_working_directory()
    try:
        found: object = getattr(import_module(module), attribute)
    except Exception as error:
        raise InputError(f"environment.options.factory: {name} cannot be imported: {where(error)}") from error
    if not callable(found):
        raise InputError(f"environment.options.factory: {name} cannot be called: name a function")
    return found


BENCHMARK = MCP()
