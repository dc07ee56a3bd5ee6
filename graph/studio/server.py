"""The server that Studio's page talks to, beside LangGraph's own routes: who may use it, and its list of threads.

The server has no password, and every page that a browser shows can send requests to this machine. A browser says whose
page a request is from, in headers that a page cannot change (Fetch standard): ``Origin``, ``Sec-Fetch-Site``, ``Host``.
Programs, such as ``langgraph_sdk`` and curl, send neither of the first two. CORS alone is not enough: LangGraph's
server runs a graph for a POST of plain text, which a browser sends without asking first.

langgraph.json names ``app``: the server puts its own routes into it, below that refusal. When it starts, it lists the
run's threads with names. The checkpoints of a run hold the threads of its commands and of former servers; the server's
own list is in memory and knows neither.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from itertools import count, takewhile
from urllib.parse import urlsplit

from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from environments.checkout import ROOT
from graph.checkpoints import open_checkpoints, opened_run, thread_id
from memory.run import RunDirectory, read_json
from memory.run_files import Fork

_IN_PROCESS = "/noauth"
"""Root path of requests that this process sends to itself (langgraph_sdk without an address); no socket sets one."""
_PRIVATE_NETWORK = b"access-control-request-private-network"
_POLICY_VIOLATION = 1008
LISTED = 1000  # threads that the server returns at a time


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


async def list_threads(client: LangGraphClient) -> None:
    """Make the server's list that of the run: its threads by name."""
    run = await asyncio.to_thread(opened_run)
    (assistant,) = await client.assistants.search(graph_id="iteration", limit=LISTED)
    async with open_checkpoints() as saver:
        for thread in await asyncio.to_thread(_threads, run):
            saved = await saver.aget_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
            if saved is None:
                continue
            name = name_of(run, thread, saved.checkpoint["channel_values"].get("iteration"))
            metadata = {"name": name, "run": run.root.name, "graph_id": "iteration"}
            metadata["assistant_id"] = assistant["assistant_id"]
            await client.threads.create(thread_id=thread, metadata=metadata, if_exists="do_nothing")
            await client.threads.update(thread, metadata=metadata)


def _threads(run: RunDirectory) -> list[str]:
    """Return the threads that a run may have: one for each iteration, and those that copies of it were made for."""
    numbers = takewhile(lambda number: run.iteration(number).root.is_dir(), count())
    beside = (RunDirectory(path).fork_path for path in sorted(run.root.parent.iterdir()))
    forks = (read_json(path, Fork) for path in beside if path.exists())
    return [*dict.fromkeys([*map(thread_id, numbers), *(fork.thread for fork in forks if fork.of == run.root.name)])]


async def name_thread(run: RunDirectory, thread: str, iteration: int) -> None:
    """Name the thread of a call in the server that this process is."""
    metadata = {"name": name_of(run, thread, iteration), "run": run.root.name}
    await get_client(api_key=None).threads.update(thread, metadata=metadata)


def name_of(run: RunDirectory, thread: str, iteration: object) -> str:
    """Return the name of a thread in the list: ``quickstart, iteration 4``."""
    if not isinstance(iteration, int) or iteration < 0:
        return f"{run.root.name}, not begun"
    own = thread == thread_id(iteration)
    return f"{run.root.name}, iteration {iteration}{'' if own else ', made in Studio'}"


@asynccontextmanager
async def _listing(_: Starlette) -> AsyncIterator[None]:
    await list_threads(get_client(api_key=None))
    yield


app = Starlette(lifespan=_listing, middleware=[Middleware(LocalRequests, origins=named_origins())])
