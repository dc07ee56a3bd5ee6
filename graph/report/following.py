"""Serves the page of a run that goes on, to this machine's browsers: `coevolve report RUN --serve`.

The page is the file that `coevolve report` writes, and a script that asks every few seconds whether the records have
changed. Only then the page is made again. A browser lets any site send requests to this machine, so the server answers
only those that name it by a loopback address (a site that points its own name here is refused), and gives two paths:
the page, and the version of the records.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple, NoReturn

from environments.base import InputError
from memory.run import RunDirectory

LOOPBACK = "127.0.0.1"
PAGE, VERSION = "/", "/version"
LEAST_WAIT = 4
"""Seconds between two questions of a page for the version (ours)."""
SHARE = 10
"""Seconds that a page waits before it is loaded again, per second that making it takes (ours)."""
REQUEST_SECONDS = 30
_SUFFIXES = (".json", ".jsonl", ".yaml")
_POLICY = b"default-src 'none'; script-src "
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
SCRIPT = r"""
"use strict";
(() => {
  let used = 0, shown = "", bar = null;
  for (const name of ["keydown", "pointerdown", "wheel"]) addEventListener(name, () => { used = Date.now(); }, true);
  const notify = (words, act) => {
    if (!bar) {
      bar = document.createElement("button");
      bar.type = "button";
      bar.id = "following";
      Object.assign(bar.style, {position: "fixed", right: "1rem", bottom: "1rem", zIndex: 9, padding: "0.5rem 0.9rem",
        font: "inherit", color: "Canvas", background: "CanvasText", border: "0", borderRadius: "0.4rem"});
      document.body.append(bar);
    }
    bar.textContent = words;
    bar.onclick = act;
  };
  const ask = async () => {
    let wait = 4;
    try {
      const answer = await fetch("/version", {cache: "no-store"});
      const [first, refusal] = (await answer.text()).split("\n", 2);
      if (!answer.ok) throw new Error(first);
      const [version, seconds] = first.split(" ");
      wait = Number(seconds) || wait;
      if (!shown) shown = document.documentElement.dataset.version;
      if (refusal) notify(`The page is older than the records: ${refusal}`, () => location.reload());
      else if (version !== shown) {
        if (Date.now() - used > 20000 && !document.hidden) { location.reload(); return; }
        notify("New records: reload", () => location.reload());
      } else if (bar) { bar.remove(); bar = null; }
    } catch { notify("The server has ended", () => location.reload()); }
    setTimeout(ask, 1000 * wait);
  };
  setTimeout(ask, 1000);
})();
"""
"""Asks for the version and loads the page again, or offers to where somebody uses it."""


class _Made(NamedTuple):
    """A page, the version of the records that it shows, and the seconds that it took."""

    page: bytes
    version: str
    seconds: float


class Follower:
    """Makes the page of a run, again where a record changed since; safe to call from several threads."""

    def __init__(self, run: RunDirectory, render: Callable[[RunDirectory], bytes]) -> None:
        self.run = run
        self._render = render
        self._making = threading.Lock()
        self._made: _Made | None = None
        self._refused: tuple[str, str] | None = None

    def version(self) -> str:
        """Return a text that differs after a record was written."""
        return hashlib.sha256("\n".join(sorted(_stamps(self.run))).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def refusal(self, version: str) -> str:
        """Return why there is no page of this version of the records; empty where there is, or nobody asked yet."""
        return self._refused[1] if self._refused is not None and self._refused[0] == version else ""

    @property
    def wait(self) -> int:
        """Return the seconds that a page waits until it asks again."""
        return max(LEAST_WAIT, round(SHARE * (self._made.seconds if self._made is not None else 0)))

    def page(self) -> bytes:
        """Return the page of the records as they are now; the last one where they cannot be read (``refusal``).

        Half a record may be written at this moment. Raises InputError where there is no page yet.
        """
        with self._making:
            version, start = self.version(), time.perf_counter()
            known = self._made is not None and version in (self._made.version, self._refused and self._refused[0])
            if not known:
                try:
                    page = followed(self._render(self.run), version)
                except InputError as error:
                    self._refused = version, str(error)
                    if self._made is None:
                        raise
                else:
                    self._made, self._refused = _Made(page, version, time.perf_counter() - start), None
            assert self._made is not None
            return self._made.page


def followed(page: bytes, version: str) -> bytes:
    """Return a page that asks its own server for the version of its records, and nothing else of anybody."""
    head, policy, rest = page.partition(_POLICY)
    body, end, tail = rest.rpartition(b"</body>")
    if not policy or not end or b"<html " not in head:
        raise RuntimeError("the page has another policy or end than the server knows")
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    head = head.replace(b"<html ", f'<html data-version="{version}" '.encode(), 1)
    allowed = f"default-src 'none'; connect-src 'self'; script-src 'sha256-{digest}' ".encode()
    return b"".join((head, allowed, body, f"<script>{SCRIPT}</script>\n".encode(), end, tail))


def _stamps(run: RunDirectory) -> Iterator[str]:
    """Yield the record files of a run with their sizes and times; folders of weights and indices are left out."""
    others = {run.policy_path, run.failures_path, run.served_path}
    for folder, names, files in os.walk(run.root):
        names[:] = [name for name in names if Path(folder, name) not in others]
        for file in files:
            if file.endswith(_SUFFIXES):
                path = Path(folder, file)
                try:
                    found = path.stat()
                except FileNotFoundError:  # replaced at this moment
                    continue
                yield f"{path} {found.st_size} {found.st_mtime_ns}"


def page_server(follower: Follower, port: int = 0) -> ThreadingHTTPServer:
    """Return a server on a port of loopback, 0 for a free one; it listens, ``serve_forever`` answers.

    Raises InputError for a port that is taken or not allowed.
    """

    class Answers(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        server_version, sys_version = "coevolve", ""
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hosts = {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}  # type: ignore[attr-defined]
            if self.headers.get("Host", "") not in hosts:
                self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"this server answers to its own address only\n")
            elif self.path == VERSION:
                version = follower.version()
                words = f"{version} {follower.wait}\n{' '.join(follower.refusal(version).split())}"
                self._answer(HTTPStatus.OK, words.encode(errors="replace"))
            elif self.path == PAGE:
                try:
                    page, status, kind = follower.page(), HTTPStatus.OK, "text/html"
                except InputError as error:
                    words = html.escape(str(error))
                    page = f'<!doctype html><meta http-equiv="refresh" content="{LEAST_WAIT}"><p>{words}'.encode()
                    status, kind = HTTPStatus.SERVICE_UNAVAILABLE, "text/html"
                self._answer(status, page, kind)
            else:
                self._answer(HTTPStatus.NOT_FOUND, b"this server has one page, at /\n")

        def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
            self.send_response(status)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            """Log nothing: a page asks every few seconds."""

    try:
        return _Server((LOOPBACK, port), Answers)
    except OSError as error:
        raise InputError(f"--port {port}: {error.strerror}: choose another one, or 0 for a free one") from None


class _Server(ThreadingHTTPServer):
    """One thread per request; it waits for none of them when it ends."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Print bugs only: a browser may leave before it has its answer."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def follow(run: RunDirectory, render: Callable[[RunDirectory], bytes], port: int = 0) -> NoReturn:
    """Serve the page of a run until SIGINT (exit status 130) or SIGTERM (143), and print its address.

    Raises InputError for a port that is taken, and for a damaged record; a run without records yet is waited for.
    """
    from graph.run.interruption import exit_on_signals
    from memory.processes import watch_parent

    exit_on_signals()
    watch_parent()
    with page_server(Follower(run, render), port) as server:
        print(f"http://{LOOPBACK}:{server.server_port}/ follows {run.root}: end it with Ctrl-C", flush=True)
        server.serve_forever(poll_interval=0.2)
    raise AssertionError("only a signal ends it")
