"""Notes which files of the source execute, in every process of a command: Python imports this module as it starts.

    TRACED=FILE PYTHONPATH=tests/support/traced:. python -m graph.run_iteration --run RUN --iterations 1 ...
    cut -d' ' -f1 FILE | sort -u

FILE gets a line for each function that is called, with its file. What runs when a module is imported does not count.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = str(Path(__file__).resolve().parents[3])
PACKAGES = ("agents", "environments", "evaluation", "graph", "memory", "training")


def tracer(file: str) -> Callable[[FrameType, str, object], None]:
    """Return a function for ``sys.setprofile`` that adds each function's first call to ``file``."""
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)  # also while the interpreter shuts down
    folders, seen = tuple(f"{ROOT}/{name}/" for name in PACKAGES), set[CodeType]()
    write, function, start = os.write, inspect.CO_OPTIMIZED, len(ROOT) + 1

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen:
            return
        seen.add(code)
        if code.co_filename.startswith(folders) and code.co_flags & function:  # not a module, not a class's body
            write(log, f"{code.co_filename[start:]} {code.co_qualname}\n".encode())

    return note


if "TRACED" in os.environ:
    traced = tracer(os.environ["TRACED"])
    threading.setprofile(traced)
    sys.setprofile(traced)
