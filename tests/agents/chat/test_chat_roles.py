"""The chat roles on a table of replies: the real prompts, environment and structured output."""

from __future__ import annotations

import pytest

from agents.chat.abstractor import ChatAbstractor
from agents.chat.explorer import ChatExplorer
from agents.chat.reflector import ChatReflector
from agents.live import live_run
from agents.roles import RoleRefused
from agents.scripted.reflector import RuleReflector
from agents.settings import ExplorationSettings
from environments.base import ObservationStatus, ToolCall
from environments.sealed import sealed_fingerprints
from environments.verification import verify
from memory.ids import record_id
from memory.records import Cause

SETTINGS = ExplorationSettings(rounds=2, steps=3)


def call(name: str, **arguments) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


LOCK = call("lockDoors", unlock=False, door=["driver", "passenger", "rear_left", "rear_right"])
GO = call("set_navigation", destination="Hidden Lane 7")
LIGHT = call("setHeadlights", mode="on")


def reflection(**changes) -> dict:
    good = {
        "turn": 1,
        "action": 1,
        "cause": "wrong_argument",
        "tool": "set_navigation",
        "how": "It went elsewhere.",
        "why": "The value was not taken from the request.",
        "explore": ["set_navigation", "find_nearest_tire_shop"],
    }
    return good | changes


@pytest.fixture
def evidence(attempt):
    return attempt(
        [[LIGHT], [LOCK, GO]],
        [[LIGHT], [call("set_navigation", destination="Plain Road 1")]],
        texts=["Put the lights on.", "Go where I told you."],
    )


async def test_the_reflector_makes_a_context(table, say, evidence, environment) -> None:
    _, model = table(say("Reflection", **reflection(turn=2)))
    context = await ChatReflector(model).reflect(evidence, environment)
    assert (context.cause, context.where, context.tool) == (Cause.WRONG_ARGUMENT, (1, 0), "set_navigation")
    assert context.id == record_id("context", evidence.signal.id)
    assert context.setup == (LIGHT,)
    assert 'destination="Plain Road 1"' in context.facts
    assert (context.measured.calls, context.measured.prompt_tokens) == (1, 100)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tool": "teleport"}, "'teleport' is none of the tools"),
        ({"explore": ["fly"]}, "'fly' is none of the tools"),
        ({"turn": 3}, "turn 3 is not in the attempt"),
        ({"action": 5}, "action 5 is not in turn 1"),
        ({"cause": "bad luck"}, "cause"),
    ],
)
async def test_a_reflection_must_be_about_the_attempt(table, say, evidence, environment, changes, told) -> None:
    fake, model = table(say("Reflection", **reflection(**changes)), say("Reflection", **reflection()))
    await ChatReflector(model).reflect(evidence, environment)
    assert told in fake.sent[1][-1].content


async def test_the_explorer_acts_for_real(table, say, environment, car_start, make_context) -> None:
    start = {"tool": "startEngine", "arguments": {"ignitionMode": "START"}, "purpose": "see what it needs"}
    lock = {"tool": "lockDoors", "arguments": LOCK.arguments, "purpose": "lock"}
    unknown = {"tool": "fly", "arguments": {}, "purpose": "try"}
    fake, model = table(
        say("NextCall", **start),
        say("NextCall", **lock),
        say("NextCall", **unknown),
        say("NextCall", **start),
        say("NextCall", tool="", purpose="done"),
    )
    interactions = await ChatExplorer(model, SETTINGS).explore(make_context(car_start, "startEngine"), environment, 0)
    assert [(i.run, i.position, i.action.name) for i in interactions] == [
        (0, 0, "startEngine"),
        (0, 1, "lockDoors"),
        (0, 2, "fly"),
        (1, 0, "startEngine"),
    ]
    assert [i.observation.status is ObservationStatus.OK for i in interactions] == [False, True, False, False]
    assert [i.changed for i in interactions] == [False, True, False, False]
    assert all(i.measured.completion_tokens == 10 for i in interactions)
    assert "All doors must be locked" in fake.sent[1][1].content
    assert fake.replies == []


async def test_a_refusal_keeps_what_was_explored(table, say, environment, car_start, make_context) -> None:
    look = {"tool": "check_tire_pressure", "arguments": {}, "purpose": "look"}
    bad = say("NextCall", tool=3)
    context = make_context(car_start, "startEngine")
    fake, model = table(say("NextCall", **look), bad, bad)
    assert len(await ChatExplorer(model, SETTINGS).explore(context, environment, 0)) == 1
    assert fake.replies == []
    _, model = table(bad, bad)
    with pytest.raises(RoleRefused):
        await ChatExplorer(model, SETTINGS).explore(context, environment, 0)


@pytest.fixture
def recorded(environment, car_start, make_context):
    """A context and interactions 0 to 5: an error, a change, two useful calls, and a second run."""
    context = make_context(car_start, "fillFuelTank")
    with live_run(environment, context, 0, 4) as first, live_run(environment, context, 1, 2) as second:
        for action in (
            call("startEngine", ignitionMode="START"),
            LOCK,
            call("fillFuelTank", fuelAmount=5.0),
            call("displayCarStatus", option="engine"),
        ):
            first.act(action)
        second.act(LIGHT)
        second.act(call("set_navigation", destination="Mill Road"))
        return context, (*first.interactions, *second.interactions)


