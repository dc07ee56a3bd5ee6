"""A trajectory for every cause, played in the real environment."""

from __future__ import annotations

import json

import pytest

from agents.scripted.reflector import RuleReflector
from agents.spending import RoleRefused
from environments.base import MalformedCall, ToolCall
from memory.records import Cause, SignalKind


def call(name: str, **arguments) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


DOORS = ["driver", "passenger", "rear_left", "rear_right"]
LOCK = call("lockDoors", unlock=False, door=DOORS)
PRESS = call("pressBrakePedal", pedalPosition=1.0)
START = call("startEngine", ignitionMode="START")
TO_PAPERS = call("cd", folder="papers")
CAT = call("cat", file_name="draft.txt")

CASES = {
    "malformed": (
        [LOCK, START],
        [MalformedCall(text="lock the doors", reason="not one plain call")],
        (Cause.MALFORMED, (0, 0), "lockDoors"),
    ),
    "engine without locked doors": (
        [LOCK, PRESS, START],
        [START],
        (Cause.UNMET_PRECONDITION, (0, 0), "startEngine"),
    ),
    "engine without the brake": (
        [LOCK, PRESS, START],
        [LOCK, START],
        (Cause.UNMET_PRECONDITION, (0, 1), "startEngine"),
    ),
    "file of a folder that was not entered": (
        [TO_PAPERS, CAT],
        [CAT],
        (Cause.UNMET_PRECONDITION, (0, 0), "cat"),
    ),
    "file that is not there": (
        [TO_PAPERS, CAT],
        [TO_PAPERS, call("cat", file_name="nothing.txt")],
        (Cause.WRONG_ARGUMENT, (0, 1), "cat"),
    ),
    "another value that works": (
        [call("fillFuelTank", fuelAmount=5.0)],
        [call("fillFuelTank", fuelAmount=7.0)],
        (Cause.WRONG_ARGUMENT, (0, 0), "fillFuelTank"),
    ),
    "another tool": (
        [call("setHeadlights", mode="on")],
        [call("displayCarStatus", option="headlights")],
        (Cause.WRONG_CALL, (0, 0), "setHeadlights"),
    ),
    "a tool that does not exist": (
        [call("setHeadlights", mode="on")],
        [call("switchLights", mode="on")],
        (Cause.WRONG_CALL, (0, 0), "setHeadlights"),
    ),
    "one left out in the middle": (
        [call("setHeadlights", mode="on"), call("fillFuelTank", fuelAmount=5.0)],
        [call("fillFuelTank", fuelAmount=5.0)],
        (Cause.MISSING_CALL, (0, 0), "setHeadlights"),
    ),
    "stopped after the first": (
        [call("setHeadlights", mode="on"), call("fillFuelTank", fuelAmount=5.0)],
        [call("setHeadlights", mode="on")],
        (Cause.STOPPED_EARLY, (0, 1), "fillFuelTank"),
    ),
    "did nothing": ([call("setHeadlights", mode="on")], [], (Cause.STOPPED_EARLY, (0, 0), "setHeadlights")),
    "changed more": (
        [call("setHeadlights", mode="on")],
        [
            call("displayCarStatus", option="fuel"),
            call("setHeadlights", mode="on"),
            call("fillFuelTank", fuelAmount=5.0),
        ],
        (Cause.SUPERFLUOUS_CALL, (0, 2), "fillFuelTank"),
    ),
    "wrong order": (
        [PRESS, call("releaseBrakePedal")],
        [call("releaseBrakePedal"), PRESS],
        (Cause.WRONG_CALL, (0, 0), "pressBrakePedal"),
    ),
    "an error that was overcome is not blamed": (
        [LOCK, PRESS, START, call("setHeadlights", mode="on")],
        [START, LOCK, PRESS, START],
        (Cause.STOPPED_EARLY, (0, 4), "setHeadlights"),
    ),
    "a harmless read before is not blamed": (
        [call("setHeadlights", mode="on"), call("fillFuelTank", fuelAmount=5.0)],
        [call("displayCarStatus", option="fuel"), call("setHeadlights", mode="on")],
        (Cause.STOPPED_EARLY, (0, 2), "fillFuelTank"),
    ),
    "defaults and the order of choices do not matter": (
        [call("adjustClimateControl", temperature=20.0, mode="auto"), LOCK],
        [call("adjustClimateControl", temperature=20.0), call("lockDoors", unlock=False, door=DOORS[::-1]), PRESS],
        (Cause.SUPERFLUOUS_CALL, (0, 2), "pressBrakePedal"),
    ),
}


@pytest.mark.parametrize(("reference", "actions", "expected"), CASES.values(), ids=CASES.keys())
async def test_names_where_and_why(attempt, environment, reference, actions, expected) -> None:
    evidence = attempt([reference], [actions])
    assert not evidence.trajectory.success
    context = await RuleReflector().reflect(evidence, environment)
    assert (context.cause, context.where, context.tool) == expected
    assert context.how
    assert context.why
    assert context.explore[0] == context.tool
    assert set(context.explore) <= set(evidence.task.tools)
    assert context == await RuleReflector().reflect(evidence, environment)


async def test_a_refusal_by_precondition_names_its_remedies_and_its_class(attempt, environment) -> None:
    context = await RuleReflector().reflect(attempt([[LOCK, PRESS, START]], [[START]]), environment)
    assert context.error_class == (
        "All doors must be locked before starting the engine. Here are the unlocked doors: <list>"
    )
    assert context.explore[:2] == ("startEngine", "lockDoors")
    assert "pressBrakePedal" in context.explore


