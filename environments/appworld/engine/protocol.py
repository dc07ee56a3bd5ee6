"""Messages between the project and the engine's processes: JSON, each after its length in four bytes."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

MAX_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")


class ConnectionEnded(ConnectionError):
    """The other side is gone: it closed the connection, or its process ended."""


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one message. Raises ConnectionEnded, TimeoutError (the socket's own), ValueError for one too long."""
    body = json.dumps(message).encode()
    if len(body) > MAX_BYTES:
        raise ValueError(f"a message of {len(body)} bytes is longer than {MAX_BYTES}")
    try:
        connection.sendall(_LENGTH.pack(len(body)) + body)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ConnectionEnded("the connection ended while sending") from error


def receive(connection: socket.socket, seconds: float | None = None) -> dict[str, Any]:
    """The next message, whole within ``seconds`` (None: no limit; not inside a world, where clocks stand still).

    Raises TimeoutError, ConnectionEnded, and ValueError for what is no message.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, deadline))
    if length > MAX_BYTES:
        raise ValueError(f"a message of {length} bytes is longer than {MAX_BYTES}")
    message = json.loads(_exactly(connection, length, deadline))
    if not isinstance(message, dict):
        raise ValueError("a message that is no JSON object")
    return message


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
