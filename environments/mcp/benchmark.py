"""Define an MCP server as an environment that recipes and commands name.

Agents may call some of its tools. A server may have a folder of its own. Its state is seen by a probe.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import JsonValue, ValidationError

from environments.addresses import origin_of
from environments.answers import decoded, rounded
from environments.base import Environment, EnvironmentDefect, EnvironmentFault, InputError, ToolCall, ToolSpec
from environments.benchmark import Benchmark, KnownValue, explain
from environments.json_schema import documented_tool, notes_of_left_out, plain_line, why_none
from environments.mcp.connection import ServerConnection, ServerLaunch, shown
from environments.mcp.folder import OwnFolder
from environments.mcp.options import FILES, OWN_FOLDER, MCPOptions, ServerStart
from environments.mcp.redaction import redacted
from environments.served import Fleet, ServedEnvironment, ServerAnswer, ServerPlace, ServerView
from environments.task_text import written
from environments.trust import Program, how_to_bind, is_trusted

Plain = str | int | float

GROUP = "server"
"""The group of every tool, and the class of every task: a server's own name is not read."""

MAX_TOOLS = 128
"""Tools that agents may call, at most (our choice): name some in the option ``tools`` of a larger server."""

_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_MOST_OF_A_DESCRIPTION = 1000

MAX_SCHEMAS = 512
"""Schemas of a list of tools that are read, at most (our choice)."""

MAX_TEXT = 20_000
"""Characters of an answer; the rest is left out, and said to be (our choice)."""

MAX_STATE = 10 * MAX_TEXT
DEEPEST_STATE = 64
"""Levels of lists and objects in what a probe answers; of a deeper one the text is the state (our choice)."""

EQUAL_FAILURES = 3
"""Failures of one kind in a row, without a success between them, after which it is not tried again (our choice)."""


class Listing(NamedTuple):
    """The tools of a server.

    ``tools`` are those that agents may call and ``names`` the server's own name of each. ``probe`` are the calls that
    show its state: without an option, of tools that say they only read and that need no argument. ``left_out`` maps the
    names of other tools to the reason. ``listed`` are all names of the server, ``destructive`` those of tools that may
    destroy by the protocol: neither do they only read, nor is destructiveHint false. ``digest`` identifies the list.
    """

    tools: dict[str, ToolSpec]
    names: dict[str, str]
    probe: tuple[ToolCall, ...]
    left_out: dict[str, str]
    listed: frozenset[str]
    destructive: frozenset[str]
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
            spec = _spec(entry)
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
    return Listing(tools, names, probe, left_out, frozenset(map(_name, listed)), destructive, digest)


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


def _spec(entry: JsonValue) -> ToolSpec:
    """Read an entry of a server's list. Raises ValueError with the reason where it is no tool that can be called."""
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    name = re.sub(r"\W", "_", _name(entry), flags=re.ASCII)
    if not _NAME.fullmatch(name):
        raise ValueError("its name is not of 1 to 64 letters, digits and _, a letter or _ first")
    given = entry.get("inputSchema")
    return documented_tool(
        name, GROUP, entry.get("description"), {} if given is None else given, _MOST_OF_A_DESCRIPTION
    )


class Server:
    """A running server and its folder: ``environments.served.PlayedServer``.

    ``first`` is the list of tools that counts: one that lists other tools is a fault. Raises EnvironmentFault where it
    does not start.
    """

    def __init__(self, options: MCPOptions, launch: ServerLaunch, first: list[Listing]) -> None:
        self._folder = OwnFolder() if options.has_folder else None
        self._options = options
        self._secrets = launch.secrets
        self._begun = False
        if self._folder is not None:  # so that no relative path leads out of it
            words = [_absolute(word).replace(OWN_FOLDER, str(self._folder.path)) for word in launch.command]
            launch = launch._replace(command=words, folder=self._folder.path)
        try:
            self._connection = ServerConnection(launch, options.call_seconds)
        except BaseException:
            self._remove_folder()
            raise
        try:
            listing = read_listing(self._connection.list_tools(), options)
            if first and first[0].digest != listing.digest:
                raise EnvironmentFault("it lists other tools than when it was first started")
        except BaseException:
            self.close()
            raise
        first.append(listing)
        self._listing = first[0]

    def begin(self, start: ServerStart) -> None:
        """Bring a new server, or one that can begin again, to a start."""
        if self._options.reset_call is not None:
            self._must(self._options.reset_call, "resets it")
        if self._folder is not None:
            if self._options.reset == FILES and self._begun:
                self._folder.empty()
            for file in start.files:
                self._folder.write(file)
        self._begun = True
        for call in start.calls:
            self._must(call, "belongs to the start")

    def call(self, call: ToolCall) -> ServerAnswer:
        """Call a tool by the name that agents know."""
        return self._asked(self._listing.names[call.name], call.arguments)

    def look(self) -> tuple[str, None]:
        """Return the state as canonical JSON: the answers of the probe, and the files where they belong to it."""
        found: dict[str, JsonValue] = {}
        for call in self._listing.probe:
            found[call.model_dump_json() if call.arguments else call.name] = _parsed(
                self._asked(call.name, call.arguments).text
            )
        if self._folder is not None and self._options.compares_files:
            found[FILES] = self._folder.texts()
        # Files hold the folder's path and secrets, too: what a server wrote of an agent's words and of its variables.
        return self._as_agents_read(json.dumps(found, sort_keys=True, ensure_ascii=False)), None

    def leave(self) -> None:
        """Ask the server to end, without waiting for it."""
        self._connection.leave()

    def close(self) -> None:
        """End the server and remove its folder."""
        self._connection.close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.remove()

    def _asked(self, name: str, arguments: Mapping[str, JsonValue]) -> ServerAnswer:
        """Call a tool, by the server's name of it; paths of the folder are written as ``FOLDER``."""
        given = dict(arguments)
        if self._folder is not None:
            given = {key: self._folder.to_server(value) for key, value in given.items()}
        answer = self._connection.call(name, given)
        text = self._as_agents_read(shown(answer.text, {}))
        cut = f"... [{len(text):,} characters, cut]" if len(text) > MAX_TEXT else ""
        return answer._replace(text=text[:MAX_TEXT] + cut)

    def _as_agents_read(self, text: str) -> str:
        text = redacted(text, self._secrets)
        return text if self._folder is None else self._folder.to_agent(text)

    def _must(self, call: ToolCall, what: str) -> None:
        answer = self._asked(call.name, call.arguments)
        if answer.failed:
            raise EnvironmentFault(f"{call.name}, which {what}, failed: {answer.text:.200}")


