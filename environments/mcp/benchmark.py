"""Define an MCP server as an environment that recipes and commands name.

Agents may call some of its tools. A server may have a folder of its own. Its state is seen by a probe.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from typing import Self

from pydantic import JsonValue, ValidationError

from environments.addresses import origin_of
from environments.base import SAMPLE, Environment, EnvironmentFault, InputError, StartState, ToolCall
from environments.benchmark import Benchmark, KnownValue, explain
from environments.json_schema import notes_of_left_out, why_none
from environments.mcp.listing import GROUP
from environments.mcp.options import FILES, OWN_FOLDER, MCPOptions, ServerStart
from environments.mcp.server import ServerFleet, fleet_of
from environments.served import ServedEnvironment, ServerPlace
from environments.trust import Program, how_to_bind, is_trusted

Plain = str | int | float


class MCPEnvironment(ServedEnvironment):
    """The environment of an MCP server: also ``environments.base.Recording``."""

    name = "mcp"
    group = GROUP

    def __init__(self, fleet: ServerFleet, options: MCPOptions) -> None:
        super().__init__(fleet, fleet.listing.tools)
        self.fleet = fleet
        self._trusted = options.url is None or is_trusted(origin_of(options.url))
        for key, calls in (("probe", fleet.listing.probe), ("reset", [call for call in [options.reset_call] if call])):
            for call in calls:
                self._refuse_destructive(call, f"environment.options.{key}")
                self._refuse_fixed(call, f"environment.options.{key}")
        if options.allow_destructive:
            self._refuse_destructive(None, "environment.options.allow_destructive")
        self.given = options.start_states
        for start in self.given:
            self._check(start)
        whole = [
            self.start_state(n, start.model_dump(mode="json", exclude_none=True)) for n, start in enumerate(self.given)
        ]
        self._starts = self._sampled(whole, options.samples) if options.samples else tuple(whole)

    def _sampled(self, whole: Sequence[StartState], most: int) -> tuple[StartState, ...]:
        """Return each start with one sample of its records after another, a sample of each before the next."""
        found: dict[tuple[int, int], StartState] = {}
        for n, (start, given) in enumerate(zip(whole, self.given, strict=True)):
            try:
                with self.fleet.at(ServerPlace(given)) as seat:
                    drawn = seat.server.sample(most)
            except EnvironmentFault as fault:
                raise InputError(f"environment.options.samples: {start.id} cannot be looked at: {fault}") from None
            for k, sample in enumerate(drawn or [None]):
                state = start.initial_state if sample is None else {**start.initial_state, SAMPLE: sample}
                found[k, n] = start.model_copy(update={"id": f"{start.id}-{k}", "initial_state": state})
        if not any(SAMPLE in start.initial_state for start in found.values()):
            raise InputError("environment.options.samples: files and probe show no records to draw: leave it out")
        return tuple(found[place] for place in sorted(found))

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
        if start.files and not self.fleet.options.has_folder:
            raise InputError(f"a start has files, and environment.options.command has no {OWN_FOLDER} for them")
        for call in start.calls:
            if call.name not in listing.listed:
                raise InputError(f"a start calls {call.name!r:.80}, which the MCP server does not have")
            self._refuse_fixed(call, "a start")
            if call.name not in listing.names.values() and "destroys" in listing.left_out.get(call.name, ""):
                raise InputError(f"a start calls {call.name}: {listing.left_out[call.name]}")
            self._refuse_destructive(call, "a start")

    def _refuse_fixed(self, call: ToolCall, source: str) -> None:
        if own := sorted(self.fleet.listing.fixed[call.name] & call.arguments.keys()):
            raise InputError(f"{source}: {call.name} gives {own[0]!r:.80}, which option fixed sets: leave it out")

    def _refuse_destructive(self, call: ToolCall | None, source: str) -> None:
        """Raise InputError for a call (None: any) that may destroy, of a server that the user did not bind."""
        url = self.fleet.options.url
        if url is None or self._trusted or (call is not None and call.name not in self.fleet.listing.destructive):
            return
        what = (
            "agents call what destroys"
            if call is None
            else f"{call.name}, which does not say that it destroys nothing,"
        )
        raise InputError(
            f"{source}: a recipe does not decide that {what} on {url} - if you trust the server: "
            f"{how_to_bind(str(origin_of(url)))}"
        )


class MCP(Benchmark[MCPOptions]):
    """An MCP server of the user's. It holds nothing out: name a file of tasks in ``evaluation.tasks``."""

    name = MCPEnvironment.name
    options_type = MCPOptions
    brought = True

    def program(self, options: MCPOptions) -> Program | None:
        """Return what the command or the factory runs. Raises InputError where there is no such program."""
        return options.program()

    def open(self, options: MCPOptions) -> Environment:
        """Start the server and open the environment.

        Raises InputError where the options name no server or several, it does not start, or it has no tool for agents.
        """
        given = [one for one in ("command", "factory", "url") if getattr(options, one)]
        if len(given) != 1:
            raise InputError("environment.options: give one of command, factory and url: how the MCP server is reached")
        if FILES in (options.reset, *(options.probe or ())) and not options.has_folder:
            raise InputError(f"environment.options: reset and probe name files, and the command has no {OWN_FOLDER}")
        fleet = fleet_of(options)
        listing = fleet.listing
        if not listing.tools:
            why = why_none(listing.left_out)
            raise InputError(f"environment.options: the MCP server has no tool for agents{why}")
        named = [*listing.probe, *([options.reset_call] if options.reset_call else [])]
        for name in sorted({*(options.tools or ()), *(call.name for call in named)} - listing.listed):
            raise InputError(f"environment.options: the MCP server has no tool {name!r}")
        for key in sorted(options.fixed.keys() - set().union(*listing.fixed.values())):
            raise InputError(f"environment.options.fixed: no tool of the MCP server documents {key!r:.80} at its root")
        return MCPEnvironment(fleet, options)

    def notes(self, environment: Environment) -> tuple[str, ...]:
        """Return the tools for agents, those left out with the reason, and what shows the state."""
        if not isinstance(environment, MCPEnvironment):
            return ()
        options, listing = environment.fleet.options, environment.fleet.listing
        shown = [*(call.name for call in listing.probe), *([FILES] if options.compares_files else [])]
        return (
            f"tools      {', '.join(listing.tools)}",
            *notes_of_left_out(listing.tools.values(), listing.left_out),
            f"state      {', '.join(shown) or 'not seen: no tool says that it only reads, name some as probe'}",
            *([f"starts     {len(environment.starts())}, with samples of records"] if options.samples else ()),
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
        starts = (call for start in environment.given for call in start.calls)
        given: dict[str, dict[tuple[str, Plain], frozenset[Plain]]] = defaultdict(dict)
        for call in (*listing.probe, *starts):
            plain = {key: value for key, value in call.arguments.items() if isinstance(value, Plain)}
            for key, value in plain.items():
                given[key][named.get(call.name, ""), value] = frozenset(plain.values()) - {value}
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
