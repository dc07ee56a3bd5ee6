"""Refuses requests of web pages to the server that Studio's page talks to, but for pages that langgraph.json names.

The server has no password, and every page that a browser shows can send requests to this machine. A browser says whose
page a request is from, in headers that a page cannot change (Fetch standard): ``Origin``, ``Sec-Fetch-Site``, ``Host``.
Programs, such as ``langgraph_sdk`` and curl, send neither of the first two. CORS alone is not enough: LangGraph's
server runs a graph for a POST of plain text, which a browser sends without asking first.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from environments.checkout import ROOT

_IN_PROCESS = "/noauth"
"""Root path of requests that this process sends to itself (langgraph_sdk without an address); no socket sets one."""
_PRIVATE_NETWORK = b"access-control-request-private-network"
_POLICY_VIOLATION = 1008


def named_origins() -> frozenset[str]:
    """Return the origins of pages that may use the server: ``http.cors.allow_origins`` of langgraph.json, or none."""
    config = json.loads((ROOT / "langgraph.json").read_text(encoding="utf-8"))
    return frozenset(config["http"].get("cors", {}).get("allow_origins", ()))


def refusal(headers: Headers, peer: str | None, origins: Collection[str]) -> str | None:
    """Return why a request is refused, in one sentence; None for a program of this machine or a page of ``origins``.

    ``peer`` is the address that the request came from.
    """
    if not _loopback(peer):
        return "this server answers requests of its own machine only"
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not _names_loopback(hosts[0]):
        return "Host: this server answers to 127.0.0.1, localhost and [::1] only"
    named = headers.getlist("origin")
    if not all(origin in origins for origin in named):
        return "Origin: this page may not use the server: name it in http.cors.allow_origins of langgraph.json"
    # A request without Origin is of a program, of the address bar, or of a page that cannot read the answer.
    if not named and any(site != "none" for site in headers.getlist("sec-fetch-site")):
        return "Sec-Fetch-Site: pages may not use the server: enter the address in the browser's address bar"
    return None


def _loopback(address: str | None) -> bool:
    try:
        return ipaddress.ip_address(address or "").is_loopback
    except ValueError:
        return False


def _names_loopback(host: str) -> bool:
    """Return whether a Host header names this machine in words that no name server decides; any port will do."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises ValueError where it is not a number
    except ValueError:
        return False
    return parts.netloc == host and "@" not in host and (parts.hostname == "localhost" or _loopback(parts.hostname))


class LocalRequests:
    """Middleware that passes on requests without a ``refusal``; it wraps every route, WebSockets and mounts too."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self.app = app
        self.origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 with the reason, or let the server answer."""
        if scope["type"] == "lifespan" or scope.get("root_path") == _IN_PROCESS:
            await self.app(scope, receive, send)
            return
        words = refusal(Headers(scope=scope), (scope.get("client") or (None,))[0], self.origins)
        if words is None:
            # Starlette's CORS would refuse this question; LangGraph's own middleware answers it.
            kept = [(name, value) for name, value in scope["headers"] if name.lower() != _PRIVATE_NETWORK]
            await self.app({**scope, "headers": kept}, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(_POLICY_VIOLATION, words)(scope, receive, send)
        else:
            await PlainTextResponse(f"{words}\n", 403)(scope, receive, send)
