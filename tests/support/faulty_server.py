"""An OpenAI-compatible chat endpoint for tests: a server in a thread, with faults by hash of the request.

    with FaultyServer(lambda request: {"number": 4}, latency=0.05) as server:
        ...  # server.url is the base_url; server.requests what came in; server.injected the faults by kind

What is answered depends on the request and on how often it came before, never on order or time, so that equal runs
meet equal faults. A request that was sent again is the same request: its attempts are counted.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agents.chat.parameters import parameters_of

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
    ERROR = "500"
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
    def repairs(self) -> bool:
        """Whether this is a repair turn."""
        return len(self.messages) > 2

    @property
    def schema(self) -> str:
        """Name of the schema that is asked for."""
        return self.body.get("response_format", {}).get("json_schema", {}).get("name", "")

    def draw(self, *salt: object) -> float:
        """A number in [0, 1) by hash of the request and its attempt."""
        parts = (json.dumps(self.body, sort_keys=True), self.attempt, *salt)
        return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") / 2**64


@dataclass(frozen=True)
class Raw:
    """An answer that is sent as it stands: a status, a body and headers."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


Answer = dict[str, Any] | str | Fault | Raw


class FaultyServer(ThreadingHTTPServer):
    """The endpoint; it runs within ``with``.

    Args:
        answer: maps a request to its answer: a dict is the reply's JSON, a text is plain text, a ``Fault`` that fault,
            ``Raw`` is sent as it stands. It is called for one request at a time.
        latency: seconds before every answer that is no stall.
        faults: a fault for each request and attempt, or None to let ``answer`` answer.
        together: how many requests must have been in flight at once before any is answered; each waits for that for
            ``PATIENCE`` at most.
    """

    request_queue_size = 512

    def __init__(
        self,
        answer: Callable[[ChatRequest], Answer],
        *,
        latency: float = 0.0,
        faults: Callable[[ChatRequest], Fault | None] = lambda request: None,
        together: int = 0,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._answer = answer
        self._latency = latency
        self._faults = faults
        self._together = together
        self.requests: list[ChatRequest] = []
        self.injected: Counter[Fault] = Counter()
        self.most_in_flight = 0
        self._in_flight = 0
        self._seen: Counter[str] = Counter()
        self._changed = threading.Condition()
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        """The ``base_url`` of the endpoint."""
        return f"http://127.0.0.1:{self.server_port}/v1"

    def __enter__(self) -> FaultyServer:
        parameters_of.cache_clear()  # an earlier server may have had the port
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stopped.set()  # stalled requests are not waited for
        self.shutdown()
        self.server_close()

    def shutdown_request(self, request: Any) -> None:
        """Close a connection without the FIN that the base class sends first, so that it can be reset."""
        request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing where a client went away before its answer."""

    def reply(self, body: dict[str, Any], headers: dict[str, str]) -> Raw | None:
        """The answer to a request; None where its connection is to be reset."""
        fingerprint = json.dumps(body, sort_keys=True)
        with self._changed:
            request = ChatRequest(body, self._seen[fingerprint], headers.get("authorization", ""), tuple(headers))
            self._seen[fingerprint] += 1
            self.requests.append(request)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most_in_flight >= self._together, PATIENCE)
            answer = self._faults(request) or self._answer(request)
            if isinstance(answer, Fault):
                self.injected[answer] += 1
        self.stopped.wait(STALL if answer is Fault.STALL else self._latency)
        with self._changed:
            self._in_flight -= 1
        return None if answer is Fault.RESET else self._raw(answer, request)

    def _raw(self, answer: Answer, request: ChatRequest) -> Raw:
        if isinstance(answer, Raw):
            return answer
        if answer is Fault.EMPTY:
            return Raw(200, {**completion(request, {}), "choices": []})
        if answer is Fault.LIMIT:
            return Raw(429, _error("too many requests"), {"Retry-After": "0.05"})
        if answer is Fault.ERROR:
            return Raw(500, _error("the server had an error"))
        if answer is Fault.GARBAGE:
            return Raw(200, "<html>gateway</html>", {"Content-Type": "text/html"})
        return Raw(200, completion(request, self._message(answer)))

    def _message(self, answer: Answer) -> dict[str, Any]:
        if answer is Fault.REFUSAL:
            return {"content": None, "refusal": "I can't help with that."}
        texts = {
            Fault.MALFORMED: '{"broken": [1, 2',
            Fault.SCHEMA: '{"surprise": 1}',
            Fault.LONG: json.dumps({"surprise": "x" * MEGABYTE}),
        }
        if isinstance(answer, Fault):
            return {"content": texts[answer]}
        return {"content": answer if isinstance(answer, str) else json.dumps(answer)}


class _Handler(BaseHTTPRequestHandler):
    server: FaultyServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        raw = self.server.reply(body, {name.lower(): value for name, value in self.headers.items()})
        if raw is None or self.server.stopped.is_set():
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
            self.close_connection = True
            return
        data = (raw.body if isinstance(raw.body, str) else json.dumps(raw.body)).encode()
        self.send_response(raw.status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **raw.headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: object) -> None:
        """Log nothing."""


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
