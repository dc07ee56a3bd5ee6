"""What a recipe says of an MCP server: how it starts, how its state is seen, how it begins again."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from pkgutil import resolve_name

from pydantic import Field, JsonValue, ValidationError, field_validator

from environments.addresses import KEYS_VARIABLE, Address, bound_token
from environments.base import InputError, Record, ToolCall
from environments.benchmark import Options, explain
from environments.checkout import append_working_directory
from environments.mcp.connection import ServerLaunch, handed_on
from environments.mcp.pointers import Pointer
from environments.registry import module_spec, where
from environments.trust import TRUST_VARIABLE, Program, command_program, function_program

FOLDER = "/workspace"
"""The path of a server's own folder, as agents and records read it."""

OWN_FOLDER = "{folder}"
"""The same path in a command, which then also runs there."""

FILES = "files"
"""The word of the options ``probe`` and ``reset`` for the files of the server's folder."""

DEEPEST = 32
"""Levels of folders in it, at most (our choice)."""

_LONGEST_NAME = 255  # bytes, of every usual file system

MAX_FILES = 500
MAX_FILE = 200_000
"""Bytes of the files of one start, and of those that a state holds as texts, at most (our choice)."""

MAX_READ = 32_000_000
"""Bytes of the files that are read for one state, at most (our choice)."""


class StartFile(Record):
    """A file of a start, by the path that agents give."""

    path: str
    text: str

    @field_validator("path")
    @classmethod
    def _inside(cls, path: str) -> str:
        name = path.removeprefix(f"{FOLDER}/")
        parts = name.split("/")
        if "\\" in name or "\0" in name or not all(parts) or {".", ".."} & set(parts):
            raise ValueError(f"{name!r:.80} is not the path of a file inside the folder")
        if len(parts) > DEEPEST or max(len(part.encode()) for part in parts) > _LONGEST_NAME:
            raise ValueError(
                f"{name!r:.80} has more than {DEEPEST} levels, or a name of more than {_LONGEST_NAME} bytes"
            )
        return f"{FOLDER}/{name}"


class ServerStart(Record):
    """A start state: ``files`` in the server's own folder, then ``calls`` by the names of the server's tools.

    Files are a list, because explorers read paths as values, which names of a mapping are not; options may give a
    mapping of paths to texts. Paths are those in the folder, with or without ``FOLDER`` in front. ``folder`` is
    ``FOLDER`` where the server has one; it says nothing else.
    """

    folder: str | None = None
    calls: tuple[ToolCall, ...] = ()
    files: tuple[StartFile, ...] = ()

    @field_validator("files", mode="before")
    @classmethod
    def _listed(cls, files: object) -> object:
        given = [{"path": path, "text": files[path]} for path in files] if isinstance(files, dict) else files
        try:
            return tuple(map(StartFile.model_validate, given)) if isinstance(given, list) else given
        except ValidationError as error:
            raise ValueError(explain(error)) from None

    @field_validator("files")
    @classmethod
    def _few(cls, files: tuple[StartFile, ...]) -> tuple[StartFile, ...]:
        if len(files) > MAX_FILES or sum(len(file.text) for file in files) > MAX_FILE:
            raise ValueError(f"a start has {MAX_FILES} files and {MAX_FILE} characters of them at most")
        paths = {file.path for file in files}
        if inside := next(
            (path for path in paths if any(str(one) in paths for one in PurePosixPath(path).parents)), None
        ):
            raise ValueError(f"{inside} is inside another file of the start")
        return files


