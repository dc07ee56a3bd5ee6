"""Evaluation sets of single turns: which turns they hold, in which order, and that their references are right."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from environments.base import InputError
from environments.bfcl.benchmark import BENCHMARK, BFCLEnvironment
from environments.bfcl.official import CATEGORIES, indices
from environments.turns import open_for_agent
from environments.verification.replay import attempt
from evaluation.sets import open_set
from evaluation.test_access import Access
from memory.jsonl import read_jsonl

EACH = 57
"""Turns with a reference call in each category of the development indices."""


def test_the_development_set_has_every_turn_with_a_call_of_every_category() -> None:
    tasks = BENCHMARK.open_evaluation_set("human-dev")
    assert BENCHMARK.evaluation_set("human-dev").tasks == len({one.id for one in tasks}) == len(tasks) == 4 * EACH
    by_category = {name: [one for one in tasks if one.strata["category"] == name] for name in CATEGORIES}
    assert {name: len(found) for name, found in by_category.items()} == dict.fromkeys(CATEGORIES, EACH)
    assert {int(one.cluster) for one in tasks} == set(indices("dev"))
    assert all(one.spec.split == "dev" and one.spec.reference[-1] for one in tasks)
    assert all(one.spec.played == len(one.spec.turns) - 1 == int(one.strata["turn"]) - 1 for one in tasks)
    assert all(one.reference_calls == len(one.spec.reference[-1]) for one in tasks)


def test_the_first_tasks_are_whole_indices_of_every_category() -> None:
    clusters = [int(one.cluster) for one in BENCHMARK.open_evaluation_set("human-dev")]
    assert clusters == sorted(clusters)
    first = BENCHMARK.open_evaluation_set("human-dev", clusters.count(clusters[0]))
    assert {one.strata["category"] for one in first} == set(CATEGORIES)


def test_the_set_of_base_is_a_part_of_the_set_of_all_categories() -> None:
    part = [one for one in BENCHMARK.open_evaluation_set("human-dev") if one.strata["category"] == "base"]
    assert list(BENCHMARK.open_evaluation_set("human-base-dev")) == part
    assert BENCHMARK.evaluation_set("human-base-dev").tasks == len(part) == EACH


def test_every_reference_passes_behind_what_is_played() -> None:
    world = BFCLEnvironment()
    for one in BENCHMARK.open_evaluation_set("human-dev"):
        assert attempt(world, one.spec, one.spec.reference).success, one.id
        idle = attempt(world, one.spec, (*one.spec.reference[:-1], ()))
        assert (idle.success, idle.failed_turn) == (False, one.spec.played), one.id


def test_no_call_is_the_right_answer_in_the_sets_of_abstention() -> None:
    world = BFCLEnvironment()
    tasks = BENCHMARK.open_evaluation_set("abstain-dev")
    assert {one.strata["category"] for one in tasks} == {"miss_func", "miss_param"}
    assert {int(one.cluster) for one in tasks} == set(indices("dev"))
    for one in tasks:
        assert (one.spec.reference[-1], one.reference_calls) == ((), 0)
        with closing(world.open(one.spec)) as episode:
            _, turn = open_for_agent(episode, one.spec)
            hidden = {name for names in one.spec.withheld.values() for name in names}
            assert hidden.isdisjoint(turn.tools)
            assert bool(hidden) == (one.strata["category"] == "miss_func")


def test_what_is_played_has_no_limit_of_steps() -> None:
    one = next(one for one in BENCHMARK.open_evaluation_set("human-dev") if len(one.spec.reference[0]) > 1)
    assert one.spec.played == 0
    behind = next(
        other
        for other in BENCHMARK.open_evaluation_set("human-dev")
        if other.cluster == one.cluster and other.spec.played == 1
    )
    world = BFCLEnvironment(max_steps=1)
    assert not attempt(world, one.spec, one.spec.reference).success
    with closing(world.open(behind.spec)) as episode:
        given, _ = open_for_agent(episode, behind.spec)
    assert not any(answer.failed for turn in given for _, answer in turn.steps)


@pytest.mark.process
@pytest.mark.parametrize(("name", "tasks"), [("human-test", 1764), ("human-base-test", 441), ("abstain-test", 242)])
def test_the_test_split_opens_with_a_line_in_a_log(name: str, tasks: int, tmp_path: Path) -> None:
    described, log = BENCHMARK.evaluation_set(name), tmp_path / "log.jsonl"
    assert (described.tasks, described.held_out) == (tasks, True)
    with pytest.raises(InputError, match="add --access-log"):
        open_set(name, 3)
    assert {item.task.split for item in open_set(name, 3, log, model="m")} == {"test"}
    (access,) = read_jsonl(log, Access)
    assert (access.panels, access.tasks) == ({name: described.sha256}, 3)
