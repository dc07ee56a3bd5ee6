"""A process that has imported the large packages, and forks to run commands.

Most CPU time of the commands that tests start is importing torch, TRL and Chroma, each time again. A fork begins with
them imported, and imports the project's modules itself. It has the command line, environment, folder, open files and
limit on the size of files of the process that handed its command over (sitecustomize.py). That process waits for the
fork, sends its signals on and ends as it ends; when it is killed, the fork is killed, too.

The packages are imported when the first command comes, with the variables of this process. A command with other
variables is refused.

``python process.py DESCRIPTOR PACKAGES PADDING``: DESCRIPTOR is a socket that listens; PACKAGES are the packages, with
commas between them, where they are not the large ones; PADDING is room for the command lines of forks. The process ends
when its stdin is closed.
"""

from __future__ import annotations

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
VARIABLES = fixed(os.environ)


def import_packages() -> None:
    os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")  # as training.grpo.round does
    gc.disable()
    for package in sys.argv[2].split(",") if sys.argv[2] else PACKAGES:
        import_module(package)
    gc.enable()
    gc.freeze()  # collecting garbage would touch, and so copy, every page of the packages in every fork


def serve(listening: socket.socket) -> socket.socket:
    """Fork for each connection that comes, and return it in the fork."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for these forks
    imported = False
    while 0 not in select.select([listening, 0], [], [])[0]:
        connection, _ = listening.accept()
        if not imported:
            import_packages()
            imported = True
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            return connection
        connection.close()
    sys.exit()


def attend(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for the command of a connection and return it in the fork, with its open files as descriptors there.

    This process ends when the fork does, which is killed when nobody waits for it any more.
    """
    _, files, *_ = socket.recv_fds(connection, 1, 250)
    with connection.makefile() as stream:
        message = stream.read()
    if not message.endswith("\n"):  # its sender was killed on the way
        os._exit(1)
    command = json.loads(message)
    if command["fixed"] != VARIABLES:
        os._exit(0)
    child = os.fork()
    if child == 0:
        connection.close()
        return command, files
    for file in files:
        os.close(file)
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    for place in (0, connection):  # ready when nobody has the other end open
        poll.register(place, 0)
    with suppress(OSError):
        connection.sendall(f"{child}\n".encode())
    if all(ready != ended for ready, _ in poll.poll()):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with suppress(OSError):
        connection.sendall(f"{status}\n".encode())
    os._exit(0)


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
        command, files = attend(serve(listening))
    become(command, files)
    os._exit(run(*command["argv"][1:3]))
