"""Compositions: drafts joined with tasks of the set, from one start, and what verification says of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.small_policy import STATE, small_tasks

from agents.settings import ExplorationSettings
from environments.base import TaskSpec, ToolCall
from environments.benchmark import PLAIN
from environments.bfcl.benchmark import BFCLEnvironment
from environments.settings import VerificationSettings
from environments.verification.decontamination import HeldOut
from environments.verification.verify import verify
from graph.ours import compose
from memory.records import Draft, Task

CLASSES = ("GorillaFileSystem", "MathAPI")
SUM = ToolCall(name="add", arguments={"a": 3.0, "b": 4.0})
FILES = small_tasks()
MOVE = (ToolCall(name="cd", arguments={"folder": "archive"}), ToolCall(name="pwd"))


@pytest.fixture(scope="module")
def environment() -> BFCLEnvironment:
    return BFCLEnvironment(CLASSES)


def sums(environment: BFCLEnvironment, **changes: object) -> Task:
    start = next(start for start in environment.starts() if "MathAPI" in start.classes)
    tools = tuple(tool.name for tool in environment.tools(start.tools) if tool.name in ("add", "subtract"))
    given = {
        "id": "task-add",
        "classes": ("MathAPI",),
        "initial_state": {"MathAPI": {}},
        "tools": tools,
        "turns": ("Please add 3 and 4.",),
        "reference": ((SUM,),),
    }
    return FILES[0].model_copy(update=given | changes)


def draft(task: Task, **changes: object) -> Draft:
    fields = {name: getattr(task, name) for name in TaskSpec.model_fields} | changes
    return Draft(**fields, id=f"draft-{task.id}", context_id="context-1")


def settings(**changes: object) -> ExplorationSettings:
    return ExplorationSettings(**({"compositions": 40, "max_reference_calls": 4} | changes))


def test_both_references_are_carried_out_from_one_start(environment) -> None:
    made = compose([draft(FILES[3])], [sums(environment)], settings(two_turns=0.5), environment, seed=1)
    assert len(made) == 1, "a pair is composed once"
    (one,) = made
    assert one.classes == ("GorillaFileSystem", "MathAPI")
    assert one.initial_state == {**STATE, "MathAPI": {}}
    assert one.parents == ("draft-task-read", "task-add")
    assert (one.context_id, one.id != "draft-task-read") == ("context-1", True)
    result = verify(one, environment, set(), HeldOut(), VerificationSettings())
    assert result.accepted, result


def test_turns_and_orders_are_drawn_and_texts_stay(environment) -> None:
    shapes: Counter[tuple[int, bool]] = Counter()
    for seed in range(40):
        (one,) = compose([draft(FILES[3])], [sums(environment)], settings(two_turns=0.5), environment, seed)
        calls = [call.name for turn in one.reference for call in turn]
        assert sorted(calls) == ["add", "cat"]
        text = " | ".join(one.turns)
        assert 'Show what "notes.txt" says' in text
        assert "Please add 3 and 4" in text
        assert (text.index("Show") < text.index("Please")) == (calls[0] == "cat")
        shapes[len(one.turns), calls[0] == "cat"] += 1
    assert set(shapes) == {(turns, first) for turns in (1, 2) for first in (False, True)}
    assert all(len(one.turns) == 1 for one in compose([draft(FILES[3])], FILES, settings(), environment, 0))


def test_what_the_second_needs_may_be_gone_and_verification_tells(environment) -> None:
    """After "cd archive" there is no notes.txt; before it there is: only a replay shows it."""
    made = [compose([draft(FILES[4])], [FILES[3]], settings(), environment, seed) for seed in range(12)]
    results = {
        one.reference[0][0].name: verify(one, environment, set(), HeldOut(), VerificationSettings()).accepted
        for (one,) in made
    }
    assert results == {"cat": True, "cd": False}


@pytest.mark.parametrize(
    "changes",
    [
        {"turns": ("a", "b"), "reference": ((SUM,), (SUM,))},
        {"withheld": {0: ("add",)}},
        {"long_context": True},
        {"reference": ((SUM,) * 4,)},
    ],
)
def test_what_cannot_be_joined_is_left_alone(environment, changes) -> None:
    assert compose([draft(FILES[3])], [sums(environment, **changes)], settings(), environment, 0) == ()
    assert compose([draft(sums(environment, **changes))], [FILES[3]], settings(), environment, 0) == ()


def test_setups_of_the_second_are_kept_where_no_class_is_shared(environment) -> None:
    entered = FILES[0].model_copy(update={"setup": MOVE[:1]})
    (apart,) = compose([draft(sums(environment))], [entered], settings(), environment, 0)
    assert apart.setup == MOVE[:1]
    (shared,) = compose([draft(FILES[3])], [entered], settings(), environment, 0)
    assert shared.setup == ()


def test_by_default_tasks_are_joined_in_equal_states_alone(environment) -> None:
    first, second = FILES[0], FILES[1].model_copy(update={"tools": ("ls",)})
    joined = PLAIN.join(first.model_copy(update={"tools": ("pwd",)}), second)
    assert joined is not None
    assert joined.tools == ("pwd", "ls")
    assert joined.reference == first.reference
    other = second.model_copy(update={"initial_state": {"GorillaFileSystem": {}}})
    assert PLAIN.join(first, other) is None


@given(count=st.integers(0, 12), seed=st.integers(0, 50))
def test_no_more_than_asked_and_no_pair_twice(count, seed) -> None:
    environment = BFCLEnvironment(CLASSES)
    drafts = [draft(task) for task in FILES[:3]]
    made = compose(drafts, FILES, settings(compositions=count, two_turns=0.3), environment, seed)
    assert made == compose(drafts, FILES, settings(compositions=count, two_turns=0.3), environment, seed)
    assert len(made) <= count
    assert len({one.id for one in made}) == len({one.parents for one in made}) == len(made)
    assert all(sum(map(len, one.reference)) <= 4 for one in made)
