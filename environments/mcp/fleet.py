"""Keep a few servers, and bring one of them to the place of an episode for each call.

A place is a start and the calls since. An episode holds no server: for each of its calls it leases one that is at its
place, or one that is brought there by playing the calls again. So any number of episodes is open at a time, a server
that died costs only its calls, and equal places may be answered from a cache. This needs a server that does equal
things when it is asked equal things, as verification does.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pydantic import JsonValue, field_validator

from environments.base import EnvironmentDefect, EnvironmentFault, InputError, Record, ToolCall
from environments.mcp.connection import ServerConnection, ToolAnswer, shown
from environments.mcp.tools import Listing, read_listing
from environments.mcp.transports import ServerLaunch

FOLDER = "/workspace"
"""The path of a server's own folder, as agents and records read it."""

OWN_FOLDER = "{folder}"
"""The same path in a command, which then also runs there."""

MAX_CACHED = 20_000
MAX_FILES = 500
MAX_FILE = 200_000
"""Bytes of the files of one start, and of those that a state compares, at most (our choice)."""

EQUAL_FAILURES = 3
"""Failures of one kind in a row, without a success between them, after which it is not tried again (our choice)."""


class ServerStart(Record):
    """A start state: ``files`` in the server's own folder, then ``calls`` by the names of the server's tools.

    Files are named by their path in the folder, with or without ``FOLDER`` in front.
    """

    calls: tuple[ToolCall, ...] = ()
    files: dict[str, str] = {}

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, str]) -> dict[str, str]:
        files = {name.removeprefix(f"{FOLDER}/"): text for name, text in files.items()}
        for name in files:
            parts = name.split("/")
            if "\\" in name or "\0" in name or not all(parts) or {".", ".."} & set(parts):
                raise ValueError(f"{name!r:.80} is not the path of a file inside the folder")
        if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_FILE:
            raise ValueError(f"a start has {MAX_FILES} files and {MAX_FILE} characters of them at most")
        return files


class ServerPlan(NamedTuple):
    """How servers are started, read and reset.

    ``probe`` are the calls that show the state, ``files`` whether the folder's files belong to it. ``reset`` is the
    call that brings a server to its beginning, ``refilled`` says that emptying its folder does; else a new one starts.
    ``servers`` are kept at a time, at most. ``seconds`` is the timeout of each call.
    """

    launch: ServerLaunch
    probe: tuple[ToolCall, ...] | None
    files: bool
    reset: ToolCall | None
    refilled: bool
    servers: int
    seconds: float
    chosen: frozenset[str] | None
    destructive: bool

    @property
    def in_place(self) -> bool:
        """Return whether a server that was used can begin again."""
        return self.reset is not None or self.refilled


class ServerPlace(NamedTuple):
    """A start, and the calls since it, as an episode made them."""

    start: ServerStart
    calls: tuple[ToolCall, ...]

    def key(self) -> str:
        """Return a text that is equal for equal places."""
        return json.dumps([self.start.model_dump(), [call.model_dump() for call in self.calls]], sort_keys=True)


class ServerView(NamedTuple):
    """The answer to the last call of a place (None at the start), and the state there."""

    answer: ToolAnswer | None
    state: str


