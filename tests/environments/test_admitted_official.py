"""Admitted tasks stand up to the official executor and checker: no error, accepted, no trivial solution, no spare call.

Tasks come from random calls over the training starts. The audit itself is shown to find what verification refuses.
"""

from __future__ import annotations

import random
from functools import cache

import pytest
from support.bfcl_tasks import CAR, ENVIRONMENT, FILES
from support.official_audit import audit
from support.random_paths import random_tasks, with_placeholder_text
from support.written_tasks import draft

from environments.base import TaskSpec
from environments.bfcl.benchmark import BFCLEnvironment
from environments.verification.replay import reduce
from environments.verification.verify import verify
from memory.jsonl import derive_seed

SORT = ("sort", {"file_name": "notes.txt"})
EVERYWHERE = BFCLEnvironment()


def admitted(environment: BFCLEnvironment, every: int, calls: int) -> list[TaskSpec]:
    rng = random.Random(derive_seed("admitted tasks", calls))
    tasks = []
    for start in environment.starts()[::every]:
        for path in random_tasks(environment, start, calls=calls, rng=rng):
            reduced = reduce(environment, path)
            if reduced is not None and verify(with_placeholder_text(reduced), environment, (), ()).accepted:
                tasks.append(with_placeholder_text(reduced))
    return tasks


@cache
def admitted_tasks() -> tuple[TaskSpec, ...]:
    """Of the two classes of templated tasks, and some of all eight."""
    return (*admitted(ENVIRONMENT, every=2, calls=12), *admitted(EVERYWHERE, every=12, calls=30))


def test_the_sample_is_varied():
    tasks = admitted_tasks()
    assert len(tasks) >= 30
    assert {1, 2, 3} <= {sum(len(turn) for turn in task.reference) for task in tasks}
    assert any(len(task.turns) == 2 for task in tasks)
    assert sum(bool(task.setup) for task in tasks) >= 10
    assert len({call.name for task in tasks for turn in task.reference for call in turn}) >= 25


@pytest.mark.slow
def test_every_admitted_task_passes_the_official_audit():
    problems = {
        task.model_dump_json(include={"reference"}): found for task in admitted_tasks() if (found := audit(task))
    }
    assert problems == {}


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (draft(FILES, ("", [("teleport", {})])), "belongs to none"),
        (draft(FILES, ("", [("teleport", {})])), "Error during execution"),
        (draft(CAR, ("", [("startEngine", {"ignitionMode": "START"})])), "Brake pedal"),
        (draft(CAR, ("", [("check_tire_pressure", {})])), "check_tire_pressure() solves it"),
        (draft(CAR, ("", [("check_tire_pressure", {}), ("find_nearest_tire_shop", {})])), "reading everything"),
        (draft(FILES, ("", [SORT]), setup=(SORT,)), "pwd() solves it"),
        (draft(FILES, ("", [SORT, ("pwd", {})]), ("", [("pwd", {}), SORT])), "solved without pwd()"),
    ],
)
def test_the_audit_finds_what_is_wrong(task, words):
    assert any(words in problem for problem in audit(task))
    assert not verify(with_placeholder_text(task), EVERYWHERE, (), ()).accepted
