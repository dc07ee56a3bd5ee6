"""Start one MCP server and ask it, within limits on the size, number and time of its messages.

The SDK (package ``mcp``) speaks the protocol, on one event loop in a thread of its own, over HTTP or over pipes, which
are read here, because the SDK's own transport keeps a line of any length. Whatever a server does wrong becomes an
``EnvironmentFault`` with its cause; only a tool's own answer, an error among them, is an answer.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import JsonValue, ValidationError

from environments.answers import content_text, is_empty, says_error
from environments.base import EnvironmentFault
from environments.mcp.redaction import each_text, redacted
from environments.mcp.supervisor import LEAVE_SECONDS
from environments.served import ServerAnswer

if TYPE_CHECKING:
    from anyio.abc import ByteReceiveStream, ObjectSendStream
    from mcp import Client
    from mcp_types import CallToolResult

MAX_MESSAGE = 2_000_000
"""Bytes of one message of a server, at most (our choice)."""

MAX_BYTES = 8_000_000
"""Bytes that a server sends while it answers one request, notifications included, at most (our choice)."""

QUIET = ("PATH", "LANG", "SYSTEMROOT")
"""Variables that a program needs to start; the user names any other one that it gets."""

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_ENDED_SECONDS = 2.0  # beside a server's own, until its supervisor is gone
_KEPT_ERRORS = 2000
_KEPT_LINE = 4000

START_SECONDS = 30.0
"""Seconds that a server has to start and to list its tools, at least (our choice): some read a package first."""

MAX_PAGES = 20
"""Pages of a server's list of tools, at most (our choice)."""

MAX_LISTED = 10_000
"""Tools of a server, at most (our choice)."""

_GRACE = 5.0
_CLOSED, _TIMEOUT = -32000, -32001  # codes that the SDK itself raises (mcp_types.jsonrpc)
_Answer = TypeVar("_Answer")


class ServerLaunch(NamedTuple):
    """How a server is started: a command with variables and a folder to run in, an address, or a function here.

    ``token`` is sent to the address as ``Authorization: Bearer TOKEN``.
    """

    command: Sequence[str] = ()
    variables: Mapping[str, str] = {}
    folder: Path | None = None
    url: str | None = None
    token: str | None = None
    factory: Callable[[], Any] | None = None

    @property
    def secrets(self) -> dict[str, str]:
        """The variables whose values are left out of all that the server says."""
        return {name: value for name, value in self.variables.items() if name not in QUIET}


def handed_on(names: Sequence[str]) -> dict[str, str]:
    """Return the variables of this process that a server gets: those named, and the few that a program needs."""
    return {name: os.environ[name] for name in (*QUIET, *names) if name in os.environ}


class Heard:
    """What came from a server beside answers: bytes since the last request, lines that are no messages, errors."""

    def __init__(self, launch: ServerLaunch) -> None:
        self.shown = partial(shown, secrets=launch.secrets)
        self.bytes = 0
        self.problem: str | None = None
        self.noise = asyncio.Event()
        self.errors = ""

    def took(self, count: int) -> None:
        """Count bytes. Raises EOFError for more than one answer may have."""
        self.bytes += count
        if self.bytes > MAX_BYTES:
            self.problem = f"it sent more than {MAX_BYTES:,} bytes in answer to one request"
            raise EOFError


