"""Live episodes of an explorer: beyond the limit of a turn, state changes, setup."""

from __future__ import annotations

from agents.evidence import live_run
from environments.base import ToolCall
from memory.jsonl import record_id


def call(name: str, **arguments) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def test_more_actions_than_a_turn_allows(environment, car_start, make_context) -> None:
    context = make_context(car_start, "lockDoors")
    with live_run(environment, context, 2, 50) as run:
        for number in range(50):
            interaction = run.act(call("fillFuelTank", fuelAmount=0.5))
            assert interaction.changed
            assert (interaction.run, interaction.position) == (2, number)
            assert interaction.id == record_id("interaction", context.id, 2, number)
    assert f"{10 + 25.0}" in run.interactions[-1].observation.text


def test_the_setup_ran_before(environment, car_start, make_context) -> None:
    context = make_context(car_start, "lockDoors", setup=(call("fillFuelTank", fuelAmount=5.0),))
    with live_run(environment, context, 0, 1) as run:
        assert "15.0" in run.act(call("displayCarStatus", option="fuel")).observation.text


def test_only_what_the_official_check_compares_is_a_change(environment, files_start, make_context) -> None:
    actions = (
        call("cd", folder="papers"),
        call("ls"),
        call("cat", file_name="nothing"),
        call("mkdir", dir_name="x"),
        call("cp", source="x", destination="x"),
    )
    with live_run(environment, make_context(files_start, "cp"), 0, len(actions)) as run:
        assert [run.act(action).changed for action in actions] == [False, False, False, True, True]
