"""Serve ``HostedEpisodes`` over HTTP: a small ASGI application on uvicorn, and a server that runs on a thread.

Environments block, so every request that plays runs on a thread of a pool; ``/health`` is answered at once beside them.
Requests must declare JSON as their content, which web pages of other origins cannot send without being asked for.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from environments.base import InputError
from environments.hosts.episodes import HostAnswer, HostedEpisodes, failed
from environments.hosts.messages import (
    MAX_REQUEST,
    STATUS,
    Act,
    FailureKind,
    HostRefusal,
    Opening,
    ToolNames,
    read,
    written,
)

__all__ = ["HostServer", "application", "listen"]

BODY_SECONDS = 60.0  # for a request to arrive whole
RETRY_AFTER = b"1"  # seconds after which a full host may be asked again
THREADS = 64  # requests that play at a time
SWEEPS = 4  # looks for idle episodes in the time after which one is idle
KEEP_ALIVE = 120  # seconds; longer than a client keeps a connection, so that none is used while it is being closed
_START = 20.0  # seconds until a server listens, and until it has stopped
_EPISODE = re.compile(r"/episodes/([0-9a-f]{32})(/state|/outcome)?")

Message = TypeVar("Message", ToolNames, Opening, Act)
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def application(episodes: HostedEpisodes, token: str | None = None) -> Application:
    """Return the ASGI application. With a ``token`` it answers only requests that bear it."""
    pool = ThreadPoolExecutor(min(episodes.capacity, THREADS), thread_name_prefix="episode")

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(episodes, pool, receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            headers = dict(scope["headers"])
            _check_token(headers, token)
            method, path = scope["method"], scope["path"]
            if (method, path) == ("GET", "/health"):
                answer = HostAnswer(200, written(episodes.health()))
            else:
                body = await _body(headers, receive) if method == "POST" else b""
                work = _work(episodes, method, path, body)
                answer = await asyncio.get_running_loop().run_in_executor(pool, work)
        except HostRefusal as refusal:
            answer = failed(refusal)
        await _send(answer, send)

    return serve


def _work(episodes: HostedEpisodes, method: str, path: str, body: bytes) -> Callable[[], HostAnswer]:
    """Return what answers a request. Raises HostRefusal for one that is not of the protocol."""
    match method, path:
        case "POST", "/tools":
            return partial(episodes.tools, _read(ToolNames, body).names)
        case "POST", "/starts":
            return episodes.starts
        case "POST", "/episodes":
            return partial(episodes.open, _read(Opening, body))
    found = _EPISODE.fullmatch(path)
    name, of = found.groups() if found is not None else ("", None)
    if found is not None and (method, of) == ("POST", None):
        return partial(episodes.act, name, _read(Act, body))
    asked = {
        ("GET", "/state"): episodes.state,
        ("GET", "/outcome"): episodes.outcome,
        ("DELETE", None): episodes.release,
    }
    if found is None or (method, of) not in asked:
        _refuse(f"there is nothing at {method} {path[:100]}")
    return partial(asked[method, of], name)


def _check_token(headers: MutableMapping[bytes, bytes], token: str | None) -> None:
    given = headers.get(b"authorization", b"")
    if token is not None and not hmac.compare_digest(given, f"Bearer {token}".encode()):
        raise HostRefusal(FailureKind.TOKEN, "the request does not bear this host's token")


async def _body(headers: MutableMapping[bytes, bytes], receive: Receive) -> bytes:
    """Return the body of a request. Raises HostRefusal for one that is too long, too slow, or not JSON."""
    if headers.get(b"content-type", b"").partition(b";")[0].strip() != b"application/json":
        _refuse("the content is not declared as application/json")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    _refuse("the client ended the connection")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MAX_REQUEST:
                    raise HostRefusal(FailureKind.TOO_LONG, f"the request is longer than {MAX_REQUEST} bytes")
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        _refuse(f"the request did not arrive within {BODY_SECONDS:g} s")


def _read(kind: type[Message], body: bytes) -> Message:
    try:
        return kind.model_validate(read(body))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        _refuse(f"the {kind.__name__} cannot be read: {where}: {first['msg']}")
    except ValueError as error:
        _refuse(f"the {kind.__name__} is not JSON: {error}")


def _refuse(why: str) -> NoReturn:
    raise HostRefusal(FailureKind.MESSAGE, why)


async def _send(answer: HostAnswer, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer.body)).encode())]
    if answer.status == STATUS[FailureKind.BUSY]:
        headers.append((b"retry-after", RETRY_AFTER))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def _live(episodes: HostedEpisodes, pool: ThreadPoolExecutor, receive: Receive, send: Send) -> None:
    """Release idle episodes from the server's start to its end, and the rest then."""

    async def sweep() -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(episodes.idle / SWEEPS)
            await loop.run_in_executor(None, episodes.release_idle)

    await receive()
    sweeping = asyncio.create_task(sweep())
    await send({"type": "lifespan.startup.complete"})
    await receive()
    sweeping.cancel()
    with suppress(asyncio.CancelledError):
        await sweeping
    await asyncio.get_running_loop().run_in_executor(None, episodes.close)
    pool.shutdown(wait=False, cancel_futures=True)
    await send({"type": "lifespan.shutdown.complete"})


def listen(address: str, port: int) -> socket.socket:
    """Return a socket that listens on ``address``; port 0 is any that is free. Raises InputError."""
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise InputError(f"--port {port}: {address} cannot be listened on ({error}): name another one") from error


class HostServer:
    """Serves on ``listening`` in a thread within ``with``; ``run`` serves in the caller's thread until a signal.

    Raises RuntimeError when the server does not start.
    """

    def __init__(self, episodes: HostedEpisodes, listening: socket.socket, token: str | None = None) -> None:
        import uvicorn

        config = uvicorn.Config(
            application(episodes, token),
            log_level="warning",
            access_log=False,
            lifespan="on",
            ws="none",
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=5,
            backlog=1024,
        )
        address, port = listening.getsockname()[:2]
        self.episodes = episodes
        named = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address, f"[{address}]" if ":" in address else address)
        self.url = f"http://{named}:{port}"
        """The base URL that clients on this machine name."""
        self._listening = listening
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.run, name="environment-host", daemon=True)

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM ends it."""
        self._server.run(sockets=[self._listening])

    def __enter__(self) -> HostServer:
        self._thread.start()
        deadline = time.monotonic() + _START
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RuntimeError("the host's server does not start")
            time.sleep(0.005)
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join(_START)
        self._listening.close()