@asynccontextmanager
async def over_pipes(launch: ServerLaunch, heard: Heard) -> AsyncIterator[Any]:
    """Run a command under a supervisor, which ends with all that the command started when its stdin is closed."""
    import anyio

    program = shutil.which(launch.command[0], path=launch.variables.get("PATH"))
    if program is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), launch.command[0])
    process = await anyio.open_process(
        [sys.executable, "-I", "-S", str(_SUPERVISOR), str(launch.folder or ""), program, *launch.command[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(launch.variables),
        cwd=launch.folder,
        start_new_session=True,
    )
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    assert stdin is not None
    assert stdout is not None
    assert stderr is not None
    incoming, read = anyio.create_memory_object_stream[Any](0)
    write, outgoing = anyio.create_memory_object_stream[Any](0)

    async def send() -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            async for one in outgoing:
                await stdin.send(one.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

    async with anyio.create_task_group() as group:
        group.start_soon(_receive, stdout, incoming, heard)
        group.start_soon(send)
        group.start_soon(_keep_errors, stderr, heard)
        try:
            yield read, write
        finally:
            with anyio.CancelScope(shield=True):
                for stream in (read, write, stdin):
                    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await stream.aclose()
                # A pipe that is full is not closed before it is read: a signal is heard all the same.
                for seconds, end in ((LEAVE_SECONDS, process.terminate), (_ENDED_SECONDS, process.kill), (1.0, None)):
                    with anyio.move_on_after(seconds):
                        await process.wait()
                        break
                    if end is not None:
                        with suppress(ProcessLookupError):
                            end()
            group.cancel_scope.cancel()


async def _receive(stdout: ByteReceiveStream, incoming: ObjectSendStream[Any], heard: Heard) -> None:
    """Read a message from each line; lines that are none are left out, and kept as the problem."""
    import anyio
    from anyio.streams.buffered import BufferedByteReceiveStream
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    lines = BufferedByteReceiveStream(stdout)
    async with incoming:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, EOFError):
            try:
                while True:
                    line = await lines.receive_until(b"\n", MAX_MESSAGE)
                    heard.took(len(line))
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        said = heard.shown(line[:_KEPT_LINE].decode(errors="replace"))
                        heard.problem = f"it wrote a line that is no message: {said[:100]!r}"
                        heard.noise.set()
                        continue
                    await incoming.send(SessionMessage(message))
            except anyio.DelimiterNotFound:
                heard.problem = f"it sent a message of more than {MAX_MESSAGE:,} bytes"
            except anyio.IncompleteRead:
                heard.problem = heard.problem or "it ended"


async def _keep_errors(stderr: ByteReceiveStream, heard: Heard) -> None:
    import anyio

    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            heard.errors = (heard.errors + (await stderr.receive()).decode(errors="replace"))[-_KEPT_ERRORS:]


@asynccontextmanager
async def over_http(launch: ServerLaunch, seconds: float, heard: Heard) -> AsyncIterator[Any]:
    """Connect to an address; the SDK's client, without proxies and redirects, and with the limits of this module."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, stream: Any) -> None:  # noqa: ANN401 - the library's
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in self._stream:
                heard.took(len(chunk))
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: httpx2.Response) -> None:
        response.stream = Bounded(response.stream)

    assert launch.url is not None
    limits = httpx2.Timeout(seconds)
    headers = {} if launch.token is None else {"Authorization": f"Bearer {launch.token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=limits, trust_env=False, event_hooks={"response": [bound]}) as http,
        streamable_http_client(launch.url, http_client=http, max_sse_event_size=MAX_MESSAGE) as streams,
    ):
        yield streams


class ServerConnection:
    """A started server; one thread uses it at a time.

    Args:
        launch: how it is started.
        seconds: timeout of each call; the start and the list of tools have ``START_SECONDS`` at least.

    Raises EnvironmentFault with the cause where it does not start. So do all methods but ``close`` where it hangs, ends
    or answers with what is not of the protocol; the connection is of no use afterwards.
    """

    def __init__(self, launch: ServerLaunch, seconds: float) -> None:
        self.seconds = seconds
        self._heard = Heard(launch)
        self._launch = launch
        self._client: Client | None = None
        self._stop: asyncio.Event | None = None
        self._ready: Future[None] = Future()
        self._task = asyncio.run_coroutine_threadsafe(self._live(), _loop())
        try:
            self._answered("its start", self._started())
        except BaseException:
            self.close()
            raise

    def list_tools(self) -> list[JsonValue]:
        """Return what the server lists as tools, which may be anything, without the values of secrets."""
        listed = self._answered("its list of tools", self._listed())
        secrets = self._launch.secrets
        return [each_text(entry, lambda text: redacted(text, secrets)) for entry in listed] if secrets else listed

    def call(self, name: str, arguments: Mapping[str, JsonValue]) -> ServerAnswer:
        """Call a tool and return its answer."""
        self._heard.bytes = 0
        self._heard.noise.clear()
        return self._answered(f"the call of {name}", self._called(name, dict(arguments)), self.seconds)

    def leave(self) -> None:
        """Ask the server to end. Idempotent."""
        stop = self._stop
        if stop is not None:
            _loop().call_soon_threadsafe(stop.set)
        else:
            self._task.cancel()

    def close(self) -> None:
        """End the server. Idempotent; the wait for its end is bounded."""
        self.leave()
        with suppress(Exception):
            self._task.result(_GRACE)
            return
        self._task.cancel()

    async def _live(self) -> None:
        """Hold the session: the library's scopes belong to the task that opened them."""
        from mcp import Client

        try:
            async with Client(self._transport(), mode="legacy", cache=None) as client:
                self._client, self._stop = client, asyncio.Event()
                self._ready.set_result(None)
                await self._stop.wait()
        except Exception as error:  # noqa: BLE001 - of the library, in groups; each is a cause of no start
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._client = None

    def _transport(self) -> Any:  # noqa: ANN401 - one of the library's kinds of servers
        if self._launch.factory is not None:
            return self._launch.factory()
        if self._launch.url is not None:
            return over_http(self._launch, self.seconds, self._heard)
        return over_pipes(self._launch, self._heard)

    async def _started(self) -> None:
        await asyncio.shield(asyncio.wrap_future(self._ready))

    async def _listed(self) -> list[JsonValue]:
        tools: list[JsonValue] = []
        cursor: JsonValue = None
        for _ in range(MAX_PAGES):
            # Not list_tools, nor anything that is public: they refuse the whole list for one tool of another form.
            dispatcher = self._live_client().session._dispatcher
            page = await dispatcher.send_raw_request("tools/list", {"cursor": cursor} if cursor else None)
            listed, cursor = page.get("tools"), page.get("nextCursor")
            if not isinstance(listed, list) or not isinstance(cursor, str | None):
                raise EnvironmentFault("it is not of the protocol (tools is a list, and nextCursor a text)")
            tools += listed
            if len(tools) > MAX_LISTED:
                raise EnvironmentFault(f"it lists more than {MAX_LISTED:,} tools")
            if not cursor:
                return tools
        raise EnvironmentFault(f"its list of tools has more than {MAX_PAGES} pages")

    async def _called(self, name: str, arguments: dict[str, JsonValue]) -> ServerAnswer:
        from mcp import MCPError
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult

        # Not call_tool: that checks answers against a schema of the server, whose regular expressions may not end.
        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
        asked = asyncio.ensure_future(self._live_client().session.send_request(request, CallToolResult))
        noise = asyncio.ensure_future(self._heard.noise.wait())
        try:
            await asyncio.wait((asked, noise), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((asked,), timeout=_GRACE)  # a line that is no message may be a print, or its answer
            if not asked.done():
                raise EnvironmentFault(self._cause("no answer"))
            return _answer(asked.result())
        except MCPError as error:
            if error.code in (_CLOSED, _TIMEOUT):
                raise
            return ServerAnswer(f"error {error.code}: {error.message}", True)  # an unknown tool, wrong arguments
        finally:
            noise.cancel()
            asked.cancel()

    def _live_client(self) -> Client:
        if self._client is None:
            raise EnvironmentFault(self._cause("it has ended"))
        return self._client

    def _answered(self, what: str, work: Coroutine[Any, Any, _Answer], seconds: float | None = None) -> _Answer:
        from mcp import MCPError

        seconds = seconds or max(self.seconds, START_SECONDS)
        asked = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), _loop())
        try:
            return asked.result(seconds + _GRACE)
        except MCPError as error:
            raise EnvironmentFault(f"{what}: {self._cause(error.message)}") from None
        except TimeoutError:
            asked.cancel()
            raise EnvironmentFault(f"{what}: {self._cause(f'no answer within {seconds:g} s')}") from None
        except EnvironmentFault as fault:
            raise EnvironmentFault(f"{what}: {fault}") from None
        except ValidationError as error:
            said = f"its answer is not of the protocol ({error.errors()[0]['msg']:.120})"
            raise EnvironmentFault(f"{what}: {self._cause(said)}") from None
        except Exception as error:  # noqa: BLE001 - the library lets errors of operating system and of groups through
            raise EnvironmentFault(f"{what}: {self._cause(_said(error))}") from None

    def _cause(self, said: str) -> str:
        errors = self._heard.shown(self._heard.errors)
        parts = (self._heard.shown(said), self._heard.problem, errors and f"its errors end in: {errors[-300:]}")
        return "; ".join(part for part in parts if part)


def shown(text: str, secrets: Mapping[str, str]) -> str:
    """Return a server's text without control characters, and with the names of ``secrets`` for their values."""
    text = redacted(text, secrets)
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)


def _answer(result: CallToolResult) -> ServerAnswer:
    blocks = (block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content)
    text, structured = content_text(blocks), result.structured_content
    if structured is not None and (not result.content or (is_empty(text) and not is_empty(structured))):
        text = json.dumps(structured, ensure_ascii=False)
    failed = result.is_error or says_error(text) or says_error(structured)
    return ServerAnswer(text or "null", failed)


def _said(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {' '.join(str(error).split()):.200}"


@cache
def _thread_of(process: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="mcp", daemon=True).start()
    return loop


def _loop() -> asyncio.AbstractEventLoop:
    return _thread_of(os.getpid())  # a forked process has no thread of its parent
