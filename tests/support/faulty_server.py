"""An OpenAI-compatible chat endpoint for tests: FastAPI on uvicorn, in a thread, with faults by hash of the request.

    with FaultyServer(lambda request: {"number": 4}, faults=Schedule(0.2), latency=0.05) as server:
        ...  # server.url is the base_url; server.requests what came in; server.injected the faults by kind

What is answered depends on the request and on how often it came before, never on order or time, so that equal runs
meet equal faults. A request that was sent again is the same request: its attempts are counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

KEY = "sk-a-secret-of-the-tests-0123456789"
"""What the tests' endpoints are asked with; it must never be seen in a file or message."""


STALL = 60.0
"""Seconds that a stalled request hangs: the client's deadline is what ends it."""
PATIENCE = 60.0
"""Seconds that requests wait for each other."""
MEGABYTE = 2**20


class Fault(StrEnum):
    """What can go wrong with one request."""

    MALFORMED = "malformed JSON"
    SCHEMA = "wrong schema"
    EMPTY = "empty choices"
    REFUSAL = "refusal"
    LIMIT = "429 with Retry-After"
    ERROR = "500, twice in a row"
    RESET = "connection reset"
    STALL = "stall"
    LONG = "reply of a megabyte"
    GARBAGE = "200 with HTML"


@dataclass(frozen=True)
class ChatRequest:
    """One request as it came in. ``attempt`` counts from 0 how often the same body came before."""

    body: dict[str, Any]
    attempt: int
    authorization: str = ""
    headers: tuple[str, ...] = ()

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body["messages"]

    @property
    def system(self) -> str:
        return self.messages[0]["content"]

    @property
    def prompt(self) -> str:
        """The role's own user message."""
        return self.messages[1]["content"]

    @property
    def last(self) -> str:
        return self.messages[-1]["content"]

    @property
    def repairs(self) -> bool:
        """Whether this is a repair turn."""
        return len(self.messages) > 2

    @property
    def by_tool(self) -> bool:
        """Whether the reply is asked for as a tool call."""
        return "tools" in self.body

    @property
    def schema(self) -> str:
        """Name of the schema that is asked for."""
        if self.by_tool:
            return self.body["tools"][0]["function"]["name"]
        return self.body.get("response_format", {}).get("json_schema", {}).get("name", "")

    def draw(self, *salt: object) -> float:
        """A number in [0, 1) by hash of the request and its attempt."""
        return draw(json.dumps(self.body, sort_keys=True), self.attempt, *salt)


def draw(*parts: object) -> float:
    """A number in [0, 1) by hash."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") / 2**64


@dataclass(frozen=True)
class Schedule:
    """Gives each attempt a fault with probability ``share``, of the kinds in ``faults`` alike."""

    share: float
    faults: Sequence[Fault] = tuple(Fault)
    seed: int = 0

    def __call__(self, request: ChatRequest) -> Fault | None:
        if request.attempt and self._drawn(ChatRequest(request.body, request.attempt - 1)) is Fault.ERROR:
            return Fault.ERROR
        return self._drawn(request)

    def _drawn(self, request: ChatRequest) -> Fault | None:
        if request.draw("fault", self.seed) >= self.share:
            return None
        return self.faults[int(request.draw("kind", self.seed) * len(self.faults))]


@dataclass(frozen=True)
class Raw:
    """An answer that is sent as it stands: a status, a body and headers."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


Answer = dict[str, Any] | str | Fault | Raw
Formats = Literal["both", "rejects_schema"]


