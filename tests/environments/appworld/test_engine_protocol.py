"""Messages over a socket: whole, within a deadline, and errors for what is none."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.appworld.engine.protocol import MAX_BYTES, ConnectionEnded, receive, send


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text()), max_size=5))
def test_what_is_sent_is_received(message: dict[str, Any]) -> None:
    left, right = socket.socketpair()
    with left, right:
        send(left, message)
        send(left, {"next": 1})
        assert receive(right, 5.0) == message
        assert receive(right, 5.0) == {"next": 1}


def test_a_long_message_arrives_in_parts(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    message = {"text": "é" * 3_000_000}
    thread = threading.Thread(target=send, args=(left, message))
    thread.start()
    assert receive(right, 20.0) == message
    thread.join(20)


def test_the_deadline_is_for_the_whole_message(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    stop = threading.Event()

    def drip() -> None:
        left.sendall(struct.pack(">I", 1000))
        while not stop.wait(0.05):
            left.sendall(b" ")

    thread = threading.Thread(target=drip)
    thread.start()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        receive(right, 0.5)
    assert time.monotonic() - began < 30
    stop.set()
    thread.join(5)


@pytest.mark.parametrize("written", [b"", b"\0\0", struct.pack(">I", 9) + b"{}"], ids=["none", "in length", "in body"])
def test_an_end_within_a_message_is_told(pair: tuple[socket.socket, socket.socket], written: bytes) -> None:
    left, right = pair
    left.sendall(written)
    left.close()
    with pytest.raises(ConnectionEnded):
        receive(right, 5.0)


@pytest.mark.parametrize(
    "written", [struct.pack(">I", MAX_BYTES + 1), struct.pack(">I", 2) + b"[]", struct.pack(">I", 2) + b"{x"]
)
def test_what_is_no_message_is_refused(pair: tuple[socket.socket, socket.socket], written: bytes) -> None:
    left, right = pair
    left.sendall(written)
    with pytest.raises(ValueError, match=r"longer|no JSON object|Expecting"):
        receive(right, 5.0)


def test_sending_to_nobody_is_told(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    right.close()
    with pytest.raises(ConnectionEnded):
        send(left, {"text": "x"})
