"""Brings a process into the state from which worlds are forked: everything imported, nothing open, no thread."""

from __future__ import annotations

import gc
import threading

_THREADS_END = 30.0  # seconds: the package's threads are asked to end and not waited for


def settle() -> None:
    """Close what the package holds open and freeze the garbage collector.

    A forked process must not inherit a connection to a database (both would use it) or the lock of a thread it lacks.
    Raises RuntimeError when a thread does not end.
    """
    from appworld import AppWorld
    from appworld.apps.model_lib import CachedDBHandler, get_cached_db_engine, get_direct_cached_sqlite3_connection

    AppWorld.close_all()
    CachedDBHandler.reset()
    get_direct_cached_sqlite3_connection.cache_clear()
    get_cached_db_engine.cache_clear()
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(_THREADS_END)
    if threading.active_count() != 1:
        raise RuntimeError(f"threads are left that a forked process would lack: {threading.enumerate()}")
    gc.collect()
    gc.freeze()
