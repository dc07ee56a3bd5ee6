"""Play on MCP servers: the tools that agents may call there, their folders, and their states by a probe."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import weakref
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from pydantic import JsonValue

from environments.base import EnvironmentDefect, EnvironmentFault, InputError, ToolCall, ToolSpec
from environments.json_schema import plain_line
from environments.mcp.connection import ServerConnection, ServerLaunch, shown
from environments.mcp.options import FILES, FOLDER, MAX_FILE, MAX_FILES, OWN_FOLDER, MCPOptions, ServerStart
from environments.served.environment import documented_tool
from environments.served.fleet import Fleet, ServerAnswer, ServerPlace, ServerView

if TYPE_CHECKING:
    from mcp_types import Tool

GROUP = "server"
"""The group of every tool, and the class of every task: a server's own name is not read."""

MAX_TOOLS = 128
"""Tools that agents may call, at most (our choice): name some in the option ``tools`` of a larger server."""

_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_MOST_OF_A_DESCRIPTION = 1000

EQUAL_FAILURES = 3
"""Failures of one kind in a row, without a success between them, after which it is not tried again (our choice)."""

_SAYS_ERROR = re.compile(r'\s*(\{\s*"error"\s*:|(\w+ ){0,2}error:\s)', re.IGNORECASE)
"""How answers begin that are errors without being marked as such; a call with one makes no task (our choice)."""


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


class Server:
    """A running server and its folder: ``environments.served.fleet.PlayedServer``.

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
            kept = [options.reset_call.name] if options.reset_call else []
            listing = read_listing(self._connection.list_tools(), options.tools, kept, options.allow_destructive)
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
        answer = self._asked(self._listing.names[call.name], call.arguments)
        return answer._replace(failed=answer.failed or _SAYS_ERROR.match(answer.text) is not None)

    def look(self) -> tuple[str, None]:
        """Return the state as canonical JSON: the answers of the probe, and the files where they belong to it."""
        found: dict[str, JsonValue] = {}
        for call in probe_of(self._options, self._listing):
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
        self._failures: dict[str, tuple[int, str]] = {}
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
        count, cause = self._failures.get(what, (0, ""))
        if count >= EQUAL_FAILURES:
            raise EnvironmentDefect(f"the MCP server failed {count} times in a row, the last time so: {cause}")
        try:
            seen = super().see(place, cached=cached, heard=heard, holder=holder)
        except EnvironmentFault as fault:
            self._failures[what] = (self._failures.get(what, (0, ""))[0] + 1, str(fault))
            raise EnvironmentFault(f"the MCP server failed at {what}: {fault}") from None
        self._failures.pop(what, None)
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


def probe_of(options: MCPOptions, listing: Listing) -> tuple[ToolCall, ...]:
    """Return the calls that show a server's state."""
    hinted = tuple(ToolCall(name=name) for name in listing.probes)
    return hinted if options.probe_calls is None else options.probe_calls


def _absolute(word: str) -> str:
    """Return a word of a command that names a file of the working directory by its whole path."""
    return str(Path(word).absolute()) if Path(word).suffix + word.partition("/")[1] and Path(word).is_file() else word


def _parsed(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text, parse_constant=str)
        json.dumps(value)
    except (ValueError, RecursionError):
        return text
    return value


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
