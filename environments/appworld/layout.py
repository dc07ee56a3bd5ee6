"""Read which tasks a downloaded or synthetic world lists, and which files of theirs are missing.

The layout is that of the benchmark's data 0.1.0, as the package ``appworld`` reads it. This module imports nothing of
the project: the virtual environments of engine and trainer both use it.
"""

from __future__ import annotations

from pathlib import Path

SPLITS = {"train": 90, "dev": 57, "test_normal": 168, "test_challenge": 417}
"""The benchmark's data sets, with the number of tasks that each has (CoEvolve, section 4.1)."""

_SOLVED = ("train", "dev")  # the data have a solution for tasks of these alone
_PLAYED = ("specs.json", "dbs")
_EVALUATED = tuple(
    f"ground_truth/{name}"
    for name in (
        "answer.json",
        "evaluation.py",
        "metadata.json",
        "private_data.json",
        "public_data.json",
        "test_data.json",
    )
)
_SOLUTION = ("ground_truth/compiled_solution.py", "ground_truth/required_apps.json")


def read_ids(data: Path, split: str) -> tuple[str, ...]:
    """Return the ids that ``data/datasets`` lists for the split, () where it has none or no such file.

    A line is an id, behind which a colon and a tag may stand, as the package reads it.
    """
    path = data / "datasets" / f"{split}.txt"
    lines = path.read_text().splitlines() if path.is_file() else []
    return tuple(line.partition(":")[0].strip() for line in lines if line.strip())


def missing(data: Path, split: str) -> str | None:
    """Return the first file that the split's tasks lack to be played and evaluated; None where none is missing."""
    if not (data / "datasets" / f"{split}.txt").is_file():
        return f"datasets/{split}.txt is missing"
    wanted = (*_PLAYED, *_EVALUATED, *(_SOLUTION if split in _SOLVED else ()))
    for task_id in read_ids(data, split):
        for name in wanted:
            if not (data / "tasks" / task_id / name).exists():
                return f"tasks/{task_id}/{name} is missing"
    return None


def counted(data: Path) -> str:
    """Return how many tasks each split has, and how many the benchmark's has where that differs."""
    found = {split: len(read_ids(data, split)) for split in SPLITS}
    said = ", ".join(f"{split} {count}" for split, count in found.items())
    return said if found == SPLITS else f"{said} (the benchmark's: {', '.join(map(str, SPLITS.values()))})"
