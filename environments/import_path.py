"""Keep the import path in one order: Python and its packages, this project, and the user's working directory last.

A working directory can come from a stranger, or hold a ``random.py`` of the user's own. Searched first, it would
replace modules of the standard library, of packages and of this project, and a ``sitecustomize.py`` in it would run by
itself. So no process of this project has it on its path until an environment of the user's is opened, and then behind
all else. Folders that the user put into PYTHONPATH stay where Python puts them. ``python -m`` itself puts the working
directory first, before code of this project runs: ``python -P -m`` does not, nor does the command ``coevolve``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from environments.checkout import ROOT

__all__ = ["append_working_directory", "child_variables", "places"]


def places() -> list[str]:
    """Return the folders that a module of the user's is looked for in, in order; the working directory is the last."""
    # An editable install of this project is found behind the path, so that the working directory would precede it.
    return list(dict.fromkeys([*sys.path, str(ROOT), str(Path.cwd())]))


def append_working_directory() -> None:
    """Give this process the path of ``places``: call it before a module of the user's is imported."""
    sys.path[:] = places()


def child_variables() -> dict[str, str]:
    """Return variables with which a child ``python -m`` imports this checkout, and nothing of its working directory."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))  # an empty one is the working directory
    path = dict.fromkeys([str(ROOT), *given])
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