class ServerFleet(Fleet[Server]):
    """The servers of one environment. The first is started at once, and its list of tools counts.

    Raises EnvironmentFault where it does not start.
    """

    def __init__(self, options: MCPOptions) -> None:
        listings: list[Listing] = []
        new = partial(Server, options, options.launch(), listings)
        super().__init__(new, options.servers, options.call_seconds * 2 + 10, again=options.reset is not None)
        self.options = options
        self._failures: dict[str, list[str]] = {}
        self.start_one()
        self.listing = listings[0]

    def see(
        self, place: ServerPlace, *, cached: bool, heard: Sequence[ServerAnswer] | None = None, holder: object = None
    ) -> ServerView:
        """Return what is seen at ``place``.

        Raises EnvironmentFault for what the server does wrong, EnvironmentDefect where it did so ``EQUAL_FAILURES``
        times in a row.
        """
        what = place.calls[-1].name if place.calls else "its start"
        causes = self._failures.setdefault(what, [])
        if len(causes) >= EQUAL_FAILURES:
            raise EnvironmentDefect(
                f"the MCP server failed {len(causes)} times in a row, the last time so: {causes[-1]}"
            )
        try:
            seen = super().see(place, cached=cached, heard=heard, holder=holder)
        except EnvironmentFault as fault:
            causes.append(str(fault))
            raise EnvironmentFault(f"the MCP server failed at {what}: {fault}") from None
        causes.clear()
        return seen


_FLEETS: weakref.WeakValueDictionary[str, ServerFleet] = weakref.WeakValueDictionary()


def fleet_of(options: MCPOptions) -> ServerFleet:
    """Return the fleet of ``options``; they have one in a process, as long as an environment of it is open.

    Raises InputError with the cause where the first server does not start: that is the user's to correct.
    """
    key = f"{os.getpid()} {options.model_dump_json(exclude={'starts'})}"
    try:
        found = _FLEETS.get(key) or ServerFleet(options)
    except EnvironmentFault as fault:
        raise InputError(f"environment.options: the MCP server does not start: {fault}") from None
    _FLEETS[key] = found
    return found


def _absolute(word: str) -> str:
    """Return a word of a command that names a file of the working directory by its whole path."""
    named = Path(word).suffix + word.partition("/")[1] and os.path.isfile(word)  # no error where it is too long for one
    return str(Path(word).absolute()) if named else word


def _parsed(text: str) -> JsonValue:
    try:
        value = rounded(decoded(text))
        written(value, DEEPEST_STATE, MAX_STATE)  # half a character, for example, can be escaped in JSON
    except (ValueError, RecursionError):
        return text
    return value


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
        if options.allow_destructive:
            self._refuse_destructive(None, "environment.options.allow_destructive")
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
        if start.files and not self.fleet.options.has_folder:
            raise InputError(f"a start has files, and environment.options.command has no {OWN_FOLDER} for them")
        for call in start.calls:
            if call.name not in listing.listed:
                raise InputError(f"a start calls {call.name!r:.80}, which the MCP server does not have")
            if call.name not in listing.names.values() and "destroys" in listing.left_out.get(call.name, ""):
                raise InputError(f"a start calls {call.name}: {listing.left_out[call.name]}")
            self._refuse_destructive(call, "a start")

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
