"""Exchanges with one ``appworld serve environment`` server: JSON over HTTP, each within its deadline."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

import httpx

from environments.appworld.engine.protocol import parsed
from environments.base import EnvironmentFault

QUOTED = 2000  # characters of a server's answer that a fault quotes
MAX_BYTES = 64 * 1024 * 1024  # of an answer
_ENVIRONMENT = "/initialize"  # among the paths of a server of environments, and of no other of the package's


class NoAnswer(EnvironmentFault):
    """The server did not answer in time: it is at work, or hangs."""


class Server:
    """A server by its base URL. It is reached directly, whatever proxy this process's variables name.

    May be used from several threads. Raises EnvironmentFault, with the server's words where it gave any.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        # A connection for each request: a world stops the server's clock, and so the time-outs of idle connections.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(trust_env=False, limits=limits, headers={"Connection": "close"})

    def check(self, seconds: float) -> None:
        """Raise EnvironmentFault unless this is a server of AppWorld environments."""
        described = self._exchange("GET", "/openapi.json", None, seconds)
        if not isinstance(described, dict) or _ENVIRONMENT not in described.get("paths", ()):
            raise self.fault("it is no server of AppWorld environments")

    def greet(self, seconds: float) -> None:
        """Raise NoAnswer while it is at work, EnvironmentFault when it cannot be reached."""
        self._exchange("GET", "/", None, seconds)

    def ask(self, path: str, message: dict[str, Any], seconds: float) -> Any:  # noqa: ANN401 - JSON, for a record to read
        """What it answers to ``message`` as ``output``."""
        answer = self._exchange("POST", path, message, seconds)
        if not isinstance(answer, dict) or "output" not in answer:
            raise self.fault(f"its answer to {path} has no output: {str(answer)[:QUOTED]}")
        return answer["output"]

    def fault(self, what: str) -> EnvironmentFault:
        """The fault that tells ``what`` happened."""
        return EnvironmentFault(f"AppWorld's server {self.url}: {what}")

    def _exchange(self, method: str, path: str, message: dict[str, Any] | None, seconds: float) -> Any:  # noqa: ANN401
        try:
            status, body = self._answer(method, path, message, seconds)
        except httpx.TimeoutException as error:
            raise self._late(path, seconds) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self.fault(f"{path} failed: {str(error) or type(error).__name__}") from error
        if status != HTTPStatus.OK:
            said = body[:QUOTED].decode(errors="replace").strip()
            raise self.fault(f"it answered {path} with HTTP status {status}: {said} (its own log may say why)")
        try:
            return parsed(body)
        except ValueError as error:
            raise self.fault(f"its answer to {path} is no JSON ({error})") from error

    def _answer(self, method: str, path: str, message: dict[str, Any] | None, seconds: float) -> tuple[int, bytes]:
        deadline = time.monotonic() + seconds
        parts, size = [], 0
        with self._client.stream(method, self.url + path, json=message, timeout=seconds) as response:
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > MAX_BYTES:
                    raise self.fault(f"its answer to {path} is longer than {MAX_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise self._late(path, seconds)
        return response.status_code, b"".join(parts)

    def _late(self, path: str, seconds: float) -> NoAnswer:
        return NoAnswer(f"AppWorld's server {self.url}: it did not answer {path} within {seconds:g} s")
