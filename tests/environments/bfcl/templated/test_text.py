"""User turns: which calls a precondition forces, and text that is deterministic and names nothing."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.templated_calls import FORBIDDEN, TEMPLATED_CLASSES, documented_calls, words_outside_quotes

from environments import task_text
from environments.base import InputError, TaskSpec, ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.evaluation_sets import load_set
from environments.bfcl.official import tool_names
from environments.bfcl.templated.wordings import clause, forced_calls, render_task
from environments.task_text import CONNECTIVES, caused_errors
from memory.records import Draft

ENVIRONMENT = BFCLEnvironment(TEMPLATED_CLASSES)
FILE = {"type": "file", "content": "one\ntwo"}
STATE = {
    "GorillaFileSystem": {
        "root": {
            "home": {
                "type": "directory",
                "contents": {
                    "notes.txt": FILE,
                    "old.txt": FILE,
                    "docs": {"type": "directory", "contents": {"plan.txt": FILE}},
                },
            }
        }
    },
    "VehicleControlAPI": {"fuelLevel": 10.0, "engineState": "stopped"},
}
LOCK = ToolCall(
    name="lockDoors", arguments={"unlock": False, "door": ["driver", "passenger", "rear_left", "rear_right"]}
)
PRESS = ToolCall(name="pressBrakePedal", arguments={"pedalPosition": 1.0})
START = ToolCall(name="startEngine", arguments={"ignitionMode": "START"})
CRUISE = ToolCall(name="setCruiseControl", arguments={"speed": 65, "activate": True, "distanceToNextVehicle": 100})
FUEL = ToolCall(name="fillFuelTank", arguments={"fuelAmount": 5.5})
CD = ToolCall(name="cd", arguments={"folder": "docs"})
CAT = ToolCall(name="cat", arguments={"file_name": "plan.txt"})
TOUCH = ToolCall(name="touch", arguments={"file_name": "new.txt"})
ECHO = ToolCall(name="echo", arguments={"content": "hi", "file_name": "new.txt"})


def spec(*turns, setup=()):
    return TaskSpec(
        environment="bfcl",
        split="train",
        classes=TEMPLATED_CLASSES,
        turns=("",) * len(turns),
        initial_state=STATE,
        setup=tuple(setup),
        tools=tool_names(TEMPLATED_CLASSES),
        reference=tuple(tuple(turn) for turn in turns),
    )


def call(name, **arguments):
    return ToolCall(name=name, arguments=arguments)


@pytest.mark.parametrize(
    ("calls", "setup", "forced"),
    [
        ([LOCK, PRESS, START], [], [True, True, False]),
        ([PRESS, LOCK, START], [], [True, True, False]),
        ([PRESS, START], [LOCK], [True, False]),
        ([LOCK, START], [PRESS], [True, False]),
        ([START, CRUISE], [LOCK, PRESS], [True, False]),
        ([LOCK, PRESS, START, CRUISE], [], [True, True, True, False]),
        ([LOCK, FUEL, PRESS, START], [], [True, False, True, False]),
        ([FUEL, START], [LOCK, PRESS], [False, False]),
        ([LOCK, PRESS], [], [False, False]),
        ([START], [], [False]),
        ([CD, CAT], [], [False, False]),
        ([TOUCH, ECHO], [], [True, False]),
        ([TOUCH, call("cat", file_name="new.txt")], [], [False, False]),
        ([call("mkdir", dir_name="attic"), call("cd", folder="attic")], [], [False, False]),
        ([call("rm", file_name="notes.txt"), call("touch", file_name="notes.txt")], [], [False, False]),
        ([call("mv", source="notes.txt", destination="new.txt"), ECHO], [], [False, False]),
        ([call("pressBrakePedal", pedalPosition=0.5), PRESS, START], [LOCK], [False, True, False]),
    ],
)
def test_a_call_is_forced_when_a_later_one_fails_without_it_and_its_arguments_can_be_had(calls, setup, forced):
    assert forced_calls(ENVIRONMENT, spec(calls, setup=setup)) == (tuple(forced),)


def test_a_call_that_only_another_turn_needs_is_said():
    assert forced_calls(ENVIRONMENT, spec([LOCK, PRESS], [START])) == ((False, False), (False,))
    assert forced_calls(ENVIRONMENT, spec([LOCK], [PRESS, START])) == ((False,), (True, False))


def test_the_number_of_a_forced_call_must_be_documented():
    ajar = spec([LOCK, call("pressBrakePedal", pedalPosition=1), START])
    assert forced_calls(ENVIRONMENT, ajar) == ((True, True, False),)
    half = spec([call("setCruiseControl", speed=5, activate=True, distanceToNextVehicle=1), FUEL], setup=[LOCK, PRESS])
    assert forced_calls(ENVIRONMENT, half) == ((False, False),)


def test_an_error_that_comes_anyway_forces_nothing():
    missing = call("echo", content="hi", file_name="nowhere.txt")
    assert caused_errors(ENVIRONMENT, spec([LOCK, missing]), 0, 0) == ()
    assert forced_calls(ENVIRONMENT, spec([LOCK, missing])) == ((False, False),)


def test_caused_errors_are_told_in_order():
    errors = caused_errors(ENVIRONMENT, spec([LOCK, PRESS, START, CRUISE]), 0, 0)
    assert ["doors must be locked" in errors[0], "Start the engine" in errors[1], len(errors)] == [True, True, 2]


def test_a_forced_call_is_not_said_and_the_rest_is():
    task = spec([LOCK, FUEL, PRESS, START])
    for seed in range(20):
        (text,) = render_task(ENVIRONMENT, task, random.Random(seed)).turns
        assert "5.5" in text
        assert any(word in text for word in ("engine", "motor"))
        assert "doors" not in text
        assert "brake" not in text


def test_equal_seeds_give_equal_text_and_other_seeds_other_text():
    task = spec([CD, CAT], [FUEL, LOCK])
    texts = [render_task(ENVIRONMENT, task, random.Random(seed)).turns for seed in (*range(30), 0)]
    assert texts[0] == texts[-1]
    assert len(set(texts)) > 10
    assert all(len(turns) == 2 for turns in texts)


def test_evaluation_sets_and_training_never_say_the_same():
    for member in load_set("templated-dev")[:30]:
        said = {render_task(ENVIRONMENT, member.spec, random.Random(seed)).turns for seed in range(60)}
        assert member.spec.turns not in said


def test_every_connective_is_used():
    task = spec([FUEL, call("setHeadlights", mode="on")])
    texts = [render_task(ENVIRONMENT, task, random.Random(seed)).turns[0] for seed in range(60)]
    assert all(any(connective in text for text in texts) for connective in CONNECTIVES)


def test_the_rest_of_the_task_and_its_type_stay():
    draft = Draft(**dict(spec([CAT])), id="draft-1", context_id="context-1", parents=("context-1",))
    rendered = render_task(ENVIRONMENT, draft, random.Random(0))
    assert type(rendered) is Draft
    assert rendered.turns != draft.turns
    assert rendered.model_copy(update={"turns": draft.turns}) == draft


def test_an_empty_turn_and_a_turn_that_says_nothing_are_refused():
    with pytest.raises(InputError, match="turn 2"):
        render_task(ENVIRONMENT, spec([CAT], []), random.Random(0))
    with pytest.raises(InputError, match="turn 1"):
        task_text.render_turns(spec([CAT]), ((True,),), clause, random.Random(0))


def test_a_call_with_an_undocumented_parameter_is_refused():
    tweet = TaskSpec(
        environment="bfcl",
        split="train",
        classes=("TwitterAPI",),
        turns=("",),
        initial_state={},
        tools=tool_names(("TwitterAPI",)),
        reference=((call("post_tweet", content="hi", mood="good"),),),
    )
    with pytest.raises(InputError, match="mood"):
        render_task(ENVIRONMENT, tweet, random.Random(0))


@settings(max_examples=300, deadline=None)
@given(st.lists(documented_calls(), min_size=1, max_size=3), st.integers(0, 999))
@pytest.mark.slow
def test_no_rendered_text_names_a_function_or_parameter(calls, seed):
    """Ten renderings an example: thousands of texts."""
    rng = random.Random(seed)
    for _ in range(10):
        said = [clause(one, rng) for one in calls]
        text = rng.choice(task_text.CONNECTIVES).join(said)
        assert not words_outside_quotes(text) & FORBIDDEN
