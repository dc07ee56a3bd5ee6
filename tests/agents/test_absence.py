"""Drafts that become tasks in which a detail or a tool is missing at first."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue
from support.bfcl_tasks import call

from agents.absence import AbsenceAbstractor, cut_out, places_of, thing_of, with_absence, without_value
from agents.roles import UNGUIDED_EXPLORATION, unguided_context
from agents.scripted.abstractor import TemplateAbstractor
from agents.scripted.explorer import UnguidedExplorer
from environments.base import Environment, Parameter, ToolCall, ToolSpec
from environments.bfcl.benchmark import BENCHMARK
from environments.example import depot
from environments.task_text import Seen
from environments.verification.verify import Refusal, verify
from memory.records import Draft, FailureContext, Interaction

DEPOT = depot(starts=4)
BFCL = BENCHMARK.open(BENCHMARK.parse({"classes": ["GorillaFileSystem"], "wordings": "human"}))
SETTINGS = UNGUIDED_EXPLORATION.model_copy(update={"order": "easy_first"})
TEMPLATES = TemplateAbstractor(SETTINGS)
Made = tuple[FailureContext, tuple[Interaction, ...], Environment]


def explored(environment: Environment, place: int) -> Made:
    context = unguided_context(environment.starts()[place], place)
    return context, UnguidedExplorer(SETTINGS).explore_now(context, environment, place), environment


MADE = [explored(DEPOT, 0), explored(DEPOT, 1), explored(BFCL, 0), explored(BFCL, 3)]
PLAIN = [TEMPLATES.abstract_now(*made, 1)[:4] for made in MADE]
NAMES = ["depot", "depot, another", "bfcl", "bfcl, another"]


class Drafted(TemplateAbstractor):
    """Has its drafts already."""

    async def abstract(self, context: FailureContext, *_: Any) -> tuple[Draft, ...]:
        return next(drafts for drafts in PLAIN if drafts[0].context_id == context.id)


def changed_drafts(place: int, share: float, seed: int = 1) -> tuple[Draft, ...]:
    return asyncio.run(AbsenceAbstractor(Drafted(SETTINGS), share).abstract(*MADE[place], seed))


@pytest.mark.parametrize(
    ("text", "value", "left"),
    [
        ("make one new file called 'a.txt'", "a.txt", "make one new file"),
        ("Write a reply, saying 'Well done!' to it.", "Well done!", "Write a reply to it."),
        ("reply to tweet 7 by saying 'hi', please", "hi", "reply to tweet 7, please"),
        ('Move the file "a.txt" to "b".', "b", 'Move the file "a.txt".'),
        ("copy 'a.txt' over to 'b' and list it", "b", "copy 'a.txt' and list it"),
        ("set the course to Rivermist, then lock up", "Rivermist", "set the course, then lock up"),
        ("show the last 3 rows of a.txt", "a.txt", "show the last 3 rows"),
        ("fill the tank with 30 gallons.", 30, "fill the tank."),
        ("fill the tank with 1.5 gallons and go", 1.5, "fill the tank and go"),
        ("set the fan to 50.", 50.0, "set the fan."),
        ("Cancel the order 12446 again.", 12446, None),
        ("Cancel the order 12446, please.", 12446, "Cancel the order, please."),
        ("call off my trade order 'x 1'", "x 1", "call off my trade order"),
        ("show the last 3 rows", 3, None),
        ("show the last 3", 3, None),
        ("look for 'a.txt' in b", "a.txt", None),
        ("I'd go to 'b' now", "b", None),
        ("I'd appreciate it if you could switch to 'b'", "b", None),
        ("get the differences of 'a' and 'b'", "a", None),
        ("put it in the folder of 'a'", "a", "put it in the folder"),
        ("read the file in 'a'", "a", None),
        ("move 'a' to 'a'", "a", None),
        ("move it to b", "a", None),
        ("fill the tank with 30 gallons of fuel", 30, None),
        ("fill the tank with 30 very big gallons", 30, None),
        ("pay the shop with 'card 1' today", "card 1", None),
        ("sort the file 'a.b'", "a", None),
        ("set the speed to 3,5", 3, None),
        ("set it to 3.5.", 3, None),
    ],
)
def test_a_value_is_cut_out_where_a_whole_sentence_is_left(text: str, value: JsonValue, left: str | None) -> None:
    assert cut_out(text, value) == left


@pytest.mark.parametrize(
    ("text", "value", "places"),
    [
        ("'a' and \"a\", A", "a", [(0, 3), (8, 11), (13, 14)]),
        ("7 or 7.0 or 77", 7.0, [(0, 1), (5, 8)]),
        ('say "a \\"b\\" c"', 'a "b" c', [(4, 15)]),
        ("café, 'cafés'", "café", [(0, 4)]),
    ],
)
def test_where_a_value_is(text: str, value: JsonValue, places: list[tuple[int, int]]) -> None:
    assert places_of(value, text) == places


@pytest.mark.parametrize(
    ("name", "description", "tool", "thing"),
    [
        ("label", "label of the parcel", "", "label"),
        ("file_name", "The name of the file.", "", "file name"),
        ("fileName1", "The name of the file.", "", "file name"),
        ("order_id", "The order to cancel.", "", "order id"),
        ("amount", "How much.", "Give an amount.", "amount"),
        ("euros", "value in euros, 100 at least", "", "value in euros"),
        ("dir_name", "The new directory, by name.", "", "new directory"),
        ("dir", "Name of the directory", "", "name of the directory"),
        ("x", "URL of a page", "", "URL of a page"),
        ("travel_to", "The place that the travel is to.", "", None),
        ("n", "Number of lines to show.", "", None),
        ("n", "", "", None),
        ("n", "One two three four five six.", "", None),
        ("n", "my_file", "", None),
    ],
)
def test_the_words_for_what_a_parameter_is(name: str, description: str, tool: str, thing: str | None) -> None:
    parameter = Parameter(name=name, type="string", description=description, required=True)
    assert thing_of(parameter, ToolSpec(name="t", group="g", description=tool, parameters=(parameter,))) == thing


def test_a_value_is_left_out_of_all_calls_and_nothing_that_only_looks_like_it() -> None:
    calls = [call("a", x=1, y="1", z=True, w=[1]), call("b", x=1.0, y=2)]
    assert without_value(calls, 1) == (call("a", y="1", z=True, w=[1]), call("b", y=2))
    assert without_value(calls, "1") == (call("a", x=1, z=True, w=[1]), calls[1])


@pytest.mark.parametrize("place", range(4), ids=NAMES)
def test_changed_drafts_keep_their_place_and_most_are_accepted(place: int) -> None:
    plain, environment = PLAIN[place], MADE[place][2]
    assert changed_drafts(place, 0.0) == plain
    changed = changed_drafts(place, 1.0)
    assert changed == changed_drafts(place, 1.0)
    assert [(one.id, one.parents, one.context_id) for one in changed] == [
        (one.id, one.parents, one.context_id) for one in plain
    ]
    assert all(one.reference[0] == () for one in changed)
    refused = [verify(one, environment, (), ()).reason for one in changed]
    assert sum(reason is None for reason in refused) >= len(changed) / 2
    assert {*refused} <= {None, Refusal.EMPTY_TURN, Refusal.TRIVIAL_POLICY, Refusal.UNMET_REQUEST}


def test_a_share_is_changed_and_both_kinds_are_made() -> None:
    changed = [one for seed in range(30) for place in range(4) for one in changed_drafts(place, 0.3, seed)]
    kinds = [bool(one.withheld) for one in changed if not one.reference[0]]
    assert 0.2 < len(kinds) / len(changed) < 0.4
    assert 0.4 < sum(kinds) / len(kinds) < 0.9


@given(place=st.integers(0, 3), seed=st.integers(0, 2**32))
def test_what_is_missing_is_nowhere_in_the_first_turn(place: int, seed: int) -> None:
    rng = random.Random(seed)
    for plain in PLAIN[place]:
        changed = with_absence(plain, TEMPLATES, MADE[place][2], rng)
        assert changed is not None
        first, second = changed.turns
        assert changed.reference == ((), *plain.reference)
        assert changed.tools == plain.tools
        assert not re.search(r"\w_\w", without_values(second, plain.reference[0]))
        assert not {name for name in plain.tools if name in second.split() and "_" in name}
        if changed.withheld:
            assert changed.withheld == {1: (plain.reference[0][0].name,)}
            assert first == plain.turns[0]
        else:
            said = [v for v in plain.reference[0][0].arguments.values() if Seen([second]).has(v)]
            assert said
            assert any(not Seen([first]).has(value) for value in said)


def without_values(text: str, calls: Sequence[ToolCall]) -> str:
    for one in calls:
        for value in one.arguments.values():
            text = text.replace(str(value), "")
    return text


def weighed(**changes: Any) -> Draft:
    start = DEPOT.starts()[0]
    label = sorted(start.initial_state["Depot"]["parcels"])[0]  # type: ignore[index,call-overload]
    return Draft(
        id="d",
        context_id="c",
        environment=start.environment,
        split="train",
        classes=start.classes,
        initial_state=start.initial_state,
        tools=start.tools,
        turns=(f"Weigh the parcel {label}.",),
        reference=((call("weigh_parcel", label=label),),),
    ).model_copy(update=changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"tools": ("weigh_parcel",), "turns": ("Weigh it.",)},
        {"withheld": {1: ("open_gate",)}},
        {"turns": ("a", "b"), "reference": ((call("open_gate"),), (call("list_parcels"),))},
    ],
    ids=["no other tool, no value in the words", "withheld already", "two turns"],
)
def test_a_draft_from_which_nothing_can_be_taken_stays(changes: dict[str, Any]) -> None:
    assert all(with_absence(weighed(**changes), TEMPLATES, DEPOT, random.Random(seed)) is None for seed in range(4))


def test_a_program_is_left_alone() -> None:
    class Coded:
        name = "coded"

        def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
            code = Parameter(name="code", type="code", description="the program", required=True)
            return tuple(ToolSpec(name=name, group="g", description="Run.", parameters=(code,)) for name in names)

    draft = weighed(tools=("python", "other"), turns=("Run x = 1.",), reference=((call("python", code="x = 1"),),))
    environment: Any = Coded()
    assert with_absence(draft, TEMPLATES, environment, random.Random(0)) is None
