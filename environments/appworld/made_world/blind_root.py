"""Copies of a root what a world needs and nothing that tells an answer: the root that agents' code runs on."""

from __future__ import annotations

import shutil
from pathlib import Path

_WHOLE = ("api_docs", "base_dbs")
_OF_A_TASK = ("specs.json", "dbs")


def write_blind_root(full: Path, blind: Path) -> int:
    """Write ``blind`` anew from ``full``; the number of tasks.

    Named is what is copied, so that a new kind of file in a later version of the data is left out. Copies, not links:
    what code should manage to write stays out of the full root. Raises FileNotFoundError when ``full`` is no root.
    """
    data = full / "data"
    shutil.rmtree(blind, ignore_errors=True)
    for name in _WHOLE:
        shutil.copytree(data / name, blind / "data" / name)
    tasks = sorted(folder for folder in (data / "tasks").iterdir() if folder.is_dir())
    for task in tasks:
        target = blind / "data" / "tasks" / task.name
        target.mkdir(parents=True)
        for name in _OF_A_TASK:
            copy = shutil.copytree if (task / name).is_dir() else shutil.copy
            copy(task / name, target / name)
    return len(tasks)