async def test_the_abstractor_makes_drafts_of_what_ran(table, say, environment, recorded) -> None:
    context, interactions = recorded
    tasks = [
        {"query": "Add 5 gallons to the tank and tell me whether the engine runs.", "calls": [3, 2]},
        {"query": 'Put the headlights on and navigate to "Mill Road".', "calls": [4, 5]},
    ]
    _, model = table(say("ProposedTasks", tasks=tasks))
    drafts = await ChatAbstractor(model, SETTINGS).abstract(context, interactions, environment, 0)
    assert [draft.id for draft in drafts] == [record_id("draft", context.id, n) for n in range(2)]
    assert drafts[0].setup == (LOCK,)
    assert drafts[1].setup == ()
    assert [c.name for c in drafts[0].reference[0]] == ["fillFuelTank", "displayCarStatus"]
    assert drafts[0].parents == (interactions[2].id, interactions[3].id)
    for draft in drafts:
        ruling = verify(draft, environment, (), sealed_fingerprints("bfcl"))
        assert ruling.accepted, ruling


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ([0], "interaction 0 did not succeed"),
        ([9], "there is no interaction 9"),
        ([3, 4], "not of one run"),
        ([], "1 to 3 different interactions"),
        ([1, 2, 3, 4], "1 to 3 different interactions"),
        ([2, 2], "1 to 3 different interactions"),
    ],
)
async def test_calls_cannot_be_invented(table, say, environment, recorded, calls: list[int], told: str) -> None:
    context, interactions = recorded
    wrong = {"query": "Do it.", "calls": calls}
    right = {"query": "Add 5 gallons.", "calls": [2]}
    fake, model = table(say("ProposedTasks", tasks=[wrong]), say("ProposedTasks", tasks=[wrong, right]))
    (draft,) = await ChatAbstractor(model, SETTINGS).abstract(context, interactions, environment, 0)
    assert draft.turns == ("Add 5 gallons.",)
    assert told in fake.sent[1][-1].content


async def test_only_wrong_proposals_are_refused(table, say, environment, recorded) -> None:
    context, interactions = recorded
    wrong = say("ProposedTasks", tasks=[{"query": "Do it.", "calls": [0]}])
    _, model = table(wrong, wrong)
    with pytest.raises(RoleRefused, match="did not succeed"):
        await ChatAbstractor(model, SETTINGS).abstract(context, interactions, environment, 0)


async def test_too_many_proposals_are_cut(table, say, environment, recorded) -> None:
    context, interactions = recorded
    tasks = [{"query": f"Add 5 gallons, {n}.", "calls": [2]} for n in range(5)]
    _, model = table(say("ProposedTasks", tasks=tasks))
    drafts = await ChatAbstractor(model, SETTINGS).abstract(context, interactions, environment, 0)
    assert len(drafts) == SETTINGS.drafts_per_context


async def test_nothing_to_abstract_asks_nobody(table, environment, recorded) -> None:
    context, interactions = recorded
    fake, model = table()
    assert await ChatAbstractor(model, SETTINGS).abstract(context, interactions[:1], environment, 0) == ()
    assert fake.sent == []


async def test_no_reference_reaches_a_prompt(table, say, attempt, environment) -> None:
    """Not from the evidence, nor with a scripted reflector from a context, whose setup holds reference calls."""
    lake = call("set_navigation", destination="Lake View")
    evidence = attempt(
        [[lake], [LOCK, GO]],
        [[lake], [call("set_navigation", destination="Plain Road 1")]],
        setup=[call("set_navigation", destination="Setup Yard")],
    )
    fake_reflector, reflecting = table(say("Reflection", **reflection(turn=2)))
    await ChatReflector(reflecting).reflect(evidence, environment)
    context = await RuleReflector().reflect(evidence, environment)
    assert [c.arguments["destination"] for c in context.setup] == ["Setup Yard", "Lake View"]
    look, end = say("NextCall", tool="check_tire_pressure", purpose="look"), say("NextCall", tool="", purpose="end")
    fake_explorer, exploring = table(look, end, end)
    interactions = await ChatExplorer(exploring, SETTINGS).explore(context, environment, 0)
    fake_abstractor, abstracting = table(say("ProposedTasks", tasks=[{"query": "Look.", "calls": [0]}]))
    await ChatAbstractor(abstracting, SETTINGS).abstract(context, interactions, environment, 0)
    for fake in (fake_reflector, fake_explorer, fake_abstractor):
        assert "Plain Road 1" in fake.prompts()
        assert "Hidden Lane" not in fake.prompts()
        assert "Setup Yard" not in fake.prompts()
    assert "Lake View" in fake_reflector.prompts()
    assert "Lake View" not in fake_explorer.prompts() + fake_abstractor.prompts()
