"""Judges saved states on the full root, in a process that no agent's code runs in; what it expected stays here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from environments.appworld.engine.differences import told_difference
from environments.appworld.engine.package import use_root
from environments.appworld.engine.protocol import receive
from environments.appworld.engine.verdicts import told
from environments.appworld.engine.warm import settle
from environments.appworld.engine.zygote import Operation, inherited_control, serve


def evaluate(task_id: str, folder: str) -> dict[str, Any]:
    """The package's verdict on the state saved in ``folder``: each check by its requirement and label, no traces."""
    from appworld.evaluator import evaluate_task

    return told(evaluate_task(task_id, experiment_name=folder, save_report=False))


def difference(task_id: str, folder: str) -> dict[str, Any]:
    """How the state saved in ``folder`` differs from the task's initial one, by business fields."""
    from appworld.apps.model_lib import get_db_home_path
    from appworld.collections.models import ModelCollection
    from appworld.task import Task

    task = Task.load(task_id=task_id, load_ground_truth=False)
    memory = get_db_home_path(storage_type="memory", type="task_output", task_id=task_id)
    end = ModelCollection.load(
        to_db_home_path=memory,
        from_db_home_path=str(Path(folder) / "tasks" / task_id / "dbs"),
        load_apps=task.allowed_apps,
    )
    return told_difference(task.model_collection, end, memory)


def _warm(root: Path) -> None:
    """Load one task's databases, freeze the time and fail a check, so that children find all of it imported."""
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
    """What a child of the judge does."""
    return {"evaluate": evaluate, "difference": difference}


def main() -> None:
    """Warm up and serve; the first message says where."""
    control = inherited_control()
    given = receive(control)
    _warm(use_root(given["root"]))
    settle()
    serve(control, Path(given["scratch"]), operations)


if __name__ == "__main__":
    main()
