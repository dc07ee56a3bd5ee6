"""Hand the command of an interpreter over to the preloaded process (process.py)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

ADDRESS = "COEVOLVE_TESTS_PRELOADED"
PACKAGES = ("agents", "evaluation", "graph", "support", "training")
FIXED = ("CUDA_", "HF_", "LANGGRAPH_", "OMP_", "PYTHON", "TOKENIZERS_", "TRANSFORMERS_")
FREE = ("HF_HUB_DISABLE_TELEMETRY", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE")
FORWARDED = ("SIGHUP", "SIGINT", "SIGTERM")


def fixed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Python reads when it starts, and packages when they are imported."""
    return {name: value for name, value in environment.items() if name.startswith(FIXED) and name not in FREE}


def suitable(argv: Sequence[str]) -> bool:
    """Return whether this is code (-c) or a module (-m) of the project, with or without -u before it."""
    _, *words = plain(argv)
    return words[:1] == ["-c"] or (words[:1] == ["-m"] and words[1].partition(".")[0] in PACKAGES)


def plain(argv: Sequence[str]) -> list[str]:
    """Return the command line without Python's -u, which torch's launcher gives."""
    program, *words = argv
    return [program, *(words[1:] if words[:1] == ["-u"] else words)]


def hand_over(address: str) -> None:
    """Run the command in a fork of the preloaded process and end as it ends; return if that process refuses it."""
    import json
    import resource
    import signal
    import socket

    inherited = [int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
    inherited = [one for one in inherited if os.get_inheritable(one)]
    command = {
        "argv": plain(sys.orig_argv),
        "unbuffered": plain(sys.orig_argv) != sys.orig_argv,
        "folder": os.getcwd(),
        "path": sys.path if sys.flags.safe_path else [os.getcwd(), *sys.path],
        "environment": dict(os.environ),
        "fixed": fixed(os.environ),
        "files": inherited,
        "file_size": resource.getrlimit(resource.RLIMIT_FSIZE),
    }
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"!"], inherited)
        server.sendall(f"{json.dumps(command)}\n".encode())
        server.shutdown(socket.SHUT_WR)
        answers = server.makefile()
        child = int(answers.readline() or 0)
        if not child:
            return
        for name in FORWARDED:
            signal.signal(getattr(signal, name), lambda number, _: os.kill(child, number))
        status = int(answers.readline() or 1 << 8)  # begun there: it must not run here, too
    if os.WIFSIGNALED(status):
        end = os.WTERMSIG(status)
        if end != signal.SIGKILL:
            signal.signal(end, signal.SIG_DFL)
        os.kill(os.getpid(), end)
    os._exit(os.waitstatus_to_exitcode(status))
