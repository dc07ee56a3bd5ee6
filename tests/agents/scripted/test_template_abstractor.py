"""Drafts of the scripted abstractor: cut, reduced, written, and mostly verified."""

from __future__ import annotations

import json

import pytest

from agents.roles import UNGUIDED_EXPLORATION, unguided_context
from agents.scripted.abstractor import TemplateAbstractor
from agents.scripted.explorer import GuidedExplorer, UnguidedExplorer
from agents.settings import ExplorationSettings
from agents.spending import RoleRefused
from environments.base import ObservationStatus, ToolCall
from environments.bfcl.templated import wordings
from environments.example import depot
from environments.verification.decontamination import held_out_fingerprints
from environments.verification.replay import reduce
from environments.verification.verify import verify
from memory.jsonl import derive_seed, record_id

SETTINGS = ExplorationSettings(independent=False)


def drafts_of(environment, context, explorer, settings=SETTINGS):
    interactions = explorer.explore_now(context, environment, derive_seed(0, context.id))
    return TemplateAbstractor(settings).abstract_now(context, interactions, environment, derive_seed(1, context.id))


def accepted(environment, drafts) -> list:
    held_out = held_out_fingerprints("bfcl")
    return [draft for draft in drafts if verify(draft, environment, (), held_out).accepted]


def test_most_guided_drafts_verify_and_hold_their_tool(environment, make_context) -> None:
    tools = ("startEngine", "setCruiseControl", "cat", "grep", "cd", "mv", "estimate_distance", "ls", "lockDoors")
    contexts = [
        make_context(next(s for s in environment.starts() if s.classes == (tool.group,)), tool.name)
        for tool in environment.tools(tools)
    ]
    made, good, with_tool = 0, 0, 0
    for context in contexts:
        drafts = drafts_of(environment, context, GuidedExplorer(SETTINGS))
        verified = accepted(environment, drafts)
        made, good = made + len(drafts), good + len(verified)
        with_tool += any(context.tool in names(draft) for draft in verified)
        assert len(drafts) <= SETTINGS.drafts_per_context
        assert len({json.dumps([c.model_dump() for c in d.reference[0]]) for d in drafts}) == len(drafts)
    assert made >= 2 * len(contexts)
    assert good > 0.8 * made
    assert with_tool >= len(contexts) - 2


@pytest.mark.slow
def test_most_unguided_drafts_verify(environment) -> None:
    made = good = 0
    for number, start in enumerate(environment.starts()[:20]):
        context = unguided_context(start, number)
        drafts = drafts_of(environment, context, UnguidedExplorer(UNGUIDED_EXPLORATION), UNGUIDED_EXPLORATION)
        made, good = made + len(drafts), good + len(accepted(environment, drafts))
    assert made > 30
    assert good > 0.6 * made


def names(draft) -> list[str]:
    return [call.name for turn in draft.reference for call in turn]


async def test_equal_seeds_make_equal_drafts(environment, car_start, make_context) -> None:
    context = make_context(car_start, "startEngine")
    interactions = await GuidedExplorer(SETTINGS).explore(context, environment, 0)
    abstractor = TemplateAbstractor(SETTINGS)
    drafts = await abstractor.abstract(context, interactions, environment, 5)
    assert drafts
    assert drafts == await abstractor.abstract(context, interactions, environment, 5)
    assert [d.id for d in drafts] == [record_id("draft", context.id, n) for n in range(len(drafts))]
    ids = {i.id for i in interactions}
    assert all(set(d.parents) <= ids and d.context_id == context.id for d in drafts)


def test_references_are_minimal_and_their_text_names_no_tool(environment, car_start, make_context) -> None:
    context = make_context(car_start, "setCruiseControl", explore=("setCruiseControl", "startEngine"))
    drafts = drafts_of(environment, context, GuidedExplorer(SETTINGS))
    assert drafts
    for draft in drafts:
        assert reduce(environment, draft) == draft
        assert draft.turns[0]
        assert not [tool for tool in draft.tools if tool in draft.turns[0]]


def test_the_setup_of_a_context_stays_in_front(environment, car_start, make_context) -> None:
    setup = (ToolCall(name="fillFuelTank", arguments={"fuelAmount": 3.0}),)
    context = make_context(car_start, "startEngine", setup=setup)
    drafts = drafts_of(environment, context, GuidedExplorer(SETTINGS))
    assert drafts
    assert all(draft.setup[:1] == setup for draft in drafts)
    assert accepted(environment, drafts)


