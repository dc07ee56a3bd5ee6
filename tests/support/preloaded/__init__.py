"""Start commands with their packages imported: see process.py. Tests ask for it with the fixture ``preloaded``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support.preloaded.handing_over import ADDRESS, fixed

__all__ = ["ADDRESS", "HERE", "alone", "preloaded_process", "through"]

HERE = Path(__file__).parent
"""The folder that is in PYTHONPATH of commands that hand themselves over."""
PADDING = 4000
VARIABLES = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
"""What packages read when they are imported is equal for all: the process imports them once."""
GIVEN = fixed(os.environ)
"""What the session was started with: the process has it, whatever a package or a test sets in a worker later."""


@contextmanager
def preloaded_process(*packages: str) -> Iterator[str]:
    """Run the process, which imports the large packages, or these, before its first command; its address."""
    with TemporaryDirectory(prefix="preloaded-") as folder, socket.socket(socket.AF_UNIX) as listening:
        address = f"{folder}/socket"
        listening.bind(address)
        listening.listen(64)
        argv = [sys.executable, str(HERE / "process.py"), str(listening.fileno()), ",".join(packages), "." * PADDING]
        environment = {**os.environ, **VARIABLES}
        with subprocess.Popen(
            argv, stdin=subprocess.PIPE, pass_fds=[listening.fileno()], process_group=0, env=environment
        ) as process:
            listening.close()  # only the process listens: after its end a connection is refused, it does not wait
            try:
                yield address
            finally:
                assert process.stdin is not None
                process.stdin.close()
        if process.returncode:
            raise RuntimeError(f"the preloaded process ended with {process.returncode}: see its message above")


@contextmanager
def through(address: str) -> Iterator[None]:
    """Run the commands of the project that this process starts by forks of the preloaded process."""
    with pytest.MonkeyPatch.context() as patch:
        path = os.environ.get("PYTHONPATH")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(HERE), path))))
        patch.setenv(ADDRESS, address)
        for name in fixed(os.environ).keys() - GIVEN.keys():
            patch.delenv(name)
        for name, value in {**GIVEN, **VARIABLES}.items():
            patch.setenv(name, value)
        yield


@contextmanager
def alone() -> Iterator[None]:
    """Let commands that are started in the block import everything themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(ADDRESS, raising=False)
        yield
