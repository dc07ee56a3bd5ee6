"""Import torch, TRL and similar packages in less time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Import in the block, or in the decorated function, without garbage collection.

    Modules are not garbage, but the collector visits all of them again each time that their objects grow by a quarter:
    a sixth of the CPU time of importing the trainer, a quarter of loading a small policy (measured).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