class MCPOptions(Options):
    """Options of the environment; one of ``command``, ``factory`` and ``url`` is given."""

    command: tuple[str, ...] = Field(
        (),
        description="the program and its arguments, for example [mcp-server-git]; {folder} becomes a folder of the "
        f"server's own, new for each, in which it then runs; it runs as you, so {TRUST_VARIABLE} binds it",
    )
    factory: str | None = Field(
        None,
        description="module:function without arguments that returns a new server of the package mcp, for servers in "
        f"this process; {TRUST_VARIABLE} binds it, too",
    )
    url: Address | None = Field(
        None,
        description="the address of a running server (streamable HTTP); one of another machine is bound by "
        f"{KEYS_VARIABLE}, as is the token that it is sent; {TRUST_VARIABLE} binds one whose tools may destroy",
    )
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
    ignored: tuple[Pointer, ...] = Field(
        (),
        description="what no state is compared by, as JSON Pointers into JSON files of {folder} and answers of the "
        "probe: [/calls] for a log of all calls",
    )
    fixed: dict[str, JsonValue] = Field(
        {},
        description="parameters with the value that the environment gives to each tool that documents them: agents and "
        "tasks do not see them",
    )
    answer: Pointer | None = Field(
        None,
        description="where in a JSON answer a tool's own answer is, as a JSON Pointer, for a server that wraps all "
        "answers alike: agents read that part alone; an answer without it is read whole",
    )
    samples: int = Field(
        0,
        ge=0,
        le=1000,
        description="start states made of each of starts, at most, each with some of the records that JSON files of "
        "{folder} and answers of the probe hold, for explorers; 0: none",
    )
    seed: int = Field(0, ge=0, description="what samples are drawn by")
    tools: tuple[str, ...] | None = Field(None, description="names of the tools that agents may call; null: all")
    allow_destructive: bool = Field(False, description="true: agents may call tools with destructiveHint")
    servers: int = Field(4, ge=1, le=64, description="servers that are kept running at a time, at most")
    call_seconds: float = Field(30.0, gt=0, le=3600, description="timeout of each call; a start has 30 s at least")

    @property
    def has_folder(self) -> bool:
        """Whether a server has a folder of its own."""
        return any(OWN_FOLDER in word for word in self.command)

    @property
    def compares_files(self) -> bool:
        """Whether the files of the folder belong to the state."""
        return self.has_folder if self.probe is None else FILES in self.probe

    @property
    def probe_calls(self) -> tuple[ToolCall, ...] | None:
        """The calls that show the state; None: those that the server's hints allow."""
        return None if self.probe is None else tuple(_call(one) for one in self.probe if one != FILES)

    @property
    def reset_call(self) -> ToolCall | None:
        """The call that brings a server to its beginning, if one does."""
        return None if self.reset in (None, FILES) else _call(self.reset)

    @property
    def start_states(self) -> tuple[ServerStart, ...]:
        """The start states, with the folder where servers have one."""
        starts = (one if isinstance(one, ServerStart) else ServerStart(calls=one) for one in self.starts)
        return tuple(one.model_copy(update={"folder": FOLDER if self.has_folder else None}) for one in starts)

    def program(self) -> Program | None:
        """Return what the command or the factory runs. Raises InputError where there is no such program."""
        if self.command:
            folder = None if self.has_folder else Path.cwd()
            return command_program("environment.options.command", self.command, folder, self.env)
        if self.factory is None:
            return None
        spec = module_spec(self.factory.partition(":")[0])
        if spec is None or spec.origin is None:
            raise InputError(
                f"environment.options.factory: there is no module of {self.factory}: write module:function"
            )
        return function_program("environment.options.factory", self.factory, Path(spec.origin))

    def launch(self) -> ServerLaunch:
        """Return how a server is started.

        Raises InputError for a factory that cannot be imported and an address that the user did not bind.
        """
        token = None if self.url is None else bound_token(self.url, "environment.options.url")
        factory = None
        if self.factory is not None:
            append_working_directory()
            try:
                factory = resolve_name(self.factory)
            except Exception as error:
                raise InputError(
                    f"environment.options.factory: {self.factory} cannot be imported: {where(error)}"
                ) from error
            if not callable(factory):
                raise InputError(f"environment.options.factory: {self.factory} cannot be called: name a function")
        secrets = handed_on(self.env) | ({} if token is None else {"TOKEN": token})  # redacted in what a server says
        return ServerLaunch(self.command, secrets, url=self.url, token=token, factory=factory)


def _call(given: str | ToolCall | None) -> ToolCall:
    return given if isinstance(given, ToolCall) else ToolCall(name=given or "")