class FaultyServer:
    """The endpoint; it runs within ``with``.

    Args:
        answer: maps a request to its answer: a dict is the reply's JSON (by tool call where that is asked for), a
            text is plain text, a ``Fault`` that fault, ``Raw`` is sent as it stands. It runs on the server's loop.
        latency: seconds before every answer that is no stall.
        faults: a fault for each request and attempt, or None to let ``answer`` answer.
        formats: whether ``response_format`` is accepted, or rejected with status 400.
        retry_after: the header of status 429.
        stall: seconds of a stall.
        together: how many requests must have been in flight at once before any is answered; each waits for that for
            ``PATIENCE`` at most.
    """

    def __init__(
        self,
        answer: Callable[[ChatRequest], Answer],
        *,
        latency: float = 0.0,
        faults: Callable[[ChatRequest], Fault | None] | None = None,
        formats: Formats = "both",
        retry_after: str = "0.05",
        stall: float = STALL,
        together: int = 0,
    ) -> None:
        self._answer = answer
        self._latency = latency
        self._faults = faults
        self._formats = formats
        self._retry_after = retry_after
        self._stall = stall
        self._together = together
        self.requests: list[ChatRequest] = []
        self.injected: Counter[Fault] = Counter()
        self.most_in_flight = 0
        self._in_flight = 0
        self._seen: Counter[str] = Counter()
        app = FastAPI()
        app.post("/v1/chat/completions")(self._serve)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        config = uvicorn.Config(app, log_level="critical", lifespan="off", http=_Resettable, timeout_keep_alive=60)
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        """The ``base_url`` of the endpoint."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"

    def __enter__(self) -> FaultyServer:
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.ready:
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.005)
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.stop()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server does not stop"
        self._socket.close()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._server.serve(sockets=[self._socket]))

    async def _serve(self, http: Request) -> Response:
        body = await http.json()
        fingerprint = json.dumps(body, sort_keys=True)
        request = ChatRequest(body, self._seen[fingerprint], http.headers.get("authorization", ""), tuple(http.headers))
        self._seen[fingerprint] += 1
        self.requests.append(request)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            end = time.monotonic() + PATIENCE
            while self.most_in_flight < self._together and time.monotonic() < end:
                await asyncio.sleep(0.01)
            return await self._respond(request, http)
        finally:
            self._in_flight -= 1

    async def _respond(self, request: ChatRequest, http: Request) -> Response:
        fault = self._faults(request) if self._faults is not None else None
        answer = fault or self._answer(request)
        if isinstance(answer, Fault):
            self.injected[answer] += 1
        await asyncio.sleep(self._stall if answer is Fault.STALL else self._latency)
        if answer is Fault.RESET:
            _reset(http.state.transport)
        if self._formats == "rejects_schema" and "response_format" in request.body:
            answer = Raw(400, _error("'response_format' of type 'json_schema' is not supported with this model"))
        raw = self._raw(answer, request)
        if isinstance(raw.body, str):
            return Response(raw.body, raw.status, raw.headers)
        return JSONResponse(raw.body, raw.status, raw.headers)

    def _raw(self, answer: Answer, request: ChatRequest) -> Raw:
        if isinstance(answer, Raw):
            return answer
        if answer is Fault.EMPTY:
            return Raw(200, {**completion(request, {}), "choices": []})
        if answer is Fault.LIMIT:
            return Raw(429, _error("too many requests"), {"Retry-After": self._retry_after})
        if answer is Fault.ERROR:
            return Raw(500, _error("the server had an error"))
        if answer is Fault.GARBAGE:
            return Raw(200, "<html>gateway</html>", {"content-type": "text/html"})
        return Raw(200, completion(request, self._message(answer, request)))

    def _message(self, answer: Answer, request: ChatRequest) -> dict[str, Any]:
        if answer is Fault.REFUSAL:
            return {"content": None, "refusal": "I can't help with that."}
        if isinstance(answer, str) and not isinstance(answer, Fault):
            return {"content": answer}
        texts = {
            Fault.MALFORMED: '{"broken": [1, 2',
            Fault.SCHEMA: '{"surprise": 1}',
            Fault.LONG: json.dumps({"surprise": "x" * MEGABYTE}),
        }
        text = texts[answer] if isinstance(answer, Fault) else json.dumps(answer)
        if request.by_tool:
            function = {"name": request.schema, "arguments": text}
            return {"content": None, "tool_calls": [{"id": "call-1", "type": "function", "function": function}]}
        return {"content": text}


def completion(request: ChatRequest, message: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    """A chat completion with ``message``; a token is four characters."""
    prompt = sum(len(one["content"] or "") for one in request.messages) // 4
    written = len(json.dumps(message)) // 4
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": request.body["model"],
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written},
    }


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "made", "code": None, "param": None}}


class _Server(uvicorn.Server):
    """Stops at once when it is told to, where uvicorn looks ten times a second; stalled requests are not waited for."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.force_exit = True
        self._stopped = asyncio.Event()
        self.ready = False

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.on_tick(0)
        self.ready = True
        await self._stopped.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close what is open; uvicorn waits a tenth of a second for answers that nobody reads."""
        for one in (*self.servers, *(sockets or ())):
            one.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)


class _Resettable(H11Protocol):
    """Hands its transport to the application, which may cut the connection."""

    def connection_made(self, transport: Any) -> None:
        self.app_state = {**self.app_state, "transport": transport}
        super().connection_made(transport)


def _reset(transport: asyncio.Transport) -> None:
    """Close the connection with RST instead of FIN."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