class Server:
    """A running server, its folder, and where it is: None before any start."""

    def __init__(self, plan: ServerPlan) -> None:
        self._kept = TemporaryDirectory(prefix="coevolve-mcp-")
        self.folder = Path(self._kept.name).resolve()
        self.place: ServerPlace | None = None
        self._plan = plan
        launch = plan.launch
        if any(OWN_FOLDER in word for word in launch.command):  # so that no relative path leads out of it
            words = [_absolute(word).replace(OWN_FOLDER, str(self.folder)) for word in launch.command]
            launch = launch._replace(command=words, folder=self.folder)
        self._connection = ServerConnection(launch, plan.seconds)

    def listing(self) -> Listing:
        """Read the list of tools as it is now."""
        kept = (self._plan.reset.name,) if self._plan.reset else ()
        return read_listing(self._connection.list_tools(), self._plan.chosen, kept, self._plan.destructive)

    def begin(self, start: ServerStart) -> None:
        """Bring a server without a place, or one with a tool that resets it, to a start."""
        if self._plan.reset is not None:
            self._must(self._plan.reset, "resets it")
        if self._plan.refilled and self.place is not None:
            for inside in self.folder.iterdir():
                shutil.rmtree(inside) if inside.is_dir() and not inside.is_symlink() else inside.unlink()
        self.place = None
        for name, text in start.files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            os.utime(path, (0, 0))  # a time of now would be another in every episode
        for call in start.calls:
            self._must(call, "belongs to the start")
        self.place = ServerPlace(start, ())

    def call(self, name: str, arguments: Mapping[str, JsonValue]) -> ToolAnswer:
        """Call a tool, by the server's name of it; paths of the folder are written as ``FOLDER``."""
        written = json.dumps(dict(arguments)).replace(FOLDER, str(self.folder))  # neither path has an escape in JSON
        answer = self._connection.call(name, json.loads(written))
        text = answer.text.replace(str(self.folder), FOLDER)
        return answer._replace(text=shown(text, self._plan.launch.variables))

    def state(self, probe: tuple[ToolCall, ...]) -> str:
        """Return the state as canonical JSON: the answers of the probe, and the files where they belong to it."""
        found: dict[str, JsonValue] = {}
        for call in probe:
            found[call.model_dump_json() if call.arguments else call.name] = _parsed(
                self.call(call.name, call.arguments).text
            )
        if self._plan.files:
            found["files"] = _files(self.folder)
        # Files hold the folder's path, too: what a server wrote of an agent's words.
        return json.dumps(found, sort_keys=True, ensure_ascii=False).replace(str(self.folder), FOLDER)

    def leave(self) -> None:
        """Ask the server to end, without waiting for it."""
        self._connection.leave()

    def close(self) -> None:
        """End the server and remove its folder."""
        self._connection.close()
        with suppress(OSError):
            self._kept.cleanup()

    def _must(self, call: ToolCall, what: str) -> None:
        answer = self.call(call.name, call.arguments)
        if answer.is_error:
            raise EnvironmentFault(f"{call.name}, which {what}, failed: {answer.text:.200}")


