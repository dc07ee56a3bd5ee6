"""Exchange messages between the project and the engine's processes: JSON, each after its length in four bytes."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

MAX_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 64
"""Most levels of lists and objects in values of agents' code; our own messages are flat."""
_LENGTH = struct.Struct(">I")


class ConnectionEnded(ConnectionError):
    """The peer closed the connection, or its process ended."""


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one message.

    Raises ConnectionEnded, TimeoutError (the socket's own), ValueError for one that is too long or not JSON.
    """
    body = json.dumps(message, allow_nan=False).encode()
    if len(body) > MAX_BYTES:
        raise ValueError(f"a message of {len(body)} bytes is longer than {MAX_BYTES}")
    try:
        connection.sendall(_LENGTH.pack(len(body)) + body)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ConnectionEnded("the connection ended while sending") from error


def receive(connection: socket.socket, seconds: float | None = None, most: int = MAX_BYTES) -> dict[str, Any]:
    """Return the next message, complete within ``seconds`` (None: no limit; not inside a world, where time is frozen).

    For any bytes from the peer, this returns JSON of at most ``most`` bytes whose texts can be encoded, or raises
    TimeoutError, ConnectionEnded, or ValueError.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, deadline))
    if length > most:
        raise ValueError(f"a message of {length} bytes is longer than {most}")
    message = parsed(_exactly(connection, length, deadline))
    if not isinstance(message, dict):
        raise ValueError("a message that is no JSON object")
    return message


def parsed(body: bytes | str) -> Any:  # noqa: ANN401 - JSON
    """Parse untrusted JSON. Raises ValueError for anything else, NaN and half surrogates included."""
    try:
        value = json.loads(body, parse_constant=_refused)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def as_json(value: Any) -> Any:  # noqa: ANN401
    """Return a copy of ``value`` as plain JSON that shares nothing with it.

    Raises ValueError for a value that is not JSON: other types, NaN, a text with half a surrogate, more than
    ``MAX_DEPTH`` levels. ``value`` may be of an agent's own classes, whose methods are called here for the last time.
    """
    try:
        plain = parsed(json.dumps(value, allow_nan=False))
    except (TypeError, RecursionError) as error:
        raise ValueError(said(error)) from None
    if depth_of(plain) > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    return plain


def said(error: BaseException) -> str:
    """Return the error's type and text, also where its class raises for them."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - the text is an agent's
        text = "(its text cannot be had)"
    return encodable(f"{type(error).__name__}: {text}")


def encodable(text: str) -> str:
    """Return ``text`` with half surrogates, which cannot be encoded, written as escapes."""
    return text.encode(errors="backslashreplace").decode()


def _refused(constant: str) -> Any:  # noqa: ANN401
    raise ValueError(f"{constant} is not JSON")


def depth_of(value: Any) -> int:  # noqa: ANN401 - JSON
    """Return the nesting depth of lists and objects, without recursion, which would fail for deep values."""
    depth, level = 0, [value]
    while level:
        inner = [item for item in level if isinstance(item, list | dict)]
        depth += bool(inner)
        level = [child for item in inner for child in (item.values() if isinstance(item, dict) else item)]
    return depth


def _exactly(connection: socket.socket, count: int, deadline: float | None) -> bytes:
    parts = []
    while count:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no whole message within the deadline")
            connection.settimeout(left)
        try:
            part = connection.recv(min(count, 1 << 20))
        except ConnectionResetError as error:
            raise ConnectionEnded("the connection was reset") from error
        if not part:
            raise ConnectionEnded("the connection ended")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
