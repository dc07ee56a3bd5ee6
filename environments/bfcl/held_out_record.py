"""Make the record of BFCL's held-out sets by content, for decontamination.

The evaluation sets and the official tasks of the splits dev, test and reserved are read here and never shown: only
hashes are written. A record is fixed like its evaluation sets: it changes only with them or with the comparison.
"""

from __future__ import annotations

from collections.abc import Iterator

from environments.base import TaskSpec
from environments.bfcl.environment import BFCLEnvironment
from environments.bfcl.official import load_category
from environments.bfcl.package import CATEGORIES, CLASSES
from environments.bfcl.templated.evaluation_sets import load_set, set_names
from environments.verification.held_out_records import HeldOutRecord, Recorder


def make_record() -> HeldOutRecord:
    """Return the record of BFCL's evaluation sets and held-out official tasks, the latter also by first turns."""
    environment = BFCLEnvironment()
    training = [task.spec for name in CATEGORIES for task in load_category(name, ("train",))]
    base = [task.spec for task in load_category("base", ("train",))]
    recorder = Recorder(environment, [*base, *_defaults(base[0])], [text for task in training for text in task.turns])
    for name, label, task in (*_set_tasks(), *_official_tasks()):
        # The other categories and the first turns of a task nearly equal the whole base task.
        neighbour = "(first" not in name and not name.startswith(CATEGORIES[1:])
        recorder.add(name, task, start=label, neighbour=neighbour)
        recorder.mark_distinctive(name, task)
    return recorder.record(by_start=True)


def _defaults(task: TaskSpec) -> Iterator[TaskSpec]:
    """Yield a task for each class that begins in the class's default state, which does not belong to a split."""
    for name in CLASSES:
        yield task.model_copy(update={"classes": (name,), "initial_state": {}, "tools": ()})


def _set_tasks() -> Iterator[tuple[str, str, TaskSpec]]:
    for name in set_names():
        for task in load_set(name):
            yield task.id, f"index {task.id.removeprefix(f'{name}-').partition('-')[0]}", task.spec


def _official_tasks() -> Iterator[tuple[str, str, TaskSpec]]:
    for category in CATEGORIES:
        for task in load_category(category, ("dev", "test", "reserved"), equality_test=True):
            for turns in range(len(task.spec.turns), 0, -1):
                if not any(task.spec.reference[:turns]):
                    continue
                first = task.spec.model_copy(
                    update={
                        "turns": task.spec.turns[:turns],
                        "reference": task.spec.reference[:turns],
                        "withheld": {turn: names for turn, names in task.spec.withheld.items() if turn < turns},
                    }
                )
                whole = turns == len(task.spec.turns)
                yield task.id if whole else f"{task.id} (first {turns} turns)", f"index {task.index}", first
