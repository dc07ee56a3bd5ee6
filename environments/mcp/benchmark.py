"""Define an MCP server as an environment that recipes and commands name, its states seen by probing it."""

from __future__ import annotations

import os
from copy import copy
from typing import Self

from pydantic import JsonValue, ValidationError

from environments.base import Environment, InputError, ToolCall
from environments.benchmark import TRUST_VARIABLE, Benchmark, KnownValue, explain
from environments.mcp.options import FILES, MCPOptions, ServerStart
from environments.mcp.server import GROUP, ServerFleet, fleet_of, probe_of
from environments.served.environment import ServedEnvironment

Plain = str | int | float


class MCPEnvironment(ServedEnvironment):
    """The environment of an MCP server: also ``environments.base.Recording``."""

    name = "mcp"
    group = GROUP

    def __init__(self, fleet: ServerFleet, options: MCPOptions) -> None:
        super().__init__(fleet, fleet.listing.tools)
        self.fleet = fleet
        self.given = options.start_states
        for start in self.given:
            self._check(start)
        self._starts = tuple(
            self.start_state(n, start.model_dump(mode="json", exclude_none=True)) for n, start in enumerate(self.given)
        )

    def recorded(self) -> Self:
        """Return the same environment, in which a place that was seen before is not played again."""
        found = copy(self)
        found._cached = True
        return found

    def read_start(self, given: JsonValue) -> ServerStart:
        """Return the start that a task names. Raises InputError for what is none."""
        try:
            start = ServerStart.model_validate(given)
        except ValidationError as error:
            raise InputError(
                f"the initial state of the task is not a start of an MCP server: {explain(error)}"
            ) from None
        self._check(start)
        return start

    def _check(self, start: ServerStart) -> None:
        listing = self.fleet.listing
        for call in start.calls:
            if call.name not in listing.listed:
                raise InputError(f"a start calls {call.name!r:.80}, which the MCP server does not have")
            if call.name not in listing.names.values() and "destroys" in listing.left_out.get(call.name, ""):
                raise InputError(f"a start calls {call.name}: {listing.left_out[call.name]}")


class MCP(Benchmark[MCPOptions]):
    """An MCP server of the user's. It holds nothing out: name a file of tasks in ``evaluation.tasks``."""

    name = MCPEnvironment.name
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
        fleet = fleet_of(options)
        listing = fleet.listing
        if not listing.tools:
            why = next(iter(listing.left_out.items()), None)
            raise InputError(
                "environment.options: the MCP server has no tool for agents"
                + (f": {why[0]} is left out, {why[1]}" if why else "")
            )
        named = [*probe_of(options, listing), *([options.reset_call] if options.reset_call else [])]
        for name in sorted({*(options.tools or ()), *(call.name for call in named)} - listing.listed):
            raise InputError(f"environment.options: the MCP server has no tool {name!r}")
        return MCPEnvironment(fleet, options)

    def notes(self, environment: Environment) -> tuple[str, ...]:
        """Return the tools for agents, those left out with the reason, and what shows the state."""
        if not isinstance(environment, MCPEnvironment):
            return ()
        options, listing = environment.fleet.options, environment.fleet.listing
        shown = [*(call.name for call in probe_of(options, listing)), *([FILES] if options.compares_files else [])]
        return (
            f"tools      {', '.join(listing.tools)}",
            *(f"left out   {name}: {why}" for name, why in listing.left_out.items()),
            f"state      {', '.join(shown) or 'not seen: no tool says that it only reads, name some as probe'}",
        )

    def known_values(self, environment: Environment) -> tuple[KnownValue, ...]:
        """Return what the user's own calls (starts and probe) give to parameters, also to those of the same name.

        A parameter that no such call of its tool gives takes what calls of other tools do: most servers name one thing
        alike throughout, and a path that all tools want is not found by chance.
        """
        if not isinstance(environment, MCPEnvironment):
            return ()
        listing = environment.fleet.listing
        named = {own: name for name, own in listing.names.items()}
        calls: list[ToolCall] = [*probe_of(environment.fleet.options, listing)]
        given: dict[str, dict[tuple[str, Plain], frozenset[Plain]]] = {}
        for call in (*calls, *(call for start in environment.given for call in start.calls)):
            plain = {key: value for key, value in call.arguments.items() if isinstance(value, str | int | float)}
            for key, value in plain.items():
                given.setdefault(key, {})[named.get(call.name, ""), value] = frozenset(plain.values()) - {value}
        found = []
        for tool in listing.tools.values():
            for parameter in (one for one in tool.parameters if one.name in given):
                own = {place: near for place, near in given[parameter.name].items() if place[0] == tool.name}
                for (_, value), near in (own or given[parameter.name]).items():
                    found.append(KnownValue(tool.name, parameter.name, value, near))
        return tuple(dict.fromkeys(found))

    def evaluation_options(self, options: MCPOptions) -> dict[str, JsonValue]:
        """Return all options: without them there is no server."""
        return options.model_dump(mode="json", exclude_defaults=True)


BENCHMARK = MCP()
