"""Load the appworld package on one root, without the repository and the user's ``.env``.

``settle`` prepares a process for forking worlds: everything imported, nothing open, no thread.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path

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