async def test_equal_mistakes_have_equal_signatures(attempt, environment) -> None:
    contexts = [
        await RuleReflector().reflect(
            attempt([[TO_PAPERS, CAT]], [[TO_PAPERS, call("cat", file_name=name)]]), environment
        )
        for name in ("one.txt", "two.txt")
    ]
    assert contexts[0].signature() == contexts[1].signature()
    assert contexts[0].facts != contexts[1].facts


async def test_success_is_unstable(attempt, environment) -> None:
    evidence = attempt([[LOCK, PRESS]], [[LOCK, PRESS]], kind=SignalKind.RARE, pattern=("lockDoors", "pressBrakePedal"))
    context = await RuleReflector().reflect(evidence, environment)
    assert (context.cause, context.where, context.tool) == (Cause.UNSTABLE, (0, 1), "pressBrakePedal")


async def test_a_later_turn_starts_where_it_failed(attempt, environment) -> None:
    light = call("setHeadlights", mode="on")
    evidence = attempt([[light], [LOCK, PRESS]], [[light], [LOCK]], setup=[call("fillFuelTank", fuelAmount=1.0)])
    context = await RuleReflector().reflect(evidence, environment)
    assert context.where == (1, 1)
    assert context.setup == (call("fillFuelTank", fuelAmount=1.0), light)


async def test_no_value_of_the_reference_is_written(attempt, environment) -> None:
    evidence = attempt(
        [[call("set_navigation", destination="Secret Lane 7")]], [[call("set_navigation", destination="x")]]
    )
    context = await RuleReflector().reflect(evidence, environment)
    assert "Secret Lane" not in json.dumps(context.model_dump(mode="json"))


@pytest.mark.parametrize(
    ("case", "kind", "sequence"),
    [
        ("another tool", SignalKind.RARE, "setHeadlights, not displayCarStatus"),
        ("one left out in the middle", SignalKind.RARE, "setHeadlights, then fillFuelTank"),
        ("engine without the brake", SignalKind.RARE, "pressBrakePedal, then startEngine"),
        ("stopped after the first", SignalKind.RARE, "setHeadlights, then fillFuelTank"),
        ("another value that works", SignalKind.RARE, None),
        ("file that is not there", SignalKind.FORGETTING, "cd, then cat"),
    ],
)
async def test_the_focus_names_the_tools_that_belong_together(
    attempt, environment, case: str, kind: SignalKind, sequence: str | None
) -> None:
    reference, actions, _ = CASES[case]
    context = await RuleReflector().reflect(attempt([reference], [actions], kind=kind), environment)
    assert [item for item in context.focus_pattern if ", " in item] == ([sequence] if sequence else [])


async def test_an_infrastructure_error_is_not_read(attempt, environment) -> None:
    evidence = attempt([[LOCK]], [[]])
    broken = evidence.trajectory.model_copy(update={"outcome": None, "reward": None, "infrastructure_error": "gone"})
    with pytest.raises(RoleRefused, match="infrastructure"):
        await RuleReflector().reflect(evidence.model_copy(update={"trajectory": broken}), environment)


def test_the_rules_fill_the_structure_of_a_reflection(attempt, environment) -> None:
    failed = attempt([[TO_PAPERS, CAT]], [[TO_PAPERS, call("cat", file_name="nothing.txt"), call("cd", folder="void")]])
    solved = attempt([[TO_PAPERS, CAT]], [[TO_PAPERS, call("ls"), CAT]]).trajectory
    signal = failed.signal.model_copy(update={"group": (3, 8), "counterpart_id": solved.id})
    evidence = failed.model_copy(update={"signal": signal, "counterpart": solved})
    context = RuleReflector().reflect_now(evidence, environment)
    assert context.summary.startswith("The attempt called cd, cat in 1 user turn, and failed")
    assert context.instability_pattern == "3 of 8 attempts of one step succeeded. Only the success called ls."
    assert context.focus_pattern == ("cat", "ls and cat and cd"), "the contrast: calls that only one of the two made"
    assert context.exploration_objectives == (
        "Call cat with other arguments, and see which it accepts.",
        "Find out what separates the attempts that succeed from those that fail.",
    )
    assert context.do_not_repeat == ("cat(file_name='nothing.txt')",), "cd worked once, it is not in vain"
    alike = evidence.model_copy(
        update={"counterpart": failed.trajectory.model_copy(update={"outcome": solved.outcome})}
    )
    assert "called the same tools" in RuleReflector().reflect_now(alike, environment).instability_pattern


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        (
            SignalKind.FORGETTING,
            {"recent": (2, 10)},
            "2 of the last 10 attempts at the task succeeded, this one failed.",
        ),
        (SignalKind.RARE, {"pattern": ("cd", "ls"), "count": 3}, "cd, ls: seen 3 times so far."),
    ],
)
def test_the_signal_is_told_in_numbers(attempt, environment, kind, fields, told) -> None:
    evidence = attempt([[TO_PAPERS, CAT]], [[CAT]])
    signal = evidence.signal.model_copy(update={"kind": kind, **fields})
    context = RuleReflector().reflect_now(evidence.model_copy(update={"signal": signal}), environment)
    assert context.instability_pattern == told
    assert context.do_not_repeat == (), "the call that was refused is right after its precondition"
