"""Run a warm process that forks one child per received connection and ends them all when its parent ends.

The control connection is inherited. It carries ``open`` (followed by the child's own end of a connection, as a file
descriptor), ``kill`` and ``ping``; when it ends, the zygote and its children end. A zygote or a child has no name in
the file system, so that code in one child cannot reach another.

``use_root`` loads the appworld package on one root, without the repository and the user's ``.env``. ``settle`` prepares
a process for forking worlds: everything imported, nothing open, no thread.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from environments.appworld.engine.protocol import ConnectionEnded, encodable, receive, said, send
from environments.appworld.engine.wall import SCRATCH, Wall

REPOSITORY = Path(__file__).resolve().parents[3]
_IN_MEMORY = "memory"  # the package treats a path with this word as a database in memory


def use_root(root: str | Path) -> Path:
    """Make ``root`` (the folder that holds ``data``) the package's root. Call first, after the engine's own imports.

    The package imports a task's checks by the module name ``evaluation``, which is also a package of this repository,
    so the repository is removed from ``sys.path``. Raises ValueError for a root whose path the package would misread.
    """
    root = Path(root).resolve()
    if _IN_MEMORY in str(root):
        raise ValueError(f"{root}: the appworld package cannot work below a path that contains {_IN_MEMORY!r}")
    os.environ["PYTHON_DOTENV_DISABLED"] = "1"
    os.environ["APPWORLD_ROOT"] = str(root)
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != REPOSITORY]
    from appworld import update_root

    update_root(str(root))
    return root


_THREADS_END = 30.0  # seconds: the package's threads are asked to end and not waited for


def settle() -> None:
    """Close the package's databases and threads and freeze the garbage collector.

    A forked process must not inherit a connection to a database (both would use it) or a lock of a missing thread.
    Raises RuntimeError when a thread does not end.
    """
    from appworld import AppWorld
    from appworld.apps.model_lib import CachedDBHandler, get_cached_db_engine, get_direct_cached_sqlite3_connection

    AppWorld.close_all()
    CachedDBHandler.reset()
    get_direct_cached_sqlite3_connection.cache_clear()
    get_cached_db_engine.cache_clear()
    await_threads(_THREADS_END)
    gc.collect()
    gc.freeze()
    gc.enable()  # a worker and the evaluator start without it


def await_threads(seconds: float) -> None:
    """Wait for every other thread to end, up to ``seconds`` for each. Raises RuntimeError when one does not."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(seconds)
    if threading.active_count() != 1:
        raise RuntimeError(f"threads are left that a forked process would lack: {threading.enumerate()}")


Operation = Callable[..., Any]
_REAP_EVERY = 1.0  # seconds
_MESSAGE_SECONDS = 10.0  # for the rest of a message that has begun
_CPU_SECONDS = 7200  # of a whole episode: ends one whose client is gone
_LARGEST_FILE = 64 * 1024 * 1024
_TRACE = 2000  # characters of a traceback that a reply holds
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def inherited_control() -> socket.socket:
    """Return the control connection, whose descriptor is the program's only argument."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


def run(warm: Callable[[Path], None], operations: Callable[[], dict[str, Operation]]) -> NoReturn:
    """Warm up and serve; the first message has the AppWorld root, which ``warm`` gets."""
    gc.disable()  # until it has settled: a fifth of the time to get there
    control = inherited_control()
    root = receive(control)["root"]
    wall = Wall()  # gives up root
    warm(use_root(root))
    settle()
    os.chdir(SCRATCH)
    serve(control, wall, operations)


def serve(control: socket.socket, wall: Wall, operations: Callable[[], dict[str, Operation]]) -> NoReturn:
    """Fork a child for each ``open`` until the control connection ends, then end the children.

    ``operations`` is called in each child and returns the child's operations by name. Call ``settle`` before.
    """
    children: set[int] = set()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    send(control, {"ready": os.getpid()})
    status = 0
    try:
        while True:
            readable = poll.poll(_REAP_EVERY * 1000)
            _reap(children)
            if readable:
                _obey(control, receive(control, _MESSAGE_SECONDS), children, wall, operations)
    except ConnectionEnded:
        pass
    except BaseException:  # noqa: BLE001 - written to the log, which the parent quotes
        traceback.print_exc()
        sys.stderr.flush()
        status = 1
    for child in children:
        _kill(child)
    os._exit(status)


def _obey(
    control: socket.socket,
    message: dict[str, Any],
    children: set[int],
    wall: Wall,
    operations: Callable[[], dict[str, Operation]],
) -> None:
    if message["op"] == "open":
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        connection = socket.socket(fileno=descriptors[0])
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            control.close()
            _live(connection, parent, wall, operations)
        with suppress(OSError):  # the child does it too: either may be first
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


def _live(
    connection: socket.socket, parent: int, wall: Wall, operations: Callable[[], dict[str, Operation]]
) -> NoReturn:
    """Run a child: a process group of its own, limits, isolation; answer requests until the connection ends."""
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        _die_with(parent)
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        connection.setblocking(True)
        wall.set_apart(connection.fileno())
        done_by_name = operations()  # while there is a /proc to read
        wall.shut()
        answer_requests(connection, done_by_name)
    except ConnectionEnded:
        pass
    except BaseException:  # noqa: BLE001 - written to the log, which the parent quotes
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def answer_requests(connection: socket.socket, operations: dict[str, Operation]) -> None:
    """Run the operation that each message names; reply with its value or the error. Raises ConnectionEnded."""
    while True:
        message = receive(connection)
        name = message.pop("op")
        try:
            reply = {"value": operations[name](**message)}
        except ConnectionEnded:
            raise
        except BaseException as error:  # noqa: BLE001 - every error is reported to the other side
            reply = {"error": said(error), "trace": encodable(traceback.format_exc()[-_TRACE:])}
        try:
            send(connection, reply)
        except (ValueError, RecursionError) as error:  # a value that is not a message
            send(connection, {"error": said(error)})


def _die_with(parent: int) -> None:
    """Ask Linux to kill this process when the zygote ends."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
