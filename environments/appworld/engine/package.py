"""Loads the appworld package on one root, with the repository and the user's ``.env`` out of its way."""

from __future__ import annotations

import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
_IN_MEMORY = "memory"  # what the package takes for the name of a database in memory, anywhere in a path


def use_root(root: str | Path) -> Path:
    """Make ``root`` (the folder that holds ``data``) the package's root. Call first, after the engine's own imports.

    The package imports a task's checks by the module name ``evaluation``, which is also a room of this repository: the
    repository leaves ``sys.path``. Raises ValueError for a root whose path the package would misread.
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
