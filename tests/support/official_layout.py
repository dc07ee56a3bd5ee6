"""A world in the layout of AppWorld's own data, made of the synthetic world: nothing of AppWorld's data is in it.

Its ids look like the benchmark's. As there, tasks of the test splits have what evaluates them, and no solution.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from environments.appworld.installation import Installation

SCENARIOS = {
    "train": {"3ab5b8b": "made02", "07b42fd": "made04"},
    "dev": {"50e1ac9": "made01"},
    "test_normal": {"fac291d": "made03", "23cf851": "made05"},
    "test_challenge": {"0d8a4ee": "made06"},
}
"""For each split, its scenarios and those of the synthetic world that they are; each has three variants."""

SOLVED = ("train", "dev")
SOLUTION = ("api_calls.json", "compiled_solution.py", "generator.py", "required_apps.json", "solution.py")


def ids_of(split: str) -> tuple[str, ...]:
    return tuple(f"{scenario}_{variant}" for scenario in SCENARIOS[split] for variant in (1, 2, 3))


def made_id(task_id: str) -> str:
    """The synthetic world's id of the task."""
    scenario, _, variant = task_id.partition("_")
    return next(f"{found[scenario]}_{variant}" for found in SCENARIOS.values() if scenario in found)


def lay_out(made: Installation, world: Path) -> Installation:
    """Write ``world/full``; the blind root is the business of ``make appworld``."""
    source, data = made.full / "data", world / "full" / "data"
    for name in ("api_docs", "base_dbs"):
        shutil.copytree(source / name, data / name)
    (data / "datasets").mkdir()
    for split in SCENARIOS:
        (data / "datasets" / f"{split}.txt").write_text("".join(f"{task_id}\n" for task_id in ids_of(split)))
        for task_id in ids_of(split):
            target = data / "tasks" / task_id
            ignored = () if split in SOLVED else SOLUTION
            shutil.copytree(
                source / "tasks" / made_id(task_id), target, ignore=shutil.ignore_patterns("__pycache__", *ignored)
            )
            metadata = target / "ground_truth" / "metadata.json"
            mode = "full" if split in SOLVED else "minimal"
            metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"mode": mode}))
    return Installation(python=made.python, world=world)
