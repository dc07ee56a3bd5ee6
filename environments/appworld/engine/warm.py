"""Brings a process into the state from which worlds are forked: everything imported, nothing open, no thread."""

from __future__ import annotations

import gc
import threading


def settle() -> None:
    """Close what the package holds open and freeze the garbage collector.

    A forked process must not inherit a connection to a database (both would use it) or the lock of a thread it lacks.
    Raises RuntimeError when a thread is left.
    """
    from appworld import AppWorld
    from appworld.apps.model_lib import CachedDBHandler, get_cached_db_engine, get_direct_cached_sqlite3_connection

    AppWorld.close_all()
    CachedDBHandler.reset()
    get_direct_cached_sqlite3_connection.cache_clear()
    get_cached_db_engine.cache_clear()
    if threading.active_count() != 1:
        raise RuntimeError(f"threads are left that a forked process would lack: {threading.enumerate()}")
    gc.collect()
    gc.freeze()
