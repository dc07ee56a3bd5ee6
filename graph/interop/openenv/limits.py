"""Limits of a server for clients that may be hostile. Each holds before a client has shown its token.

- A connection that is not a WebSocket states a whole request within ``SECONDS``, or it ends.
- ``WAITING`` wait for a request at most. One more ends the oldest, so that those that send nothing keep nobody out.
- A request names one of the few ``PATHS``, and has a body of at most ``BODY`` bytes, whose length it states.
- A WebSocket is accepted with the token alone, or on a loopback address from a program, not from a web page. It is
  closed when its client sends nothing for ``idle`` seconds. Messages have a largest size. OpenEnv's server counts
  sessions, and refuses one too many.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import socket
from collections.abc import Collection
from typing import Any

import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Guard", "serve"]

SECONDS = 10.0
WAITING = 64
BODY = 65_536
MESSAGE = 1_048_576
IDLE = 600.0
PATHS = re.compile(
    r"/ws|/mcp|/health|/metadata|/schema|/list_environments|/[\w.-]+/(splits|tasks|num_tasks|task|task_range)"
)
_POLICY_VIOLATION = 1008


class Guard:
    """Middleware that passes on what the module allows.

    Args:
        app: the server behind it.
        token: what a client sends as ``Authorization: Bearer TOKEN``; None for one of this machine alone.
        hosts: values of the header Host that are answered where there is no token.
        idle: seconds between two messages of a WebSocket's client, at most.
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str], idle: float = IDLE) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts
        self._idle = idle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or let the server answer."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        status, words = self._refusal(scope["path"], Headers(scope=scope))
        if scope["type"] == "websocket":
            if words:
                await WebSocketClose(_POLICY_VIOLATION, words)(scope, receive, send)
            else:
                await self._app(scope, self._timed(receive), send)
        elif words:
            await PlainTextResponse(f"{words}\n", status)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str]:
        if self._token is not None:
            given = headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                return 401, "send the token as Authorization: Bearer TOKEN"
        elif headers.getlist("host") not in [[host] for host in self._hosts] or "origin" in headers:
            return 403, "this server answers programs of its own machine only"
        if not PATHS.fullmatch(path):
            return 404, "this server has no such address"
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdecimal() or int(length[:20]) > BODY:
            return 413, f"state the length of a body of at most {BODY} bytes"
        return 200, ""

    def _timed(self, receive: Receive) -> Receive:
        async def within() -> Message:
            try:
                return await asyncio.wait_for(receive(), self._idle)
            except TimeoutError:
                return {"type": "websocket.disconnect", "code": 1001, "reason": "idle"}

        return within


class _Connection(H11Protocol):
    """A connection that ends unless it becomes a WebSocket, or states a whole request, in time."""

    _began = 0.0
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._began = self.loop.time()
        waiting = [one for one in self.connections if isinstance(one, _Connection) and not one.is_answering]
        if len(waiting) >= WAITING:
            min(waiting, key=lambda one: one._began).transport.abort()
        super().connection_made(transport)
        self._expect()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect()

    @property
    def is_answering(self) -> bool:
        """Whether a whole request was received, and its answer is being made."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return answering and self.conn.their_state not in (h11.IDLE, h11.SEND_BODY, h11.ERROR)

    def _expect(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self.loop.call_later(SECONDS, self._end)

    def _end(self) -> None:
        if self not in self.connections:  # it is closed, or a WebSocket has taken its place
            return
        if self.is_answering:  # the environment has limits of its own
            self._expect()
        else:
            self.transport.abort()


def serve(app: ASGIApp, listening: socket.socket, token: str | None, idle: float = IDLE) -> None:
    """Serve ``app`` behind the limits on a bound socket, until a signal ends the process."""
    address, port = listening.getsockname()[:2]
    hosts = {f"{name}:{port}" for name in ("localhost", f"[{address}]" if ":" in address else address)}
    config: dict[str, Any] = {
        "http": _Connection,
        "ws_max_size": MESSAGE,
        "ws_max_queue": 4,
        "ws_per_message_deflate": False,  # a small message must not become a large one
        "timeout_graceful_shutdown": 2,
        "log_level": "warning",
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
    }
    server = uvicorn.Server(uvicorn.Config(Guard(app, token, hosts, idle), **config))
    server.run(sockets=[listening])
