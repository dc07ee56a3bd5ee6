"""The guided and the unguided explorer in the real environment: equal by seed, complete records, and reach."""

from __future__ import annotations

import pytest

from agents.evidence import live_run
from agents.roles import unguided_context
from agents.scripted.explorer import GuidedExplorer, UnguidedExplorer
from agents.settings import ExplorationSettings
from environments.base import ObservationStatus, ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from environments.example import depot
from environments.registry import benchmark_of
from memory.jsonl import derive_seed

SETTINGS = ExplorationSettings(rounds=3, steps=8, independent=False)
EXPLORERS = {"guided": GuidedExplorer, "unguided": UnguidedExplorer}


def successes(interactions) -> list[tuple[int, str]]:
    return [(i.run, i.action.name) for i in interactions if i.observation.status is ObservationStatus.OK]


async def test_independent_rounds_do_not_depend_on_those_before(environment, car_start, make_context) -> None:
    context = make_context(car_start, "startEngine")

    async def explored(rounds: int, independent: bool) -> list[list[object]]:
        settings = ExplorationSettings(rounds=rounds, steps=8, independent=independent)
        seen = await GuidedExplorer(settings).explore(context, environment, 1)
        return [[one.action for one in seen if one.run == number] for number in range(rounds)]

    alone, learning = await explored(3, True), await explored(3, False)
    assert alone[0] == learning[0]
    assert alone[1:] != learning[1:]
    assert await explored(2, True) == alone[:2]
    assert len({str(actions) for actions in alone}) == 3, "each round draws for itself"


@pytest.mark.parametrize("kind", EXPLORERS)
async def test_equal_seeds_explore_equally(environment, car_start, make_context, kind: str) -> None:
    context = make_context(car_start, "startEngine")
    explorer = EXPLORERS[kind](SETTINGS)
    first = await explorer.explore(context, environment, 7)
    assert first == await explorer.explore(context, environment, 7)
    other = await explorer.explore(context, environment, 8)
    assert [i.id for i in other] == [i.id for i in first]
    assert [i.action for i in other] != [i.action for i in first]


@pytest.mark.parametrize("kind", EXPLORERS)
async def test_every_interaction_can_be_replayed(environment, files_start, make_context, kind: str) -> None:
    """Observations and the changed flag are what a fresh episode gives for the same calls."""
    context = make_context(files_start, "cat", setup=(ToolCall(name="mkdir", arguments={"dir_name": "made"}),))
    interactions = await EXPLORERS[kind](SETTINGS).explore(context, environment, 3)
    assert len(interactions) == SETTINGS.rounds * SETTINGS.steps
    assert len({i.id for i in interactions}) == len(interactions)
    assert any(i.changed for i in interactions)
    assert any(i.observation.status is ObservationStatus.ERROR for i in interactions)
    for run in range(SETTINGS.rounds):
        with live_run(environment, context, run, SETTINGS.steps) as again:
            for interaction in (i for i in interactions if i.run == run):
                assert again.act(interaction.action) == interaction


async def test_guided_exploration_reaches_the_engine_chain(environment, car_start, make_context) -> None:
    """Doors, brake, engine and cruise control, each learned from the error before it, within one round of 8."""
    explorer = GuidedExplorer(ExplorationSettings(rounds=1, steps=8))
    reached = 0
    for seed in range(10):
        interactions = await explorer.explore(make_context(car_start, "setCruiseControl"), environment, seed)
        names = [name for _, name in successes(interactions)]
        if "setCruiseControl" in names:
            reached += 1
            last = names.index("setCruiseControl")
            assert {"lockDoors", "pressBrakePedal", "startEngine"} <= set(names[:last])
    assert reached >= 8


async def test_what_one_round_learned_serves_the_next(environment, car_start, make_context) -> None:
    interactions = await GuidedExplorer(SETTINGS).explore(make_context(car_start, "startEngine"), environment, 1)
    refused = {i.run for i in interactions if "locked before" in i.observation.text}
    assert refused == {0}
    assert {run for run, name in successes(interactions) if name == "startEngine"} >= {0, 1}


@pytest.mark.parametrize("tool", ["cat", "grep", "sort", "tail", "diff"])
async def test_guided_exploration_goes_to_the_files(environment, files_start, make_context, tool: str) -> None:
    interactions = await GuidedExplorer(SETTINGS).explore(make_context(files_start, tool), environment, 0)
    assert tool in [name for _, name in successes(interactions)]


async def test_zip_codes_are_found_before_distances(environment, car_start, make_context) -> None:
    context = make_context(car_start, "estimate_distance", explore=("estimate_distance", "get_zipcode_based_on_city"))
    reached = 0
    for seed in range(6):
        names = [name for _, name in successes(await GuidedExplorer(SETTINGS).explore(context, environment, seed))]
        reached += "estimate_distance" in names and "get_zipcode_based_on_city" in names
    assert reached >= 4


@pytest.mark.slow
async def test_guided_exploration_reaches_more_than_unguided(environment, make_context) -> None:
    """Over every function that can succeed: the share of contexts about it in which it does, at an equal budget."""
    rates = {}
    starts = [s for s in environment.starts() if len(s.classes) == 1]
    by_class = {s.classes[0]: s for s in starts}
    for kind, explorer in EXPLORERS.items():
        reached = total = 0
        for start in by_class.values():
            for tool in start.tools:
                context = make_context(start, tool)
                seed = derive_seed(0, context.id)
                interactions = explorer(SETTINGS).explore_now(context, environment, seed)
                reached += tool in [name for _, name in successes(interactions)]
                total += 1
        rates[kind] = reached / total
    assert rates["guided"] > 0.8
    assert rates["guided"] > rates["unguided"] + 0.25


async def test_unguided_contexts_have_ids_of_their_place(environment) -> None:
    start = environment.starts()[0]
    context = unguided_context(start, 3)
    assert context == unguided_context(start, 3)
    assert context.id != unguided_context(start, 4).id
    assert context.kind is None
    assert context.cause is None


async def test_unguided_draws_every_function_alike(environment, car_start) -> None:
    explorer = UnguidedExplorer(ExplorationSettings(rounds=20, steps=14))
    interactions = await explorer.explore(unguided_context(car_start, 0), environment, 0)
    called = [i.action.name for i in interactions]
    expected = len(called) / len(car_start.tools)
    assert set(called) == set(car_start.tools) - {"set_navigation", "display_log"}, "nothing fits their parameters"
    assert max(called.count(name) for name in car_start.tools) < 3 * expected


def test_training_values_are_those_that_no_state_holds() -> None:
    known = benchmark_of(BFCLEnvironment()).known_values(BFCLEnvironment())
    cities = {v.value for v in known if v.tool == "get_zipcode_based_on_city"}
    assert "San Francisco" in cities
    assert not [v for v in known if v.tool == "cat"]
    assert benchmark_of(depot()).known_values(depot()) == ()
