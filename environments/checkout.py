"""Find the files that ship with the project from any working directory, and modules in one order.

The package is installed editable from a checkout, so recipes and initial policies are beside it. Defaults name them by
their path in the checkout. A path that a user types is looked up in the working directory, like any other path.

The import path is kept in one order: Python and its packages, this project, and the user's working directory last. A
working directory can come from a stranger, or hold a ``random.py`` of the user's own. Searched first, it would
replace modules of the standard library, of packages and of this project, and a ``sitecustomize.py`` in it would run by
itself. So no process of this project has it on its path until an environment of the user's is opened, and then behind
all else. Folders that the user put into PYTHONPATH stay where Python puts them. ``python -m`` itself puts the working
directory first, before code of this project runs: ``python -P -m`` does not, nor does the command ``coevolve``.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout that this process runs."""

QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
"""The default recipe of a run."""

GRPO_ALONE = ROOT / "recipes" / "grpo-base.yaml"
"""The quickstart without the expert step: what benchmarks and notebooks train with."""

INITIAL_POLICY = "recipes/starter"
"""The default initial policy of a run, as records spell it: the same on every machine."""

PACKAGED_MODEL = "smollm2-135m"
"""The name of the language model that ``make model`` brings into the checkout."""

PACKAGED_FOLDER = ROOT / ".models" / PACKAGED_MODEL

SHIPPED = "recipes"

OURS = frozenset(
    {
        *("agents", "benchmarks", "build", "docs", "environments", "evaluation", "graph", "memory"),
        *("notebooks", "recipes", "results", "runs", "tests", "training"),
    }
)
"""The folders of this project."""


def shipped_policy(path: str) -> Path | None:
    """Return the folder of the checkout that ``path`` names, None for any other path.

    ``smollm2-135m`` names the packaged model in every working directory, once ``make model`` has made it.
    ``recipes/starter`` names the shipped folder in every working directory, also where that holds a folder of the same
    name: a default must not change its meaning with the folder that a command is started in. ``./recipes/starter`` is
    the working directory's.
    """
    folder = Path(path)
    if path == PACKAGED_MODEL:
        return PACKAGED_FOLDER if (PACKAGED_FOLDER / "config.json").is_file() else None
    if path.startswith(".") or folder.parts[:1] != (SHIPPED,):
        return None
    return ROOT / folder if (ROOT / folder / "config.json").is_file() else None


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
