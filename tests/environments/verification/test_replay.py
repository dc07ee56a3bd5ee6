"""Replays: what they record, in fresh episodes that are always closed."""

from __future__ import annotations

import pytest
from support.bfcl_tasks import CAR, ENVIRONMENT, FILES
from support.written_tasks import draft

from environments.base import EnvironmentFault, Observation, ObservationStatus, ToolCall
from environments.verification.replay import attempt, is_informative, replay, setup_as_turns, succeeds

TOUCH = ("touch", {"file_name": "log.txt"})
MOVE = ("mv", {"source": "log.txt", "destination": "day.txt"})
PLACE = ("pwd", {})
TWO_TURNS = draft(FILES, ("make it", [TOUCH, PLACE]), ("rename it", [MOVE]))


def test_observations_and_states_of_every_call_by_turn():
    played = replay(ENVIRONMENT, TWO_TURNS)
    assert [[call.name for call in turn.calls] for turn in played.turns] == [["touch", "pwd"], ["mv"]]
    assert [[o.text for o in turn.observations] for turn in played.turns] == [
        ["None", '{"current_working_directory": "/workspace"}'],
        ["{\"result\": \"'log.txt' moved to 'day.txt'\"}"],
    ]
    touched, looked = played.turns[0].states
    assert "log.txt" not in played.initial
    assert "log.txt" in touched
    assert looked == touched
    assert "day.txt" in played.turns[1].states[0]
    assert played.end_states() == (touched, played.turns[1].states[0])
    assert played.errors() == ()
    assert played.outcome.success


def test_other_calls_than_the_reference_can_be_played():
    played = replay(ENVIRONMENT, TWO_TURNS, ((), (ToolCall(name="mv", arguments=dict(MOVE[1])),)))
    assert played.errors() == ((1, 0),)
    assert played.end_states() == (played.initial, played.initial)
    assert not played.outcome.success


def test_initial_is_the_state_after_the_setup_and_the_setup_is_not_shown():
    played = replay(ENVIRONMENT, draft(FILES, ("rename it", [MOVE]), setup=(TOUCH,)))
    assert "log.txt" in played.initial
    assert len(played.turns) == 1
    assert played.outcome.success


def test_attempts_and_replays_evaluate_alike_and_leave_nothing_behind():
    alone = (TWO_TURNS.reference[0], ())
    for calls in (TWO_TURNS.reference, alone, ((), ()), TWO_TURNS.reference):
        assert attempt(ENVIRONMENT, TWO_TURNS, calls) == replay(ENVIRONMENT, TWO_TURNS, calls).outcome


def test_a_setup_becomes_turns_of_one_call_each():
    task = draft(FILES, ("rename it", [MOVE]), setup=(PLACE, TOUCH), tools=("mv",))
    shown = setup_as_turns(task)
    assert shown.turns == ("", "", "rename it")
    assert [[call.name for call in turn] for turn in shown.reference] == [["pwd"], ["touch"], ["mv"]]
    assert shown.setup == ()
    assert shown.tools == ("mv", "pwd", "touch")
    played = replay(ENVIRONMENT, shown)
    assert played.outcome.success
    assert played.end_states()[-1] == replay(ENVIRONMENT, task).end_states()[-1]


def test_success_counts_what_the_setup_told_when_it_is_played_as_turns():
    tires, shop = ("check_tire_pressure", {}), ("find_nearest_tire_shop", {})
    calls = ((ToolCall(name="find_nearest_tire_shop"),),)
    assert not succeeds(ENVIRONMENT, draft(CAR, ("", [tires])), calls)
    assert not succeeds(ENVIRONMENT, draft(CAR, ("", [tires]), setup=(shop,)), calls)
    assert succeeds(ENVIRONMENT, draft(CAR, ("", [tires]), setup=(tires,)), calls)
    assert not attempt(ENVIRONMENT, draft(CAR, ("", [tires]), setup=(tires,)), calls).success


@pytest.mark.parametrize(
    ("text", "status", "informs"),
    [
        ('{"zip": "94016"}', ObservationStatus.OK, True),
        ("0", ObservationStatus.OK, True),
        ("False", ObservationStatus.OK, True),
        ("None", ObservationStatus.OK, False),
        (" {} ", ObservationStatus.OK, False),
        ("", ObservationStatus.OK, False),
        ('{"matches": []}', ObservationStatus.EMPTY, False),
        ('{"error": "no such file"}', ObservationStatus.ERROR, False),
        ("not a call", ObservationStatus.MALFORMED, False),
    ],
)
def test_what_tells_something(text, status, informs):
    assert is_informative(Observation(text=text, status=status)) is informs


@pytest.mark.parametrize("play", [replay, attempt])
def test_an_episode_is_closed_even_when_the_environment_fails(play):
    closed = []

    class Failing:
        def start(self):
            raise EnvironmentFault("the worker died")

        def close(self):
            closed.append(True)

    class Place:
        def open(self, task):
            return Failing()

    with pytest.raises(EnvironmentFault):
        play(Place(), TWO_TURNS, TWO_TURNS.reference)
    assert closed == [True]
