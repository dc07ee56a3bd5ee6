"""Opens what an evaluation scores: a fixed panel of BFCL, an official category or a file of tasks.

Nothing else in the project opens a panel (AppWorld's are opened by ``evaluation.appworld_panels``). One of the split
test is held out: it opens only where a ledger of openings (``evaluation.test_access``) notes that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from environments.base import InputError, Record, TaskSpec
from environments.bfcl.official import Split, in_seal_test
from evaluation.test_access import check_opened
from memory.jsonl import read_jsonl
from memory.records import Task

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
SplitChoice = Literal["all", "train", "dev", "test", "seal-test"]
"""Splits of official tasks; seal-test: of the split test the 100 indices that a test after SEAL's protocol has."""


class Item(Record):
    """One task to attempt, and the labels its outcome carries; ``reference_calls`` is None where it is unknown.

    ``cluster`` names the start state that it shares with others.
    """

    task: Task
    group: str
    cluster: str
    reference_calls: int | None
    strata: dict[str, str] = {}


def held_out(name: str) -> bool:
    """Whether a panel is of the split test. Raises InputError for an unknown name."""
    from environments.bfcl.templated import panels

    if name not in panels.panel_names():
        raise InputError(f"--evaluation-set {name}: no such set: choose one of {', '.join(panels.panel_names())}")
    return panels.held_out(name)


def panel_hash(name: str) -> str:
    """The hash that names a panel's tasks; they stay unseen. Raises InputError like ``open_panel``."""
    from environments.bfcl.templated import panels

    held_out(name)
    return panels.panel_hash(name)


def open_panel(name: str, limit: int | None = None, openings: Path | None = None) -> tuple[Item, ...]:
    """The tasks of a fixed panel after its hash was checked, the first ``limit`` only if given.

    ``openings`` is the ledger that a held-out panel needs. Raises InputError for an unknown panel, one whose file does
    not match its hash, and one that is held out and was not opened.
    """
    from environments.bfcl.templated.panels import load_panel

    if held_out(name):
        check_opened(openings, name, panel_hash(name))
    return tuple(
        Item(
            task=Task(id=member.id, origin="panel", **dict(member.spec)),
            group=name,
            cluster=member.cluster,
            reference_calls=calls_of(member.spec),
            strata={key: str(value) for key, value in member.strata},
        )
        for member in load_panel(name)[:limit]
    )


def open_category(category: str, split: SplitChoice = "all", limit: int | None = None) -> tuple[Item, ...]:
    """The official tasks of one category, or of all four for ``all``; reserved indices are never among them.

    Raises InputError for an unknown category.
    """
    from environments.bfcl.official import load_category

    if category not in (*CATEGORIES, "all"):
        raise InputError(f"--category {category}: no such category: choose one of {', '.join(CATEGORIES)} or all")
    splits: Mapping[SplitChoice, Sequence[Split]] = {
        "all": ("train", "dev", "test"),
        "train": ("train",),
        "dev": ("dev",),
        "test": ("test",),
        "seal-test": ("test",),
    }
    items: list[Item] = []
    for name in CATEGORIES if category == "all" else (category,):
        official = load_category(name, splits=splits[split])
        if split == "seal-test":
            official = tuple(entry for entry in official if in_seal_test(entry.index))
        items += [
            Item(
                task=Task(id=entry.id, origin="official", **dict(entry.spec)),
                group=name,
                cluster=str(entry.index),
                reference_calls=calls_of(entry.spec),
                strata={"split": entry.spec.split},
            )
            for entry in official[:limit]
        ]
    return tuple(items)


def open_tasks(path: Path, limit: int | None = None) -> tuple[Item, ...]:
    """The tasks of a file in the form of a run's tasks.jsonl, in its order; a group named after the file.

    Raises InputError when the file cannot be read or a line of it is no task.
    """
    tasks = read_jsonl(path, Task)[:limit]
    first: dict[str, str] = {}
    return tuple(
        Item(
            task=task,
            group=path.name,
            cluster=first.setdefault(json.dumps(task.initial_state, sort_keys=True), task.id),
            reference_calls=calls_of(task),
            strata={"origin": task.origin},
        )
        for task in tasks
    )


def calls_of(task: TaskSpec) -> int:
    """Calls of the task's reference, all turns together."""
    return sum(map(len, task.reference))
