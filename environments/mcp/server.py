"""Run MCP servers: bring one to a start, call its tools, look at its state; keep a few of them for one environment."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from pydantic import JsonValue

from environments.answers import decoded, rounded, says_error
from environments.base import EnvironmentDefect, EnvironmentFault, InputError, ToolCall
from environments.json_schema import plain_line
from environments.mcp.connection import ServerConnection, ServerLaunch, shown
from environments.mcp.folder import OwnFolder
from environments.mcp.listing import Listing, read_listing
from environments.mcp.options import FILES, OWN_FOLDER, MCPOptions, ServerStart
from environments.mcp.pointers import Pointer, part_of, without
from environments.mcp.redaction import each_text, redacted
from environments.mcp.sample import samples
from environments.served import Fleet, ServerAnswer, ServerPlace, ServerView
from environments.task_text import written

MAX_TEXT = 20_000
"""Characters of an answer; the rest is left out, and said to be (our choice)."""

MAX_STATE = 10 * MAX_TEXT
DEEPEST_STATE = 64
"""Levels of lists and objects in what a probe answers; of a deeper one the text is the state (our choice)."""

EQUAL_FAILURES = 3
"""Failures of one kind in a row, without a success between them, after which it is not tried again (our choice)."""


class Server:
    """A running server and its folder: ``environments.served.PlayedServer``.

    ``first`` is the list of tools that counts: one that lists other tools is a fault. Raises EnvironmentFault where it
    does not start.
    """

    def __init__(self, options: MCPOptions, launch: ServerLaunch, first: list[Listing]) -> None:
        self._folder = OwnFolder(options.ignored) if options.has_folder else None
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
        """Call a tool by the name that agents know, without the parameters that the environment sets."""
        name = self._listing.names[call.name]
        if own := sorted(self._listing.fixed[name] & call.arguments.keys()):
            return ServerAnswer(f"{call.name} has no parameter {own[0]!r}", True)
        return self._asked(name, call.arguments)

    def look(self) -> tuple[str, None]:
        """Return the state as canonical JSON: the answers of the probe, and the files where they belong to it."""
        found = self._probed()
        if self._folder is not None and self._options.compares_files:
            found[FILES] = self._folder.state()
        # Files hold the folder's path and secrets, too: what a server wrote of an agent's words and of its variables.
        return self._as_agents_read(json.dumps(found, sort_keys=True, ensure_ascii=False)), None

    def sample(self, most: int) -> list[JsonValue]:
        """Return at most ``most`` samples of the records that the probe and the files show, without what is ignored."""
        shown, found = self._probed(), list[JsonValue]()
        if self._folder is not None and self._options.compares_files:
            for path, data in self._folder.contents().items():
                value = decoded((data or b"").decode(errors="replace"))
                shown[path] = without(value, self._options.ignored) if isinstance(value, dict | list) else None
        for one in samples(shown, most, self._options.seed):
            found.append(each_text(one, self._as_agents_read))
        return found

    def _probed(self) -> dict[str, JsonValue]:
        """Return the answers of the probe as values, without what is ignored."""
        found: dict[str, JsonValue] = {}
        for call in self._listing.probe:
            value = _parsed(self._asked(call.name, call.arguments).text)
            found[call.model_dump_json() if call.arguments else call.name] = without(value, self._options.ignored)
        return found

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
        """Call a tool, by the server's name of it; paths of the folder are written as ``FOLDER``.

        It is given the parameters that the option ``fixed`` sets. Of its answer, the part that ``answer`` names counts.
        """
        given = dict(arguments) | {key: self._options.fixed[key] for key in self._listing.fixed.get(name, ())}
        if self._folder is not None:
            given = {key: self._folder.to_server(value) for key, value in given.items()}
        answer = self._connection.call(name, given)
        if self._options.answer is not None:
            answer = _unwrapped(answer, self._options.answer)
        text = self._as_agents_read(shown(answer.text, {}))
        cut = f"... [{len(text):,} characters, cut]" if len(text) > MAX_TEXT else ""
        return answer._replace(text=text[:MAX_TEXT] + cut)

    def _as_agents_read(self, text: str) -> str:
        text = redacted(text, self._secrets)
        return text if self._folder is None else self._folder.to_agent(text)

    def _must(self, call: ToolCall, what: str) -> None:
        answer = self._asked(call.name, call.arguments)
        if answer.failed:
            raise EnvironmentFault(f"{call.name}, which {what}, failed: {plain_line(answer.text, 200)}")


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
    key = f"{os.getpid()} {options.model_dump_json(exclude={'starts', 'samples'})}"
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


def _unwrapped(answer: ServerAnswer, pointer: Pointer) -> ServerAnswer:
    """Return the part of an answer that ``pointer`` names, the whole where there is none. Either may say an error."""
    try:
        part = part_of(decoded(answer.text), pointer)
    except LookupError:
        return answer
    text = part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)
    return ServerAnswer(text, answer.failed or says_error(text))


def _parsed(text: str) -> JsonValue:
    try:
        value = rounded(decoded(text))
        written(value, DEEPEST_STATE, MAX_STATE)  # half a character, for example, can be escaped in JSON
    except (ValueError, RecursionError):
        return text
    return value