class Fleet:
    """The servers of one environment, for any number of threads.

    The first server is started at once and its list of tools counts: one that lists other tools later is a fault.
    Raises EnvironmentFault where it does not start.
    """

    def __init__(self, plan: ServerPlan) -> None:
        self.plan = plan
        self._idle: list[Server] = []
        self._all: list[Server] = []
        self._turn = threading.Condition()
        self._running = 0
        self._failures: dict[str, tuple[int, str]] = {}
        self._cache: OrderedDict[str, ServerView] = OrderedDict()
        weakref.finalize(self, _close_all, self._all)
        first = Server(plan)
        self._all.append(first)
        self.listing = first.listing()
        probes = (ToolCall(name=name) for name in self.listing.probes)
        self.probe = plan.probe if plan.probe is not None else tuple(probes)
        self._idle.append(first)
        self._running = 1

    def see(self, place: ServerPlace, *, cached: bool) -> ServerView:
        """Return what is seen at ``place``: the answer to its last call, and the state after it.

        ``cached``: a place that was seen before is not played again. Raises EnvironmentFault for what the server does
        wrong, EnvironmentDefect where it did so ``EQUAL_FAILURES`` times in a row.
        """
        key = place.key()
        with self._turn:
            if cached and key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        what = place.calls[-1].name if place.calls else "its start"
        self._check(what)
        try:
            seen = self._played(place)
        except EnvironmentFault as fault:
            raise self._failed(what, str(fault)) from None
        with self._turn:
            self._failures.pop(what, None)
            self._cache[key] = seen
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return seen

    def _played(self, place: ServerPlace) -> ServerView:
        before = place._replace(calls=place.calls[:-1])
        with self._leased(before) as server:
            answer = None
            for call in place.calls[-1:]:
                answer = server.call(self.listing.names[call.name], call.arguments)
            seen = ServerView(answer, server.state(self.probe))
            server.place = place
            return seen

    @contextmanager
    def _leased(self, place: ServerPlace) -> Iterator[Server]:
        """Lend a server at ``place``. One that failed meanwhile is ended."""
        server = self._taken(place)
        try:
            if server.place is None or not _leads(server.place, place):
                server.begin(place.start)
            assert server.place is not None
            done, server.place = len(server.place.calls), None
            for call in place.calls[done:]:
                server.call(self.listing.names[call.name], call.arguments)
            server.place = place
            yield server
        except BaseException:
            self._ended(server)
            raise
        with self._turn:
            self._idle.append(server)
            self._turn.notify()

    def _taken(self, place: ServerPlace) -> Server:
        """Take the idle server nearest to ``place``, or a new one where none leads there."""
        with self._turn:
            while not self._idle and self._running >= self.plan.servers:
                if not self._turn.wait(self.plan.seconds * 2 + 10):
                    raise EnvironmentFault(f"all {self.plan.servers} servers are busy")
            near = [one for one in self._idle if one.place is not None and _leads(one.place, place)]
            fresh = [one for one in self._idle if one.place is None or self.plan.in_place]
            chosen = max(near, key=lambda one: len(one.place.calls) if one.place else 0, default=None)
            chosen = chosen or next(iter(fresh), None)
            if chosen is not None:
                self._idle.remove(chosen)
                warm = chosen.place is None and self._running < self.plan.servers and not self.plan.in_place
                self._running += warm
                if warm:  # started while this one works
                    threading.Thread(target=self._warm, name="mcp-warm", daemon=True).start()
                return chosen
            replaced = self._idle.pop(0) if self._running >= self.plan.servers else None
            self._running += replaced is None
        if replaced is not None:
            self._all.remove(replaced)
            replaced.close()
        return self._new()

    def _new(self) -> Server:
        server = None
        try:
            server = Server(self.plan)
            if server.listing().digest != self.listing.digest:
                raise EnvironmentFault("it lists other tools than when it was first started")
        except BaseException:
            if server is not None:
                server.close()
            with self._turn:
                self._running -= 1
                self._turn.notify()
            raise
        self._all.append(server)
        return server

    def _warm(self) -> None:
        with suppress(EnvironmentFault):  # the episode that needs it next says why
            server = self._new()
            with self._turn:
                self._idle.append(server)
                self._turn.notify()

    def _ended(self, server: Server) -> None:
        with self._turn:
            self._running -= 1
            self._turn.notify()
        with suppress(ValueError):
            self._all.remove(server)
        server.close()

    def _check(self, what: str) -> None:
        count, cause = self._failures.get(what, (0, ""))
        if count >= EQUAL_FAILURES:
            raise EnvironmentDefect(f"the MCP server failed {count} times in a row, the last time so: {cause}")

    def _failed(self, what: str, cause: str) -> EnvironmentFault:
        with self._turn:
            count = self._failures.get(what, (0, ""))[0] + 1
            self._failures[what] = (count, cause)
        return EnvironmentFault(f"the MCP server failed at {what}: {cause}")


_FLEETS: weakref.WeakValueDictionary[str, Fleet] = weakref.WeakValueDictionary()


def fleet_of(plan: ServerPlan) -> Fleet:
    """Return the fleet of ``plan``; one plan has one fleet in a process, as long as an environment of it is open.

    Raises InputError with the cause where the first server does not start: that is the user's to correct.
    """
    key = f"{os.getpid()} {plan!r}"
    try:
        found = _FLEETS.get(key) or Fleet(plan)
    except EnvironmentFault as fault:
        raise InputError(f"environment.options: the MCP server does not start: {fault}") from None
    _FLEETS[key] = found
    return found


def _absolute(word: str) -> str:
    """Return a word of a command that names a file of the working directory by its whole path."""
    return str(Path(word).absolute()) if Path(word).suffix + word.partition("/")[1] and Path(word).is_file() else word


def _leads(here: ServerPlace, place: ServerPlace) -> bool:
    return here.start == place.start and here.calls == place.calls[: len(here.calls)]


def _parsed(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text, parse_constant=str)
        json.dumps(value)
    except (ValueError, RecursionError):
        return text
    return value


def _files(folder: Path) -> JsonValue:
    """Return the texts of the folder's files by path; of a hidden file or a link nothing, of any other its digest."""
    import hashlib

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


def _close_all(servers: list[Server]) -> None:
    """End servers whose fleet is gone. It may be found to be gone in any thread, also in the one that serves them."""
    if threading.current_thread() is not threading.main_thread():
        threading.Thread(target=_end, args=(servers,), name="mcp-end").start()
    else:
        _end(servers)


def _end(servers: list[Server]) -> None:
    for server in servers:
        server.leave()
    for server in servers:
        with suppress(Exception):
            server.close()
