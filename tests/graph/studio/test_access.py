"""Who may use the server: programs of this machine and the pages that langgraph.json names, on every route."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.datastructures import Headers
from support import ROOT

from graph.studio.server import LocalRequests, named_origins, refusal

STUDIO = "https://smith.langchain.com"
HERE = ("host", "127.0.0.1:2024")
Given = tuple[tuple[str, str], ...]

ANSWERED: dict[str, Given] = {
    "curl and langgraph_sdk": (HERE,),
    "by name": (("host", "localhost:2024"),),
    "by name, in capitals": (("host", "LOCALHOST:2024"),),
    "without a port": (("host", "127.0.0.1"),),
    "IPv6": (("host", "[::1]:2024"),),
    "through a tunnel with another port": (("host", "127.0.0.1:9999"),),
    "the address bar": (HERE, ("sec-fetch-site", "none")),
    "Studio's page": (HERE, ("origin", STUDIO), ("sec-fetch-site", "cross-site")),
}
REFUSED: dict[str, tuple[str, Given]] = {
    "another page": ("Origin", (HERE, ("origin", "https://evil.example"))),
    "no page's origin": ("Origin", (HERE, ("origin", "null"))),
    "an empty origin": ("Origin", (HERE, ("origin", ""))),
    "any origin": ("Origin", (HERE, ("origin", "*"))),
    "Studio's name without TLS": ("Origin", (HERE, ("origin", "http://smith.langchain.com"))),
    "Studio's name, longer": ("Origin", (HERE, ("origin", f"{STUDIO}.evil.example"))),
    "Studio's name, another port": ("Origin", (HERE, ("origin", f"{STUDIO}:8443"))),
    "another server of this machine": ("Origin", (HERE, ("origin", "http://127.0.0.1:8888"))),
    "the server's own pages, whose scripts are of others": ("Origin", (HERE, ("origin", "http://127.0.0.1:2024"))),
    "two origins": ("Origin", (HERE, ("origin", STUDIO), ("origin", "https://evil.example"))),
    "a page that cannot read the answer": ("Sec-Fetch-Site", (HERE, ("sec-fetch-site", "cross-site"))),
    "a page of the same site": ("Sec-Fetch-Site", (HERE, ("sec-fetch-site", "same-site"))),
    "a script of the server's own page": ("Sec-Fetch-Site", (HERE, ("sec-fetch-site", "same-origin"))),
    "a name that leads here": ("Host", (("host", "evil.example:2024"),)),
    "a name that leads here, of Studio": ("Host", (("host", "evil.example:2024"), ("origin", STUDIO))),
    "a name that begins as here": ("Host", (("host", "127.0.0.1.evil.example:2024"),)),
    "a name that ends as here": ("Host", (("host", "evil.localhost:2024"),)),
    "a user at a name": ("Host", (("host", "127.0.0.1@evil.example"),)),
    "a user at here": ("Host", (("host", "evil@127.0.0.1"),)),
    "all addresses": ("Host", (("host", "0.0.0.0:2024"),)),
    "another machine": ("Host", (("host", "192.0.2.2:2024"),)),
    "a path": ("Host", (("host", "127.0.0.1/evil.example"),)),
    "a wrong port": ("Host", (("host", "127.0.0.1:port"),)),
    "half a bracket": ("Host", (("host", "[::1"),)),
    "no host": ("Host", ()),
    "two hosts": ("Host", (HERE, ("host", "evil.example"))),
}


def raw(given: Given) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in given]


def told(given: Given, peer: str | None = "127.0.0.1") -> str | None:
    return refusal(Headers(raw=raw(given)), peer, named_origins())


@pytest.mark.parametrize("given", ANSWERED.values(), ids=ANSWERED)
def test_programs_of_this_machine_and_studios_page_are_answered(given: Given) -> None:
    assert told(given) is None
    assert told(given, "::1") is None


@pytest.mark.parametrize(("header", "given"), REFUSED.values(), ids=REFUSED)
def test_pages_and_names_of_others_are_refused_by_header(header: str, given: Given) -> None:
    assert (told(given) or "").startswith(f"{header}: ")


@pytest.mark.parametrize("peer", ["192.0.2.2", "0.0.0.0", "2001:db8::1", "localhost", "", None])
def test_another_machine_is_refused_whatever_it_sends(peer: str | None) -> None:
    assert told((HERE,), peer) == "this server answers requests of its own machine only"


async def answers(kind: str, given: Given, **scope: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What is sent in answer to a request, and the requests that reach the server behind."""
    sent: list[dict[str, Any]] = []
    reached: list[dict[str, Any]] = []

    async def server(passed: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0)
        reached.append(passed)

    async def send(message: Any) -> None:
        await asyncio.sleep(0)
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("no body is read")

    asked = {"type": kind, "headers": raw(given), "client": ("127.0.0.1", 5), "path": "/", "root_path": ""} | scope
    await LocalRequests(server, named_origins())(asked, receive, send)
    return sent, reached


@pytest.mark.parametrize("path", ["/", "/ok", "/docs", "/noauth/threads", "/threads/search", "/ui/x", "/mcp/"])
async def test_a_refused_request_reaches_no_route(path: str) -> None:
    given = (HERE, ("origin", "https://evil.example"))
    for method in ("GET", "POST", "OPTIONS"):
        (start, body), reached = await answers("http", given, path=path, method=method)
        assert (start["status"], reached) == (403, [])
        assert not any(name.startswith(b"access-control") for name, _ in start["headers"])
        assert b"name it in http.cors.allow_origins" in body["body"]
    (closed,), reached = await answers("websocket", given, path=path)
    assert (closed["type"], closed["code"], reached) == ("websocket.close", 1008, [])


async def test_what_passes_reaches_the_server_as_it_was_but_for_the_question_that_it_cannot_answer() -> None:
    asked = (HERE, ("origin", STUDIO), ("Access-Control-Request-Private-Network", "true"), ("x-mine", "1"))
    for kind in ("http", "websocket"):
        sent, (passed,) = await answers(kind, asked)
        assert (sent, passed["headers"]) == ([], raw((HERE, ("origin", STUDIO), ("x-mine", "1"))))


async def test_the_servers_own_clients_and_its_start_pass() -> None:
    for scope in ({"type": "lifespan"}, {"type": "http", "root_path": "/noauth", "headers": raw((("host", "api"),))}):
        sent, reached = await answers("http", (), **scope)
        assert (sent, len(reached)) == ([], 1)


def test_langgraph_json_puts_the_middleware_around_every_route_and_names_studios_page_alone() -> None:
    """`langgraph dev` reads this file as `coevolve studio` does: both start the same server."""
    from graph.studio import server

    http = json.loads((ROOT / "langgraph.json").read_text())["http"]
    assert http["app"] == f"{server.__name__}:app"
    assert "middleware_order" not in http, "the server would wrap its own routes alone"
    assert [one.cls for one in server.app.user_middleware] == [LocalRequests]
    assert http["cors"]["allow_origins"] == [STUDIO] == [*named_origins()]
