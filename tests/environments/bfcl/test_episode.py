"""Episodes: the protocol, setup, withheld tools, limits, and what an outcome may not change."""

import pytest
from support.bfcl_tasks import CAR, FUEL, LIGHTS, LOCK, PRESS, START, started, task_of

from environments.base import (
    ObservationStatus,
    ToolCall,
)
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.official import load_category, tool_names


def test_a_whole_episode():
    episode, turn = started(task_of((LIGHTS,), (FUEL,)))
    assert (turn.index, turn.text) == (0, "turn 0")
    observation = episode.step(LIGHTS)
    assert observation.text == '{"headlightStatus": "on"}'
    assert observation.status is ObservationStatus.OK
    assert observation.calls == (LIGHTS,)
    assert episode.end_turn().text == "turn 1"
    assert episode.step(FUEL).text == '{"fuelLevel": 10.0}'
    assert episode.end_turn() is None
    outcome = episode.outcome()
    assert outcome.success
    assert outcome.failure is None
    assert [turn.calls for turn in outcome.turns] == [1, 1]
    episode.close()
    episode.close()


def test_the_setup_is_hidden_and_both_sides_have_it():
    task = task_of((START,), setup=(LOCK, PRESS))
    episode, turn = started(task)
    assert turn.index == 0
    assert '"pressed"' in episode.state()
    assert episode.step(START).status is ObservationStatus.OK
    outcome = episode.outcome()
    assert outcome.success
    assert len(outcome.turns) == 1
    assert outcome.turns[0].calls == 1


def test_what_the_setup_answered_is_no_answer_of_the_agent():
    """The reference reads the fuel; so did the setup. Nothing but reading it again will do."""
    task = task_of((FUEL, LIGHTS), setup=(FUEL,))
    episode, _ = started(task)
    episode.step(LIGHTS)
    outcome = episode.outcome()
    assert (outcome.success, outcome.failure) == (False, "multi_turn:execution_response_mismatch")
    assert outcome.turns[0].state is True
    episode.step(FUEL)
    assert episode.outcome().success


def test_withheld_tools_appear_at_their_turn():
    for task in load_category("miss_func", ("train", "dev")):
        ((reveal, names),) = task.spec.withheld.items()
        episode, turn = started(task.spec)
        turns = [turn]
        for _ in task.spec.turns[1:]:
            turns.append(episode.end_turn())
        assert episode.end_turn() is None
        for turn in turns:
            assert set(names).isdisjoint(turn.tools) == (turn.index < reveal)
            assert len(turn.tools) == len(task.spec.tools) - (len(names) if turn.index < reveal else 0)
        assert turns[reveal].tools[-len(names) :] == names
        assert "updated some more functions" in turns[reveal].text


def test_tools_can_be_withheld_until_several_turns():
    task = task_of((), (), (), withheld={1: ("startEngine",), 2: ("lockDoors",)})
    episode, first = started(task)
    second, third = episode.end_turn(), episode.end_turn()
    assert [("startEngine" in turn.tools, "lockDoors" in turn.tools) for turn in (first, second, third)] == [
        (False, False),
        (True, False),
        (True, True),
    ]


def test_a_withheld_tool_runs_as_officially_though_it_is_not_shown():
    episode, turn = started(task_of((), (LIGHTS,), withheld={1: ("setHeadlights",)}))
    assert "setHeadlights" not in turn.tools
    assert episode.step(LIGHTS).status is ObservationStatus.OK


@pytest.mark.parametrize("name", ["startEngine", "ls", "nothing"])
def test_a_tool_that_the_task_does_not_have_is_not_defined(name):
    tools = tuple(tool for tool in tool_names([CAR]) if tool != "startEngine")
    episode, _ = started(task_of((LIGHTS,), tools=tools))
    observation = episode.step(ToolCall(name=name, arguments={"ignitionMode": "START"}))
    assert observation.text == f"Error during execution: name '{name}' is not defined"
    assert observation.status is ObservationStatus.ERROR
    assert observation.calls == ()


def test_a_step_past_the_limit_is_not_run_and_ends_the_attempt_unless_in_the_last_turn():
    episode, _ = started(task_of((LIGHTS,), (FUEL,)), max_steps=2)
    episode.step(FUEL)
    episode.step(FUEL)
    before = episode.state()
    observation = episode.step(LIGHTS)
    assert observation.status is ObservationStatus.ERROR
    assert "limit of 2 steps" in observation.text
    assert observation.calls == ()
    assert episode.state() == before
    episode.end_turn()
    for _ in range(3):
        episode.step(FUEL)
    outcome = episode.outcome()
    assert (outcome.failure, outcome.failed_turn) == ("multi_turn:force_terminated", 0)
    assert [turn.calls for turn in outcome.turns] == [2, 2]

    episode, _ = started(task_of((LIGHTS,)), max_steps=1)
    episode.step(LIGHTS)
    episode.step(FUEL)
    assert episode.outcome().success


def test_methods_out_of_order_are_a_programming_error():
    task = task_of((LIGHTS,))
    episode = BFCLEnvironment().open(task)
    for method in (lambda: episode.step(LIGHTS), episode.end_turn, episode.outcome):
        with pytest.raises(RuntimeError, match="has not started"):
            method()
    episode.start()
    with pytest.raises(RuntimeError, match="already started"):
        episode.start()
    episode.end_turn()
    for method in (lambda: episode.step(LIGHTS), episode.end_turn):
        with pytest.raises(RuntimeError, match="is over"):
            method()
    episode.close()
    for method in (episode.state, episode.start):
        with pytest.raises(RuntimeError):
            method()
