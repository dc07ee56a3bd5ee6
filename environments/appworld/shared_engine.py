"""One engine for everything in this process that plays the same world, ended with the process."""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path

from environments.appworld.client import AppWorldEngine
from environments.appworld.installation import Installation

_engines: dict[tuple[int, Path], AppWorldEngine] = {}
_lock = threading.Lock()


def shared_engine(installation: Installation, *, trust_agent_code: bool = False) -> AppWorldEngine:
    """The process's engine for the installation's world; its worker and judge start when they are first needed.

    A forked process gets an engine of its own: two processes must not talk over one connection. Raises InputError
    where the wall is missing and the code is not trusted (``client.AppWorldEngine``).
    """
    key = (os.getpid(), installation.world)
    with _lock:
        if key not in _engines:
            _engines[key] = AppWorldEngine(installation, trust_agent_code=trust_agent_code)
            atexit.register(_end, key)
        return _engines[key]


def _end(key: tuple[int, Path]) -> None:
    if key[0] == os.getpid():
        _engines[key].close()
