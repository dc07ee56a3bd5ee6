"""Where the engine's Python and its world are, and what a root says without running anything."""

from __future__ import annotations

import os
from pathlib import Path

from environments.base import InputError, Record

REPOSITORY = Path(__file__).resolve().parents[2]
WORLD = "COEVOLVE_APPWORLD"  # environment variable: the folder that holds full/ and blind/
OPEN_SPLITS = ("train", "dev")
"""Data sets whose tasks anybody may open; the others are for ``environments.appworld.panels`` alone."""

_IN_MEMORY = "memory"  # the appworld package takes paths with this word for databases in memory


class Installation(Record):
    """The AppWorld virtual environment's Python, and the world: a folder with the roots ``full`` and ``blind``."""

    python: Path
    world: Path

    @property
    def full(self) -> Path:
        """The root of the judge."""
        return self.world / "full"

    @property
    def blind(self) -> Path:
        """The root of the worker."""
        return self.world / "blind"

    def task_ids(self, split: str) -> tuple[str, ...]:
        """The ids of train or dev. Raises InputError for any other split, and for one that the world does not have."""
        if split not in OPEN_SPLITS:
            raise InputError(f"the split {split!r} is not open here: use train or dev, test splits are for evaluation")
        path = self.data_set(split)
        if not path.is_file():
            raise InputError(f"the world in {self.world} has no data set {split!r}: build or download it anew")
        return tuple(path.read_text().split())

    def data_set(self, split: str) -> Path:
        """The file that lists the ids of a split."""
        return self.full / "data" / "datasets" / f"{split}.txt"

    def require_task(self, task_id: str) -> None:
        """Raise InputError unless the world has the task."""
        if task_id.count("_") != 1 or not (self.blind / "data" / "tasks" / task_id / "specs.json").is_file():
            raise InputError(f"the world in {self.world} has no task {task_id!r}: use an id from its data sets")


def find_installation(world: Path | None = None) -> Installation:
    """The project's AppWorld: ``world``, else what ``COEVOLVE_APPWORLD`` names, else the made world in ``.appworld``.

    Raises InputError saying what to do when the virtual environment or the world is missing.
    """
    python = REPOSITORY / ".venvs" / "appworld" / "bin" / "python"
    if not python.exists():
        raise InputError(f"AppWorld is not installed ({python} is missing): run `make appworld`")
    named = os.environ.get(WORLD)
    world = (world or (Path(named) if named else REPOSITORY / ".appworld" / "made")).resolve()
    for root in ("full", "blind"):
        if not (world / root / "data" / "tasks").is_dir():
            raise InputError(f"there is no AppWorld world in {world} ({root}/data/tasks is missing): `make appworld`")
    if _IN_MEMORY in str(world):
        raise InputError(f"AppWorld cannot work below {world}: its path contains {_IN_MEMORY!r}, choose another")
    return Installation(python=python, world=world)
