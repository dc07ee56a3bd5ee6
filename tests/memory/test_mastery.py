"""Success by function: each call that a task asks for counts by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rollouts import CRASHED, rollout, turn
from support.small_policy import small_tasks

from environments.base import Parameter, ToolCall, ToolSpec
from memory.records import Task, Trajectory
from memory.tasks import success_by_function

TOOLS = [ToolSpec(name=name, group="", description="") for name in "abc"]


def task(*turns: str, name: str = "t") -> Task:
    """A task whose user turns ask for the calls of these letters."""
    calls = tuple(tuple(ToolCall(name=letter) for letter in letters) for letters in turns)
    return small_tasks()[0].model_copy(update={"id": name, "turns": turns, "reference": calls})


def estimated(one: Task, *rounds: list[Trajectory]) -> dict[str, float]:
    return success_by_function(rounds, {one.id: one}, TOOLS)


@pytest.mark.parametrize(
    ("asked", "done", "success", "made"),
    [
        pytest.param(("a",), [("a",)], True, {"a": 1}, id="made"),
        pytest.param(("a",), [()], True, {"a": 1}, id="a success has made all of them"),
        pytest.param(("ab",), [("a", "c")], False, {"a": 1, "b": 0}, id="in a failure, too"),
        pytest.param(("ab",), [("!a", "b")], False, {"a": 0, "b": 1}, id="not one that was refused"),
        pytest.param(("a", "b"), [("b",), ("a",)], False, {"a": 0, "b": 0}, id="in its own turn"),
        pytest.param(("a", "b"), [("a",)], False, {"a": 1, "b": 0}, id="a turn that was not reached"),
    ],
)
def test_a_call_counts_where_it_was_asked_for(asked, done, success, made) -> None:
    one = rollout("t", 1, 0, success, turns=tuple(turn(*names) for names in done))
    assert estimated(task(*asked), [one]) == {name: (hits + 1) / 3 for name, hits in made.items()}


def test_every_call_is_matched_once() -> None:
    assert estimated(task("aa"), [rollout("t", 1, 0, False, "a")]) == {"a": (1 + 1) / (2 + 2)}


def test_values_have_to_be_equal() -> None:
    wanted = task("a").model_copy(update={"reference": ((ToolCall(name="a", arguments={"x": 1}),),)})
    assert estimated(wanted, [rollout("t", 1, 0, False, "a")]) == {"a": 1 / 3}


def test_a_fault_of_the_environment_says_nothing_and_who_was_not_asked_has_no_estimate() -> None:
    assert estimated(task("a"), [rollout("t", 1, 0, CRASHED, "a", "b")]) == {}


def test_earlier_rounds_fade() -> None:
    failed, solved = rollout("t", 1, 0, False), rollout("t", 2, 0, True)
    assert estimated(task("a"), [failed], [solved])["a"] == (1 + 1) / (1.5 + 2)
    assert estimated(task("a"), [solved], [failed])["a"] == (0.5 + 1) / (1.5 + 2)
    assert estimated(task("a"), [solved], [], [failed])["a"] == (0.25 + 1) / (1.25 + 2)


def test_the_functions_of_a_program_count() -> None:
    code = Parameter(name="code", type="code", description="", required=True)
    runs = ToolSpec(name="run", group="", description="", parameters=(code,))
    call = ToolCall(name="run", arguments={"code": "apis.mail.send()\napis.mail.read()"})
    program = task("a").model_copy(update={"reference": ((call,),)})
    found = success_by_function([[rollout("t", 1, 0, True)]], {"t": program}, [runs])
    assert set(found.values()) == {2 / 3}
    assert len(found) == 2


@given(st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from("abc"), max_size=4)), max_size=6))
def test_estimates_are_shares(played: list[tuple[bool, list[str]]]) -> None:
    rollouts = [rollout("t", step, 0, success, *names) for step, (success, names) in enumerate(played)]
    found = estimated(task("abca"), rollouts)
    assert set(found) == (set("abc") if played else set())
    assert all(0 < share < 1 for share in found.values())
    assert estimated(task("abca"), list(reversed(rollouts))) == pytest.approx(found)
