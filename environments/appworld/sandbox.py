"""Start the engine's processes in a sandbox of the kernel: bubblewrap, and namespaces and seccomp inside it.

A process has only what it needs: its file system holds the system's programs and libraries, the engine's Python, this
package's programs and one AppWorld root, read-only, and a file system in memory. It has no network, sees no process of
the machine, and is not root (one that root starts becomes *nobody*). The worker's root has no solutions, so that code
in it cannot read one. Every episode is isolated once more (``engine/wall.py``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from environments.appworld.engine.wall import SCRATCH
from environments.appworld.installation import REPOSITORY, Installation
from environments.base import InputError

BUBBLEWRAP = "bwrap"
PACKAGES = "bubblewrap libseccomp2"
"""Debian packages that the sandbox needs beside the engine's own environment."""

PROGRAMS = ("environments",)  # the engine runs as environments.appworld.engine
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/alternatives")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_PROBE_SECONDS = 60.0


def sandboxed(installation: Installation, roots: Sequence[Path], arguments: Sequence[str]) -> list[str]:
    """Return the command that runs the engine's Python with ``arguments`` in the sandbox; it can read ``roots``."""
    command = [BUBBLEWRAP, "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() == 0:  # it becomes nobody itself, for which it needs only these two
        command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    command += ["--new-session", "--hostname", "appworld", "--ro-bind", "/usr", "/usr", *_made("/etc")]
    for part in _SYSTEM:
        if os.path.islink(part):
            command += ["--symlink", os.readlink(part), part]
        elif os.path.exists(part):
            command += ["--ro-bind", part, part]
    command += ["--proc", "/proc", "--perms", "1777", "--tmpfs", "/tmp", "--tmpfs", "/dev"]
    for device in _DEVICES:
        command += ["--dev-bind", device, device]
    places = _places(installation, roots)
    for folder in sorted({parent for place in places for parent in place.parents} - {Path("/"), Path("/usr")}):
        command += _made(str(folder))
    for place in places:
        command += ["--ro-bind", str(place.resolve()), str(place)]
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(REPOSITORY), "--clearenv"]
    for name, value in _variables().items():
        command += ["--setenv", name, value]
    return [*command, str(installation.python), *arguments]


def _places(installation: Installation, roots: Sequence[Path]) -> tuple[Path, ...]:
    """Return what the engine reads beside the system's files."""
    return (*_python(installation.python), *(REPOSITORY / name for name in PROGRAMS), *roots)


class Missing(NamedTuple):
    """The reason why there is no sandbox, in a few words, and the remedy."""

    reason: str
    remedy: str = f"run `make appworld` as root, or install {PACKAGES} where user namespaces are allowed"


def require(installation: Installation) -> None:
    """Raise InputError where the sandbox is missing."""
    lack = missing(installation)
    if lack is not None:
        raise InputError(
            f"agents' code cannot be sandboxed here ({lack.reason}), and AppWorld does not run it elsewhere: "
            f"{lack.remedy}"
        )


@cache
def missing(installation: Installation) -> Missing | None:
    """Return why agents' code cannot be sandboxed on this machine; None where it can.

    It is tested once per process: a process starts in the sandbox and isolates a child.
    """
    if sys.platform != "linux":
        return Missing(f"it needs Linux, this is {sys.platform}", "use a Linux machine")
    if shutil.which(BUBBLEWRAP) is None:
        return Missing(f"{BUBBLEWRAP} is not installed")
    roots = (installation.blind, installation.full)
    command = sandboxed(installation, roots, ["-m", "environments.appworld.engine.wall", *map(str, roots)])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Missing(str(error))
    said = done.stderr.strip().splitlines()
    if done.returncode != 0:
        return Missing(said[-1] if said else f"{BUBBLEWRAP} ended with {done.returncode}")
    hidden = next((place for place in _places(installation, roots) if place.is_relative_to(SCRATCH)), None)
    if hidden is not None:
        reason = f"{hidden} is below {SCRATCH}, which the code gets as a folder of its own"
        return Missing(reason, "move the checkout elsewhere")
    return None


def _made(folder: str) -> list[str]:
    """Make a folder that every user may traverse; bubblewrap's implicit folders are for its own user only."""
    return ["--perms", "0755", "--dir", folder]


def _python(python: Path) -> tuple[Path, ...]:
    """Return the virtual environment and, outside /usr, the installation that its interpreter belongs to."""
    environment = python.parent.parent
    interpreter = python.resolve().parent.parent
    return (environment,) if interpreter.is_relative_to("/usr") else (environment, interpreter)


def _variables() -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHON_DOTENV_DISABLED": "1",
    }
