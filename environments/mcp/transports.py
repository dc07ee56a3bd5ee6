"""Carry messages between the SDK and a server, over the pipes of a command or over HTTP, within limits on their size.

The pipes are read here, because the SDK's own transport keeps a line of any length.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from anyio.abc import ByteReceiveStream, ObjectSendStream

MAX_MESSAGE = 2_000_000
"""Bytes of one message of a server, at most (our choice)."""

MAX_BYTES = 8_000_000
"""Bytes that a server sends while it answers one request, notifications included, at most (our choice)."""

QUIET = ("PATH", "LANG", "SYSTEMROOT")
"""Variables that a program needs to start; the user names any other one that it gets."""

_LEAVE = 0.3  # seconds that a server has to end by itself
_KEPT_ERRORS = 2000


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


def handed_on(names: Sequence[str]) -> dict[str, str]:
    """Return the variables of this process that a server gets: those named, and the few that a program needs."""
    return {name: os.environ[name] for name in (*QUIET, *names) if name in os.environ}


class Heard:
    """What came from a server beside answers: bytes since the last request, lines that are no messages, errors."""

    def __init__(self) -> None:
        self.bytes = 0
        self.problem: str | None = None
        self.errors = ""

    def took(self, count: int) -> None:
        """Count bytes. Raises EOFError for more than one answer may have."""
        self.bytes += count
        if self.bytes > MAX_BYTES:
            self.problem = f"it sent more than {MAX_BYTES:,} bytes in answer to one request"
            raise EOFError


@asynccontextmanager
async def over_pipes(launch: ServerLaunch, heard: Heard) -> AsyncIterator[Any]:
    """Run a command in a process group of its own, and end the group at the end."""
    import anyio
    from mcp.os.posix.utilities import terminate_posix_process_tree

    process = await anyio.open_process(
        [*launch.command],
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
                with anyio.move_on_after(_LEAVE):
                    await process.wait()
                await terminate_posix_process_tree(process, _LEAVE)
                with anyio.move_on_after(1):
                    await process.wait()
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
                        heard.problem = f"it wrote a line that is no message: {line[:100].decode(errors='replace')!r}"
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
