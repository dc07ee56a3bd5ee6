"""A process that has imported the large packages, and forks to run commands.

Most CPU time of the commands that tests start is importing torch, TRL and Chroma, each time again. A fork begins with
them imported, and imports the project's modules itself. It has the command line, environment, folder, open files and
limit on the size of files of the process that handed its command over (sitecustomize.py). That process waits for the
fork, sends its signals on and ends as it ends; when it is killed, the fork is killed, too.

The packages are imported when the first command comes that has the variables of this process. A command with other
variables is refused, whether it comes first or last.

``python process.py DESCRIPTOR PACKAGES PADDING``: DESCRIPTOR is a socket that listens; PACKAGES are the packages, with
commas between them, where they are not the large ones; PADDING is room for the command lines of forks. The process ends
when its stdin is closed.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import fcntl
import gc
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from importlib import import_module
from typing import Any

from handing_over import fixed

PACKAGES = (
    "torch._dynamo",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",
    "trl.trainer.grpo_trainer",
    "trl.trainer.grpo_config",
    "chromadb",
    "langgraph.graph",
    "langgraph.checkpoint.sqlite.aio",
    "openai",
    "psutil",
    "pydantic",
    "rich.progress",
    "rich.table",
    "typer",
    "yaml",
)
WIDTH = array.array("i").itemsize


def import_packages() -> None:
    os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")  # as training.grpo.round does
    gc.disable()
    for package in sys.argv[2].split(",") if sys.argv[2] else PACKAGES:
        import_module(package)
    gc.enable()
    gc.freeze()  # collecting garbage would touch, and so copy, every page of the packages in every fork


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a command, and the files that it has open as descriptors of this process.

    Raises ConnectionError where who sent it was killed: after it connected, or on the way.
    """
    size, rights, *_ = connection.recvmsg(4, socket.CMSG_SPACE(250 * WIDTH))
    files = array.array("i")
    for _, _, data in rights:
        files.frombytes(data[: len(data) - len(data) % WIDTH])
    length, message = int.from_bytes(size, "big"), b""
    while len(message) < length:
        part = connection.recv(length - len(message))
        if not part:
            break
        message += part
    if not message or len(message) < length:
        for file in files:
            os.close(file)
        raise ConnectionError("a command broke off")
    return json.loads(message), list(files)


class Forks:
    """The forks that run, each with the connection to the process that waits for it."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.poll = select.poll()
        self.poll.register(listening, select.POLLIN)
        self.poll.register(0, select.POLLIN)
        self.running: dict[int, tuple[int, socket.socket]] = {}  # by a descriptor that is ready when the fork has ended
        self.waiting: dict[int, int] = {}  # the fork by its connection, which is ready when nobody waits any more
        self.variables = fixed(os.environ)
        self.imported = False

    def serve(self) -> tuple[dict[str, Any], list[int]]:
        """Fork for each command that comes, and return it in the fork."""
        while True:
            for ready, _ in self.poll.poll():
                if ready == 0:
                    for child, _ in self.running.values():
                        os.kill(child, signal.SIGKILL)
                        os.waitpid(child, 0)
                    sys.exit()
                elif ready in self.running:
                    self.report(ready)
                elif ready in self.waiting:
                    self.poll.unregister(ready)
                    os.kill(self.waiting.pop(ready), signal.SIGKILL)
                elif ready == self.listening.fileno():
                    connection, _ = self.listening.accept()
                    with suppress(ConnectionError):
                        command, files = receive(connection)
                        if self.forked(command, connection):
                            return command, files
                        for file in files:
                            os.close(file)

    def forked(self, command: dict[str, Any], connection: socket.socket) -> bool:
        """Return whether this is the fork for the command."""
        if command["fixed"] != self.variables:
            connection.close()
            return False
        if not self.imported:
            import_packages()
            self.imported = True
        child = os.fork()
        if child == 0:
            for ended, (_, other) in self.running.items():
                os.close(ended)
                other.close()
            connection.close()
            self.listening.close()
            return True
        with suppress(ConnectionError):  # killed already: its connection is ready below, and the fork is killed, too
            connection.sendall(f"{child}\n".encode())
        ended = os.pidfd_open(child)
        self.running[ended] = child, connection
        self.waiting[connection.fileno()] = child
        self.poll.register(ended, select.POLLIN)
        self.poll.register(connection, select.POLLIN)
        return False

    def report(self, ended: int) -> None:
        child, connection = self.running.pop(ended)
        self.poll.unregister(ended)
        os.close(ended)
        _, status = os.waitpid(child, 0)
        if self.waiting.pop(connection.fileno(), None) is not None:
            self.poll.unregister(connection)
            with suppress(OSError):
                connection.sendall(f"{status}\n".encode())
        connection.close()


def become(command: dict[str, Any], files: list[int]) -> None:
    """Take over the place of the process that handed the command over."""
    os.setpgid(0, 0)
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, 200) for file in files]  # out of the way of their numbers there
    for file in files:
        os.close(file)
    for file, number in zip(moved, command["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stdout.reconfigure(write_through=command["unbuffered"])
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(command["folder"])
    resource.setrlimit(resource.RLIMIT_FSIZE, tuple(command["file_size"]))
    os.environ.clear()
    os.environ.update(command["environment"])
    sys.path[:] = command["path"]
    sys.orig_argv[:] = command["argv"]
    sys.argv[:] = command["argv"][2:] if command["argv"][1] == "-m" else ["-c", *command["argv"][3:]]
    show(command["argv"])


def show(argv: list[str]) -> None:
    """Let other processes see this command line in place of the process's own, as far as there is room for it."""
    with open("/proc/self/stat") as file:
        begin, end = (int(one) for one in file.read().rpartition(")")[2].split()[45:47])
    told = b"".join(part.encode() + b"\0" for part in argv)[: end - begin - 1]
    ctypes.memmove(begin, told.ljust(end - begin, b"\0"), end - begin)


def run(option: str, command: str) -> int:
    """Run the module or the code as Python does and return the exit status.

    The rest of Python's shutdown, seconds with these packages, is left out, as ``memory.processes.run_to_end`` does.
    """
    status = 0
    try:
        if option == "-m":
            runpy.run_module(command, run_name="__main__", alter_sys=True)
        else:
            exec(compile(command, "<string>", "exec"), vars(sys.modules["__main__"]))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001
        status = 1
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return status


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        command, files = Forks(listening).serve()
    become(command, files)
    os._exit(run(*command["argv"][1:3]))