def test_the_tools_of_a_context_come_first(environment, car_start, make_context) -> None:
    context = make_context(car_start, "lockDoors", explore=("lockDoors", "setHeadlights"))
    drafts = drafts_of(environment, context, GuidedExplorer(SETTINGS))
    assert all({"lockDoors", "setHeadlights"} & set(names(draft)) for draft in drafts)
    assert "lockDoors" in names(drafts[0])


def test_drafts_have_the_asked_lengths_in_the_asked_order(environment, car_start, make_context) -> None:
    context = make_context(car_start, "startEngine", explore=("startEngine", "lockDoors", "setHeadlights"))

    def lengths(**settings: object) -> list[int]:
        limits = ExplorationSettings.model_validate({"rounds": 2, "independent": False, **settings})
        interactions = GuidedExplorer(limits).explore_now(context, environment, 1)
        return [
            len(names(draft))
            for draft in TemplateAbstractor(limits).abstract_now(context, interactions, environment, 1)
        ]

    assert lengths(order="easy_first")[0] == 1
    assert lengths(order="long_first")[0] == 3
    found = lengths(min_reference_calls=2, drafts_per_context=6)
    assert found
    assert min(found) >= 2
    unguided = unguided_context(car_start, 0)
    limits = UNGUIDED_EXPLORATION.model_copy(update={"min_reference_calls": 2})
    assert all(len(names(one)) >= 2 for one in drafts_of(environment, unguided, UnguidedExplorer(limits), limits))


def test_nothing_successful_gives_no_drafts(environment, car_start, make_context) -> None:
    assert TemplateAbstractor(SETTINGS).abstract_now(make_context(car_start, "lockDoors"), (), environment, 0) == ()


def test_elsewhere_than_in_bfcl_the_text_is_made_of_the_documentation() -> None:
    shop = depot()
    context = unguided_context(shop.starts()[0], 0)
    interactions = UnguidedExplorer(SETTINGS).explore_now(context, shop, 1)
    drafts = TemplateAbstractor(SETTINGS).abstract_now(context, interactions, shop, 0)
    assert drafts == TemplateAbstractor(SETTINGS).abstract_now(context, interactions, shop, 0)
    assert drafts
    for draft in drafts:
        assert verify(draft, shop, (), ()).accepted
        assert not any(tool in draft.turns[0] for tool in draft.tools)


def test_the_guided_explorer_overcomes_the_preconditions_of_any_environment() -> None:
    shop = depot()
    closed = next(start for start in shop.starts() if not start.initial_state["Depot"]["gate_open"])
    context = unguided_context(closed, 0).model_copy(update={"tool": "send_van", "explore": ("send_van",)})
    sent = 0
    for seed in range(5):
        interactions = GuidedExplorer(SETTINGS).explore_now(context, shop, seed)
        done = [i.action.name for i in interactions if i.observation.status is ObservationStatus.OK]
        sent += "send_van" in done
        drafts = TemplateAbstractor(SETTINGS).abstract_now(context, interactions, shop, seed)
        assert all("send_van" in names(draft) for draft in drafts)
    assert sent >= 4


def test_tools_without_wordings_are_refused_in_words(environment, car_start, make_context, monkeypatch) -> None:
    monkeypatch.setattr(wordings, "CASES", ())
    tools = tuple(tool.name for tool in environment.tools(("create_ticket", "ticket_login", "get_ticket")))
    state = {"TicketAPI": {"ticket_queue": [{"id": 1, "title": "Tire", "status": "open"}], "current_user": "Ann"}}
    context = make_context(
        car_start, "create_ticket", classes=("TicketAPI",), initial_state=state, tools=tools, explore=tools
    )
    with pytest.raises(RoleRefused, match="templates fit no cut"):
        drafts_of(environment, context, GuidedExplorer(SETTINGS))


def test_a_share_of_the_drafts_has_two_user_turns(environment, files_start) -> None:
    context = unguided_context(files_start, 0)
    settings = UNGUIDED_EXPLORATION.model_copy(update={"max_reference_calls": 6, "unguided": "same_rules"})
    found = []
    for share in (0.0, 1.0):
        limits = settings.model_copy(update={"two_turns": share})
        interactions = UnguidedExplorer(limits).explore_now(context, environment, 2)
        drafts = TemplateAbstractor(limits).abstract_now(context, interactions, environment, 0)
        found.append([draft for draft in drafts if len(draft.reference) == 2])
    single, double = found
    assert not single
    assert double
    for draft in double:
        assert all(draft.turns)
        assert all(draft.reference)
        assert reduce(environment, draft).reference == draft.reference
        assert len(draft.parents) >= sum(map(len, draft.reference))  # a call may have been made twice
    assert any(verify(draft, environment, (), ()).accepted for draft in double)
