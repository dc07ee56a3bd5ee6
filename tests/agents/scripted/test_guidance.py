"""What a context says moves the distribution of what is explored, on the real simulators and over fixed seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest

from agents.evidence import executed, live_run
from agents.scripted.abstractor import TemplateAbstractor
from agents.scripted.explorer import GuidedExplorer, UnguidedExplorer
from agents.scripted.knowledge import PLAIN, patterns, read_context
from agents.scripted.reflector import RuleReflector
from agents.settings import ExplorationSettings
from environments.base import ToolCall
from memory.records import Cause, FailureContext, Interaction, SignalKind

SEEDS = range(10)
SETTINGS = ExplorationSettings(rounds=2, steps=10, guidance="context")

Measure = Callable[[Sequence[Interaction]], float]


def calls(interactions: Sequence[Interaction], *, succeeded: bool = False) -> list[str]:
    return [one.action.name for one in interactions if not (succeeded and one.observation.failed)]


def share(*names: str) -> Measure:
    """Share of the calls that go to some tools."""
    return lambda seen: sum(name in names for name in calls(seen)) / len(seen)


def next_to(first: str, second: str) -> Measure:
    """Share of successive successful calls that go from one tool to the other."""

    def measured(seen: Sequence[Interaction]) -> float:
        names = calls(seen, succeeded=True)
        return sum(pair == (first, second) for pair in pairwise(names)) / max(1, len(names) - 1)

    return measured


def recovered(tool: str) -> Measure:
    """Share of rounds in which a tool is refused at first and succeeds later."""

    def measured(seen: Sequence[Interaction]) -> float:
        runs = [[one.observation.failed for one in seen if one.run == r and one.action.name == tool] for r in (0, 1)]
        return sum(run[:1] == [True] and False in run for run in runs) / 2

    return measured


def different(seen: Sequence[Interaction]) -> float:
    """Number of tools in a round."""
    return sum(len(set(calls([one for one in seen if one.run == run]))) for run in (0, 1)) / 2


def values(tool: str, parameter: str) -> Measure:
    """Number of different values that a parameter was given."""
    return lambda seen: len({str(one.action.arguments.get(parameter)) for one in seen if one.action.name == tool})


def optional(tool: str, parameter: str) -> Measure:
    """Share of the tool's calls that give an optional parameter."""

    def measured(seen: Sequence[Interaction]) -> float:
        made = [parameter in one.action.arguments for one in seen if one.action.name == tool]
        return sum(made) / max(1, len(made))

    return measured


def begins(*names: str) -> Measure:
    """Share of rounds whose successful calls have the names in this order, before any other of them comes again."""

    def measured(seen: Sequence[Interaction]) -> float:
        runs = [calls([one for one in seen if one.run == run], succeeded=True) for run in (0, 1)]
        return sum([n for n in dict.fromkeys(run) if n in names] == list(names) for run in runs) / 2

    return measured


class Said(NamedTuple):
    """What one reflection and another one say at one start and tool, and a measure that is larger under the first."""

    tool: str
    own: dict[str, object]
    other: dict[str, object]
    measure: Measure
    least: float
    """Least difference of the means."""


def said(kind: str = "rare", cause: str | None = None, *focus: str) -> dict[str, object]:
    return {"kind": kind, "cause": cause, "focus_pattern": focus}


PATH = "cd, then cat, then wc"
LIGHTS = "setHeadlights, then fillFuelTank, then displayCarStatus"
PAIR = "setHeadlights, then fillFuelTank"
CONFUSED = "setHeadlights, not displayCarStatus"
CONTRAST = "fillFuelTank and displayCarStatus"

