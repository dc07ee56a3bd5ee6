"""Define an MCP server as an environment that recipes and commands name.

Agents may call some of its tools. A server may have a folder of its own. Its state is seen by a probe.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple, Self

from pydantic import JsonValue, ValidationError

from environments.answers import decoded, rounded
from environments.base import Environment, EnvironmentDefect, EnvironmentFault, InputError, ToolCall, ToolSpec
from environments.benchmark import TRUST_VARIABLE, Benchmark, KnownValue, explain
from environments.json_schema import documented_tool, plain_line
from environments.mcp.connection import ServerConnection, ServerLaunch, shown
from environments.mcp.options import FILES, FOLDER, MAX_FILE, MAX_FILES, OWN_FOLDER, MCPOptions, ServerStart
from environments.served import Fleet, ServedEnvironment, ServerAnswer, ServerPlace, ServerView

if TYPE_CHECKING:
    from mcp_types import Tool

Plain = str | int | float

GROUP = "server"
"""The group of every tool, and the class of every task: a server's own name is not read."""

MAX_TOOLS = 128
"""Tools that agents may call, at most (our choice): name some in the option ``tools`` of a larger server."""

_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_MOST_OF_A_DESCRIPTION = 1000

EQUAL_FAILURES = 3
"""Failures of one kind in a row, without a success between them, after which it is not tried again (our choice)."""


class Listing(NamedTuple):
    """The tools of a server.

    ``tools`` are those that agents may call and ``names`` the server's own name of each. ``probe`` are the calls that
    show its state: without an option, of tools that say they only read and that need no argument. ``left_out`` maps the
    names of other tools to the reason. ``listed`` are all names of the server, and ``digest`` identifies what it lists.
    """

    tools: dict[str, ToolSpec]
    names: dict[str, str]
    probe: tuple[ToolCall, ...]
    left_out: dict[str, str]
    listed: frozenset[str]
    digest: str


def read_listing(listed: Sequence[Tool], options: MCPOptions) -> Listing:
    """Read what a server lists: which of its tools agents may call by the options, and how they are documented."""
    resets = options.reset_call.name if options.reset_call else None
    tools: dict[str, ToolSpec] = {}
    names: dict[str, str] = {}
    left_out: dict[str, str] = {}
    hinted = []
    for tool in listed:
        try:
            if tool.name in names.values():
                raise ValueError("it is listed twice")
            spec = _spec(tool)
            hints = tool.annotations
            if hints is not None and hints.read_only_hint and not any(one.required for one in spec.parameters):
                hinted.append(ToolCall(name=tool.name))
            destroys = hints is not None and hints.destructive_hint and not hints.read_only_hint
            if destroys and not options.allow_destructive:
                raise ValueError("it says that it destroys: option allow_destructive lets agents call it")
            if (options.tools is not None and tool.name not in options.tools) or tool.name == resets:
                raise ValueError("the options leave it out")
            if spec.name in tools:
                raise ValueError(f"{names[spec.name]} has its name in letters, digits and _")
            if len(tools) == MAX_TOOLS:
                raise ValueError(f"there are more than {MAX_TOOLS}: name those to use in the option tools")
        except ValueError as error:
            if len(left_out) < MAX_TOOLS:
                left_out[plain_line(tool.name, 80) or "a tool without a name"] = str(error)
            continue
        tools[spec.name], names[spec.name] = spec, tool.name
    written = "\n".join(sorted(tool.model_dump_json() for tool in listed))
    digest = hashlib.sha256(written.encode(errors="replace")).hexdigest()
    probe = tuple(hinted) if options.probe_calls is None else options.probe_calls
    return Listing(tools, names, probe, left_out, frozenset(tool.name for tool in listed), digest)


def _spec(tool: Tool) -> ToolSpec:
    name = re.sub(r"\W", "_", tool.name, flags=re.ASCII)
    if not _NAME.fullmatch(name):
        raise ValueError("its name is not of 1 to 64 letters, digits and _")
    spec = documented_tool(name, GROUP, tool.description, tool.input_schema, _MOST_OF_A_DESCRIPTION)
    for parameter in spec.parameters:
        if not _NAME.fullmatch(parameter.name):
            raise ValueError(f"its parameter {parameter.name!r:.80} is not of letters, digits and _")
    return spec


class Server:
    """A running server and its folder: ``environments.served.PlayedServer``.

    ``first`` is the list of tools that counts: one that lists other tools is a fault. Raises EnvironmentFault where it
    does not start.
    """

    def __init__(self, options: MCPOptions, launch: ServerLaunch, first: list[Listing]) -> None:
        self._kept = TemporaryDirectory(prefix="coevolve-mcp-")
        self._folder = Path(self._kept.name).resolve()
        self._options = options
        self._variables = launch.variables
        self._begun = False
        if options.has_folder:  # so that no relative path leads out of it
            words = [_absolute(word).replace(OWN_FOLDER, str(self._folder)) for word in launch.command]
            launch = launch._replace(command=words, folder=self._folder)
        self._connection = ServerConnection(launch, options.call_seconds)
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
        if self._options.reset == FILES and self._begun:
            for inside in self._folder.iterdir():
                shutil.rmtree(inside) if inside.is_dir() and not inside.is_symlink() else inside.unlink()
        self._begun = True
        for file in start.files:
            path = self._folder / file.path.removeprefix(f"{FOLDER}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text, encoding="utf-8")
            os.utime(path, (0, 0))  # a time of now would be another in every episode
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
        if self._options.compares_files:
            found[FILES] = _files(self._folder)
        # Files hold the folder's path, too: what a server wrote of an agent's words.
        return json.dumps(found, sort_keys=True, ensure_ascii=False).replace(str(self._folder), FOLDER), None

    def leave(self) -> None:
        """Ask the server to end, without waiting for it."""
        self._connection.leave()

    def close(self) -> None:
        """End the server and remove its folder."""
        self._connection.close()
        with suppress(OSError):
            self._kept.cleanup()

    def _asked(self, name: str, arguments: Mapping[str, JsonValue]) -> ServerAnswer:
        """Call a tool, by the server's name of it; paths of the folder are written as ``FOLDER``."""
        written = json.dumps(dict(arguments)).replace(FOLDER, str(self._folder))  # neither path has an escape in JSON
        answer = self._connection.call(name, json.loads(written))
        return answer._replace(text=shown(answer.text.replace(str(self._folder), FOLDER), self._variables))

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
    return str(Path(word).absolute()) if Path(word).suffix + word.partition("/")[1] and Path(word).is_file() else word


def _parsed(text: str) -> JsonValue:
    try:
        return rounded(decoded(text))
    except RecursionError:
        return text


def _files(folder: Path) -> JsonValue:
    """Return the texts of the folder's files by path; of a hidden file or a link nothing, of any other its digest."""
    found: dict[str, JsonValue] = {}
    left = MAX_FILE
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or path.is_symlink():
            continue
        if len(found) == MAX_FILES:
            raise EnvironmentFault(f"its folder has more than {MAX_FILES} files")
        if path.is_dir():
            found[f"{name}/"] = None
        elif path.is_file():
            data = path.read_bytes() if path.stat().st_size <= left else b""
            left -= path.stat().st_size
            if left < 0:
                raise EnvironmentFault(f"the files of its folder have more than {MAX_FILE:,} bytes")
            try:
                found[str(name)] = data.decode()
            except UnicodeDecodeError:
                found[str(name)] = f"sha256 {hashlib.sha256(data).hexdigest()}"
    return dict(found)


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
