"""An HTTP server whose answers a test writes down, for what a real AppWorld server does not do on demand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWERS = {"/": {"message": "Welcome"}, "/openapi.json": {"paths": {"/initialize": {}}}}
"""What a server of environments answers to who looks whether it is one."""

Answer = Callable[[BaseHTTPRequestHandler], None]


def said(value: object, status: int = 200) -> Answer:
    """Answer with the value as JSON, a text as it is."""
    body = value.encode() if isinstance(value, str) else json.dumps(value).encode()

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def dripped(seconds: float) -> Answer:
    """Answer without end, a byte at a time, or until ``seconds`` are over."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            request.wfile.write(b" ")
            time.sleep(0.05)

    return answer


def cut_off(request: BaseHTTPRequestHandler) -> None:
    """Promise more than comes."""
    request.send_response(200)
    request.send_header("Content-Length", "100")
    request.end_headers()
    request.wfile.write(b'{"output"')


@contextmanager
def scripted(answers: dict[str, Answer] | None = None) -> Iterator[str]:
    """The base URL of a server that answers each path as ``answers`` says, besides those of ``ANSWERS``."""
    known = {path: said(value) for path, value in ANSWERS.items()} | (answers or {})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):  # who asked is gone
                known.get(self.path, said("no such path", 404))(self)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