MOVED = {
    "forgetting begins with the path that was solved": Said(
        "cat", said("forgetting", None, PATH), said("rare", None, PATH), begins("cd", "cat", "wc"), 0.25
    ),
    "forgetting stays near": Said(
        "cat", said("forgetting", None, PATH), said("rare", None, PATH), share("cd", "cat", "wc", "ls", "pwd"), 0.1
    ),
    "boundary repeats what differs": Said(
        "setHeadlights",
        said("boundary", None, CONTRAST),
        said("rare", None, CONTRAST),
        share("fillFuelTank", "displayCarStatus", "setHeadlights"),
        0.15,
    ),
    "rare combines with other tools": Said("setHeadlights", said("rare"), said("forgetting"), different, 0.5),
    "rare gives other combinations of parameters": Said(
        "tail", said("rare"), said("forgetting"), optional("tail", "lines"), 0.05
    ),
    "a wrong argument repeats the tool": Said(
        "fillFuelTank", said("rare", "wrong_argument"), said("rare", "stopped_early"), share("fillFuelTank"), 0.1
    ),
    "a wrong argument varies the value": Said(
        "fillFuelTank",
        said("rare", "wrong_argument"),
        said("rare", "stopped_early"),
        values("fillFuelTank", "fuelAmount"),
        0.5,
    ),
    "a wrong call alternates the confused tools": Said(
        "setHeadlights",
        said("rare", "wrong_call", CONFUSED),
        said("rare", "wrong_argument", CONFUSED),
        next_to("setHeadlights", "displayCarStatus"),
        0.1,
    ),
    "a missing call comes before the next one": Said(
        "setHeadlights",
        said("rare", "missing_call", PAIR),
        said("rare", "malformed", PAIR),
        next_to("setHeadlights", "fillFuelTank"),
        0.1,
    ),
    "a precondition comes before the tool": Said(
        "startEngine",
        said("rare", "unmet_precondition", "pressBrakePedal, then startEngine"),
        said("rare", "wrong_argument", "pressBrakePedal, then startEngine"),
        share("pressBrakePedal"),
        0.05,
    ),
    "an early stop goes the whole path": Said(
        "setHeadlights",
        said("rare", "stopped_early", LIGHTS),
        said("rare", "wrong_argument", LIGHTS),
        begins("setHeadlights", "fillFuelTank", "displayCarStatus"),
        0.5,
    ),
    "a malformed call tries more parameters": Said(
        "tail", said("forgetting", "malformed"), said("forgetting", "wrong_argument"), optional("tail", "lines"), 0.05
    ),
    "the focus is drawn more often": Said(
        "setHeadlights",
        said("random", None, "find_nearest_tire_shop"),
        said("random", None, "activateParkingBrake"),
        share("find_nearest_tire_shop"),
        0.01,
    ),
}


@pytest.fixture
def at(car_start, files_start, make_context) -> Callable[..., FailureContext]:
    def made(tool: str, **changes: object) -> FailureContext:
        return make_context(car_start if tool in car_start.tools else files_start, tool, **changes)

    return made


def mean(measure: Measure, context: FailureContext, environment, settings=SETTINGS, seeds=SEEDS) -> float:
    explorer = GuidedExplorer(settings)
    return sum(measure(explorer.explore_now(context, environment, seed)) for seed in seeds) / len(seeds)


@pytest.mark.parametrize("name", MOVED)
def test_what_a_context_says_moves_what_is_explored(at, environment, name: str) -> None:
    """And not at all where the explorer reads tools and facts alone."""
    case = MOVED[name]
    own, other = at(case.tool, **case.own), at(case.tool, **case.other)
    assert mean(case.measure, own, environment) >= mean(case.measure, other, environment) + case.least
    alone, two = SETTINGS.model_copy(update={"guidance": "tools"}), SEEDS[:2]
    assert mean(case.measure, own, environment, alone, two) == mean(case.measure, other, environment, alone, two)


def test_a_boundary_is_met_without_its_known_preparation(at, environment) -> None:
    learning = SETTINGS.model_copy(update={"independent": False})
    own, other = (at("setCruiseControl", kind=kind) for kind in ("boundary", "forgetting"))
    measure = recovered("setCruiseControl")
    assert mean(measure, own, environment, learning) >= mean(measure, other, environment, learning) + 0.2


