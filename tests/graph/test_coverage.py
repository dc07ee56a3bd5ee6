"""Contexts from coverage: what no task calls in turn, then what few call; and who gets which start state."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.scripted.explorer import GuidedExplorer
from agents.settings import ExplorationSettings
from environments.base import InputError, TaskSpec, ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from graph.settings import check_starts
from graph.unsignalled import coverage_contexts
from memory.records import FailureContext, Unsignalled
from training.signals import SignalSettings

ENVIRONMENT = BFCLEnvironment(("GorillaFileSystem", "VehicleControlAPI"))
STARTS = ENVIRONMENT.starts()
NAMES = sorted({name for start in STARTS for name in start.tools})
GROUPS = {tool.name: tool.group for tool in ENVIRONMENT.tools(NAMES)}


def task(*names: str) -> TaskSpec:
    start = STARTS[0]
    return TaskSpec(
        environment=start.environment,
        split="train",
        classes=start.classes,
        turns=("?",),
        initial_state=start.initial_state,
        tools=start.tools,
        reference=(tuple(ToolCall(name=name) for name in names),),
    )


def contexts(  # type: ignore[no-untyped-def]
    tasks, count, explored=(), seed=0, iteration=0, success=None
) -> tuple[FailureContext, ...]:
    return coverage_contexts(tasks, explored, ENVIRONMENT, count, seed, iteration, success)


def named(found) -> Counter[tuple[str, ...]]:  # type: ignore[no-untyped-def]
    return Counter(one.focus_pattern for one in found)


def test_tools_that_no_task_calls_come_first_each_once() -> None:
    covered = [name for name in NAMES if name not in ("sort", "wc", "startEngine")]
    tasks = [task(name) for name in covered]
    assert set(named(contexts(tasks, 3))) == {("sort",), ("wc",), ("startEngine",)}
    assert named(contexts([], len(NAMES))) == {(name,): 1 for name in NAMES}
    for one in contexts(tasks, 3):
        assert (one.kind, one.iteration, one.cause, one.task_id, one.facts) == (Unsignalled.COVERAGE, 0, None, "", ())
        assert one.tool == one.explore[0] == one.focus_pattern[0]
        assert set(one.explore) <= set(one.tools)
        assert one.why == f"No task calls {one.tool} so far."


def test_then_tools_and_pairs_with_the_fewest_tasks_take_turns() -> None:
    often = [task(name) for name in NAMES for _ in range(3)]
    tasks = [one for one in often if one.reference[0][0].name != "diff"] + [task("diff")]
    found = contexts(tasks, 4)
    pairs = [names for names in named(found) if len(names) == 2]
    assert named(found) == {("diff",): 2, pairs[0]: 1, pairs[1]: 1}, "diff has fewer until it has two contexts"
    assert all(GROUPS[first] == GROUPS[second] for first, second in pairs)
    assert len({first for first, _ in pairs}) == 2, "pairs begin with different tools"
    one = next(one for one in found if one.focus_pattern == pairs[0])
    assert one.explore[:2] == pairs[0]
    assert one.why == f"No task calls {pairs[0][0]} and then {pairs[0][1]} so far."


def test_pairs_that_tasks_have_wait_for_those_that_none_has() -> None:
    """All pairs of files but two are exercised, so that these two come, whatever their tools."""
    files = [name for name in NAMES if GROUPS[name] == "GorillaFileSystem"]
    cars = [name for name in NAMES if GROUPS[name] == "VehicleControlAPI"]
    open_pairs = {("wc", "cat"), ("cat", "du")}
    tasks = [
        task(first, second)
        for group in (files, cars)
        for first in group
        for second in group
        if first != second and (first, second) not in open_pairs
    ]
    found = named(contexts(tasks, 4))
    assert {names for names in found if len(names) == 2} == open_pairs


def test_a_tool_that_was_explored_in_vain_gives_way() -> None:
    first = contexts([], len(NAMES) - 5)
    later = contexts([], 5, first, iteration=1)
    assert {one.tool for one in later}.isdisjoint(one.tool for one in first)
    covered = [task(name) for name in NAMES if name != "wc"]
    tried = contexts(covered, 1)
    assert named(tried) == {("wc",): 1}
    assert named(contexts(covered, 1, tried, iteration=1)) != {("wc",): 1}
    others = [one.model_copy(update={"kind": Unsignalled.RANDOM}) for one in tried]
    assert named(contexts(covered, 1, others, iteration=1)) == {("wc",): 1}, "contexts of another source do not count"


@settings(max_examples=20, deadline=None)
@given(data=st.data(), seed=st.integers(0, 3), count=st.integers(0, 30))
def test_the_order_of_tasks_and_contexts_does_not_matter(data, seed, count) -> None:  # type: ignore[no-untyped-def]
    tasks = [task(*names) for names in data.draw(st.lists(st.lists(st.sampled_from(NAMES), max_size=3), max_size=8))]
    before = contexts(tasks, 6, seed=seed)
    found = contexts(tasks, count, before, seed, 1)
    shuffle = random.Random(seed).sample
    assert found == contexts(shuffle(tasks, len(tasks)), count, shuffle(before, len(before)), seed, 1)
    assert len({one.id for one in (*found, *before)}) == count + 6
    assert list(found) == sorted(found, key=lambda one: one.id)


def test_the_seed_draws_among_equals_and_start_states() -> None:
    draws = [contexts([], 5, seed=seed) for seed in range(4)]
    assert len({frozenset(named(found)) for found in draws}) == 4
    assert len({str(one.initial_state) for found in draws for one in found if one.tool in found[0].tools}) > 4


def test_a_tool_that_needs_others_first_is_reached() -> None:
    (context,) = contexts([task(name) for name in NAMES if name != "startEngine"], 1)
    interactions = GuidedExplorer(ExplorationSettings()).explore_now(context, ENVIRONMENT, 0)
    started = [one for one in interactions if "engineState" in one.observation.text and one.changed]
    assert any(call.name == "startEngine" for one in started for call in one.observation.calls)


KNOWN = dict.fromkeys(NAMES, 0.9)


def test_by_need_what_fails_comes_before_what_was_never_asked_and_what_is_known_last() -> None:
    success = KNOWN | {"sort": 0.1, "wc": 0.3}
    del success["diff"]
    (first,) = contexts([], 1, success=success)
    assert (first.tool, first.kind) == ("sort", Unsignalled.COVERAGE)
    assert first.why == "No task calls sort so far. Rollouts make about 10 % of the calls to it that tasks ask for."
    assert set(named(contexts([], 3, success=success))) == {("sort",), ("wc",), ("diff",)}
    third = next(one for one in contexts([], 3, success=success) if one.tool == "diff")
    assert third.why.endswith("No rollout was asked for it.")


def test_by_need_tasks_and_contexts_that_a_tool_had_lower_it() -> None:
    success = KNOWN | {"sort": 0.1, "wc": 0.3}
    many = [task("sort") for _ in range(8)]
    assert named(contexts(many, 1, success=success)) == {("wc",): 1}, "0.9 / 2 is less than 0.7"
    tried = contexts([], 1, success=success)
    assert named(tried) == {("sort",): 1}
    assert named(contexts([], 1, tried, iteration=1, success=success)) == {("wc",): 1}


def test_by_need_neighbours_are_those_of_the_group_that_need_it_most() -> None:
    weak = {name: 0.2 + n / 100 for n, name in enumerate(("cat", "cp", "du", "echo"))}
    (one,) = contexts([], 1, success=KNOWN | weak | {"sort": 0.1})
    assert one.explore == ("sort", "cat", "cp", "du", "echo")
    (plain,) = contexts([task(name) for name in NAMES if name != "sort"], 1)
    assert set(plain.explore) != set(one.explore)


def test_given_functions_and_pairs_take_turns_and_nothing_else_does() -> None:
    asked = [("mv",), ("mkdir", "cd"), ("startEngine",)]
    often = [task("mv")] * 3

    def found(count, explored=()):  # type: ignore[no-untyped-def]
        return coverage_contexts(often, explored, ENVIRONMENT, count, 0, 0, given=asked)

    first = found(2)
    assert named(first) == {("mv",): 1, ("mkdir", "cd"): 1}, "also those that tasks have"
    assert named(found(7)) == {("mv",): 3, ("mkdir", "cd"): 2, ("startEngine",): 2}
    assert all(set(one.focus_pattern) <= set(one.tools) for one in found(7))
    assert named(found(2, explored=first)) == {("startEngine",): 1, ("mv",): 1}


def test_a_function_that_no_start_state_offers_is_refused_before_a_run() -> None:
    for asked, says in (([["fly"]], "offers fly"), ([["mv", "startEngine"]], "offers mv and startEngine")):
        chosen = SignalSettings.model_validate({"contexts": "coverage", "functions": asked})
        with pytest.raises(InputError, match=says):
            check_starts(chosen, ENVIRONMENT)
    with pytest.raises(ValueError, match="functions"):
        SignalSettings.model_validate({"contexts": "random", "functions": [["mv"]]})
