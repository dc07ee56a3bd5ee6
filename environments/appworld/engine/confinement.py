"""Confines a process for good, through Python's audit events: its own folder, no programs, no network, no native code.

It holds against Python code that got past the filter and the namespace, not against one that changes the interpreter
(its types of native functions stay reachable): the process has the same user as its parent.
"""

from __future__ import annotations

import importlib
import os
import site
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_DENIED = frozenset(
    {
        *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.system"),
        *("subprocess.Popen", "pty.spawn", "os.kill", "os.killpg", "signal.pthread_kill"),
        *("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "urllib.Request"),
        *("ctypes.dlopen", "ctypes.dlsym", "ctypes.cdata", "ctypes.call_function", "ctypes.string_at"),
        *("sqlite3.enable_load_extension", "sqlite3.load_extension", "webbrowser.open", "os.add_dll_directory"),
    }
)
_WRITING = frozenset(
    {
        *("os.chmod", "os.chown", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.utime", "os.mkfifo"),
        *("os.rename", "os.link", "os.symlink", "shutil.rmtree", "shutil.move", "shutil.copyfile", "tempfile.mkstemp"),
    }
)
_WITHDRAWN = ("ctypes", "_ctypes", "ctypes.util", "ctypes._endian")  # memory and native functions, without an event
_STARTERS = (("_posixsubprocess", "fork_exec"), ("subprocess", "_fork_exec"))  # start a program without an event
_NEVER_IMPORTED = frozenset({*_WITHDRAWN, "_posixsubprocess"})
_READING = frozenset({"os.listdir", "os.scandir", "os.walk", "os.chdir", "glob.glob"})
_DEVICES = ("/dev/null", "/dev/urandom", "/usr/share/zoneinfo", "/etc/localtime")


def confine(folder: Path, root: Path) -> None:
    """From now on deny this process everything but writing in ``folder`` and reading there, in ``root`` and of Python.

    What is denied raises PermissionError.
    """
    writable = (_real(folder),)
    installed = [sys.prefix, sys.base_prefix, *site.getsitepackages(), *_DEVICES]
    readable = (*writable, _real(root), *(_real(place) for place in installed))
    for name in _WITHDRAWN:
        vars(sys.modules.pop(name, ModuleType(name))).clear()
    for name, function in _STARTERS:
        setattr(importlib.import_module(name), function, _no_program)
    sys.addaudithook(_hook(writable, readable))


def _no_program(*_: object) -> None:
    raise PermissionError("starting a program is not allowed in an episode")


def _hook(writable: tuple[str, ...], readable: tuple[str, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def check(path: object, places: tuple[str, ...]) -> None:
        if path is None or isinstance(path, int):
            return
        real = _real(path)
        if not any(real == place or real.startswith(place + os.sep) for place in places):
            raise PermissionError("not allowed outside the episode's own folder")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            check(path, writable if flags and flags & writing else readable)
        elif event in _DENIED or (event == "import" and arguments[0] in _NEVER_IMPORTED):
            raise PermissionError(f"{event} is not allowed in an episode")
        elif event in _READING:
            check(arguments[0], readable)
        elif event in _WRITING:
            for path in arguments[:2] if event in {"os.rename", "os.link"} else arguments[:1]:
                check(path, writable)
        elif event == "sqlite3.connect":
            _check_database(arguments[0], readable, check)

    return hook


def _check_database(
    database: object, readable: tuple[str, ...], check: Callable[[object, tuple[str, ...]], None]
) -> None:
    name = os.fsdecode(database) if isinstance(database, str | bytes | os.PathLike) else ""
    if name != ":memory:" and "mode=memory" not in name:
        check(name.removeprefix("file:").split("?")[0], readable)


def _real(path: Any) -> str:  # noqa: ANN401
    return os.path.realpath(os.fsdecode(path))
