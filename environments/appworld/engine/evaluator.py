"""Evaluate saved states on the full root, in a process that does not run agents' code; expected values stay here.

A state is a world's report of what it saved: the package's files, which hold SQL statements. A world whose code broke
out of Python can have written anything there. Each file is therefore parsed, and each statement must be one that
changes rows, so that no statement can attach another database. The process is in the same sandbox as a world's.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from environments.appworld.engine.differences import serialized_difference
from environments.appworld.engine.protocol import parsed
from environments.appworld.engine.zygote import Operation, run

_CHANGES = re.compile(r"[a-z_]{1,40}\.jsonl")
_HASHES = "model_hashes.json"
_CHANGE_OF_ROWS = re.compile(r"\s*(INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s", re.IGNORECASE)


def evaluate(task_id: str, saved: dict[str, str]) -> dict[str, Any]:
    """Return the package's evaluation of a saved state: each check by its requirement and label, no traces."""
    from appworld.evaluator import evaluate_task

    _unpack(task_id, saved)
    report = evaluate_task(task_id, experiment_name=str(Path.cwd()), save_report=False)
    # Traces hold expected values, so they do not leave the process.
    passes, failures = (
        [{key: check[key] for key in ("requirement", "label")} for check in checks]
        for checks in (report.passes, report.failures)
    )
    return {"success": bool(report.success), "passes": passes, "failures": failures}


def difference(task_id: str, saved: dict[str, str]) -> dict[str, Any]:
    """Return how a saved state differs from the task's initial one, by business fields."""
    from appworld.apps.model_lib import get_db_home_path
    from appworld.collections.models import ModelCollection
    from appworld.task import Task

    task = Task.load(task_id=task_id, load_ground_truth=False)
    memory = get_db_home_path(storage_type="memory", type="task_output", task_id=task_id)
    end = ModelCollection.load(
        to_db_home_path=memory,
        from_db_home_path=str(_unpack(task_id, saved)),
        load_apps=task.allowed_apps,
    )
    return serialized_difference(task.model_collection, end, memory)


def _unpack(task_id: str, saved: dict[str, str]) -> Path:
    """Write the state where the package looks for it, anew from what was parsed. Raises ValueError."""
    folder = Path.cwd() / "tasks" / task_id / "dbs"
    folder.mkdir(parents=True)
    for name, text in saved.items():
        if name == _HASHES:
            lines = [json.dumps(_hashes(text))]
        elif _CHANGES.fullmatch(name):
            lines = [json.dumps(_change(line)) for line in text.split("\n") if line.strip()]
        else:
            raise ValueError(f"a state has no file {name[:60]!r}")
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


def _hashes(text: str) -> dict[str, dict[str, int]]:
    hashes = parsed(text)
    if not isinstance(hashes, dict) or not all(
        isinstance(of_app, dict) and all(isinstance(number, int) for number in of_app.values())
        for of_app in hashes.values()
    ):
        raise ValueError(f"{_HASHES} of the state holds something else than numbers by app and model")
    return hashes


def _change(line: str) -> list[Any]:
    change = parsed(line)
    match change:
        case [str(statement), list() | dict() as values, bool(many)] if _CHANGE_OF_ROWS.match(statement):
            return [statement, values, many]
    raise ValueError(f"a statement of the state does something else than changing rows: {line[:80]!r}")


def _warm(root: Path) -> None:
    """Load one task's databases, freeze the time and fail a check, so that children have all of it imported."""
    from appworld.common.utils import freeze_time
    from appworld.evaluator import TestTracker
    from appworld.task import Task

    first = min(folder.name for folder in (root / "data" / "tasks").iterdir())
    task = Task.load(task_id=first, load_ground_truth=False)
    _ = task.model_collection
    tracker = TestTracker()
    with freeze_time(task.datetime), tracker("warm-up"):
        tracker.case(1, "==", 2)


def operations() -> dict[str, Operation]:
    """Return the operations of a child of the evaluator."""
    return {"evaluate": evaluate, "difference": difference}


if __name__ == "__main__":
    run(_warm, operations)
