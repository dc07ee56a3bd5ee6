"""A warm process that forks one child for each connection it is handed, and ends them all when its parent is gone.

The control connection is inherited. Over it come ``open`` (followed by the child's own end of a connection, as a file
descriptor), ``kill`` and ``ping``; when it ends, so does everything here. No name in the file system leads to a zygote
or a child, so that code in one child can reach no other.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from environments.appworld.engine.protocol import ConnectionEnded, receive, send

Operation = Callable[..., Any]
_REAP_EVERY = 1.0  # seconds
_MESSAGE_SECONDS = 10.0  # for the rest of a message that has begun
_CPU_SECONDS = 7200  # of a whole episode: what ends one that nobody watches any more
_LARGEST_FILE = 64 * 1024 * 1024
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def inherited_control() -> socket.socket:
    """The control connection, whose descriptor is the program's only argument."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


def serve(control: socket.socket, scratch: Path, operations: Callable[[], dict[str, Operation]]) -> NoReturn:
    """Fork a child for each ``open`` until the control connection ends, then end the children and remove ``scratch``.

    After a failure of its own it ends too but leaves ``scratch``, where its log is, to the other side.

    ``operations`` is called in each child and gives what the child does by name. ``settle`` must have been called.
    """
    children: set[int] = set()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    send(control, {"ready": os.getpid()})
    status = 0
    try:
        while True:
            heard = poll.poll(_REAP_EVERY * 1000)
            _reap(children)
            if heard:
                _obey(control, receive(control, _MESSAGE_SECONDS), children, operations)
    except ConnectionEnded:
        pass
    except BaseException:  # noqa: BLE001 - told in the log, which the parent quotes
        traceback.print_exc()
        sys.stderr.flush()
        status = 1
    for child in children:
        _kill(child)
    if status == 0:
        _remove(scratch)
    os._exit(status)


def _obey(
    control: socket.socket,
    message: dict[str, Any],
    children: set[int],
    operations: Callable[[], dict[str, Operation]],
) -> None:
    if message["op"] == "open":
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        connection = socket.socket(fileno=descriptors[0])
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            control.close()
            _live(connection, parent, operations)
        with suppress(OSError):  # the child does it too: whoever comes first
            os.setpgid(child, child)
        connection.close()
        children.add(child)
        send(control, {"pid": child})
    elif message["op"] == "kill":
        # Only a child that was not collected yet: its number cannot belong to another process.
        send(control, {"killed": message["pid"] in children and _kill(message["pid"])})
    else:
        send(control, {"alive": len(children)})


def _reap(children: set[int]) -> None:
    for child in list(children):
        ended, _ = os.waitpid(child, os.WNOHANG)
        if ended:
            _kill(child)  # what is left of its group
            children.discard(child)


def _kill(child: int) -> bool:
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _remove(scratch: Path) -> None:
    """Remove the folder, again while a killed child's last write may still make it fail."""
    for _ in range(20):
        shutil.rmtree(scratch, ignore_errors=True)
        if not scratch.exists():
            return
        time.sleep(0.05)


def _live(connection: socket.socket, parent: int, operations: Callable[[], dict[str, Operation]]) -> NoReturn:
    """Be a child: a process group of its own, limits, then answer requests until the connection ends."""
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        _die_with(parent)
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        connection.setblocking(True)
        answer_requests(connection, operations())
    except ConnectionEnded:
        pass
    except BaseException:  # noqa: BLE001 - told in the log, which the parent quotes
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def answer_requests(connection: socket.socket, operations: dict[str, Operation]) -> None:
    """Do what each message names, until ``close``: the reply is its value, or the error with its traceback."""
    while True:
        message = receive(connection)
        name = message.pop("op")
        if name == "close":
            return
        try:
            reply = {"value": operations[name](**message)}
        except ConnectionEnded:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever happens is told to the other side
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        send(connection, reply)


def _die_with(parent: int) -> None:
    """Ask Linux to kill this process when the zygote ends; elsewhere the client kills it then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