def test_exchanged_reflections_explore_something_else(attempt, environment) -> None:
    """Two real reflections of the rules at one start: each measure is larger under its own than under the other's."""
    lights = ToolCall(name="setHeadlights", arguments={"mode": "on"})
    status = ToolCall(name="displayCarStatus", arguments={"option": "headlights"})
    fill = ToolCall(name="fillFuelTank", arguments={"fuelAmount": 5.0})
    confused, stopped = (
        RuleReflector().reflect_now(attempt([reference], [actions], kind=kind), environment)
        for reference, actions, kind in (
            ([lights, fill], [status], SignalKind.RARE),
            ([lights, fill, status], [], SignalKind.FORGETTING),
        )
    )
    assert (confused.cause, stopped.cause) == (Cause.WRONG_CALL, Cause.STOPPED_EARLY)
    assert confused.tool == stopped.tool == "setHeadlights"

    def told_by(context: FailureContext, other: FailureContext) -> FailureContext:
        return context.model_copy(update={name: getattr(other, name) for name in ("kind", "cause", "focus_pattern")})

    for measure, own, other in (
        (next_to("setHeadlights", "displayCarStatus"), confused, stopped),
        (begins("setHeadlights", "fillFuelTank", "displayCarStatus"), stopped, confused),
    ):
        assert mean(measure, own, environment) >= mean(measure, told_by(own, other), environment) + 0.1


def test_a_call_in_vain_is_not_repeated(at, environment) -> None:
    vain = tuple(f"displayCarStatus(option={option!r})" for option in ("fuel", "doors"))
    measured = [
        mean(lambda seen: sum(executed(one.action) in vain for one in seen), context, environment)
        for context in (at("displayCarStatus", do_not_repeat=vain), at("displayCarStatus"))
    ]
    assert measured[0] < measured[1] / 2


@pytest.mark.parametrize(
    ("guidance", "first"), [("tools", ["displayCarStatus"]), ("context", ["lockDoors", "displayCarStatus"])]
)
def test_a_draft_that_holds_the_sequence_of_the_focus_comes_before_a_shorter_one(
    at, environment, guidance: str, first: list[str]
) -> None:
    context = at(
        "displayCarStatus",
        focus_pattern=("lockDoors, then displayCarStatus",),
        explore=("lockDoors", "displayCarStatus"),
    )
    with live_run(environment, context, 0, 2) as run:
        run.act(ToolCall(name="lockDoors", arguments={"unlock": False, "door": ["driver"]}))
        run.act(ToolCall(name="displayCarStatus", arguments={"option": "doors"}))
    settings = SETTINGS.model_copy(update={"guidance": guidance, "order": "easy_first", "drafts_per_context": 1})
    (draft,) = TemplateAbstractor(settings).abstract_now(context, run.interactions, environment, 1)
    assert [call.name for turn in draft.reference for call in turn] == first


def test_an_unguided_explorer_reads_nothing_of_a_context(at, environment) -> None:
    settings = SETTINGS.model_copy(update={"unguided": "same_rules"})
    contexts = at("setHeadlights", **said("forgetting", "wrong_call", CONFUSED)), at("setHeadlights", id="context-x")
    bare, plain = (UnguidedExplorer(settings).explore_now(one, environment, 3) for one in contexts)
    assert [one.action for one in bare] == [one.action for one in plain]


def test_texts_are_read_for_names_of_tools_alone() -> None:
    tools = ("cd", "cat", "ls")
    assert patterns(("cd, then cat", "use `ls` (twice: ls)", "nothing", "a.cd cats"), tools) == (
        ("cd", "cat"),
        ("ls", "ls"),
    )


def test_a_context_that_says_nothing_guides_nobody(at) -> None:
    assert read_context(at("cat", kind=None), 0) == PLAIN
