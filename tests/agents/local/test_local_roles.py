"""Tests of the explorer and the abstractor that a language model plays, with a model that says what a test gives it.

``tests/training/test_local_model.py`` holds a real model to the same protocol.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence

import pytest
from support.desk import DESK

from agents.absence import with_absence
from agents.local.abstractor import LocalAbstractor
from agents.local.explorer import LocalExplorer
from agents.local.selection import NOTHING_ASKED, readings
from agents.said import hidden_values, own_tools, same_calls, unsaid
from agents.settings import ExplorationSettings, LocalSettings
from agents.spending import RoleRefused
from environments.base import ToolCall
from environments.example import depot
from environments.turn_lines import FOUND, Adapter, TurnView
from memory.records import FailureContext, Interaction

STARTS = depot()
EXPLORATION = ExplorationSettings(rounds=1, steps=6, drafts_per_context=3)


class Told:
    """A model that writes what ``says`` returns for a prompt and a number, and scores answers by ``scores``."""

    def __init__(
        self, says: Callable[[str, int], str], scores: Callable[[str, str], float] = lambda prompt, answer: -1.0
    ) -> None:
        self.says, self.scores = says, scores
        self.prompts: list[str] = []

    def write(
        self, prompts: Sequence[str], seeds: Sequence[int], adapter: Adapter, *, temperature: float, most: int
    ) -> list[tuple[str, float]]:
        assert len(prompts) == len(seeds)
        self.prompts += prompts
        return [(self.says(prompt, number), -1.0 - number / 100) for number, prompt in enumerate(prompts)]

    def likelihood(self, texts: Sequence[tuple[str, str]], adapter: Adapter) -> list[float]:
        return [self.scores(prompt, answer) for prompt, answer in texts]


def context(tool: str) -> FailureContext:
    start = STARTS.starts()[0]
    return FailureContext(
        id="c",
        environment=start.environment,
        classes=start.classes,
        initial_state=start.initial_state,
        tools=start.tools,
        tool=tool,
    )


LIGHT = next(
    label
    for label, parcel in STARTS.starts()[0].initial_state["Depot"]["parcels"].items()  # type: ignore[call-overload,index,union-attr]
    if parcel["kilograms"] <= 10
)
LABEL = sorted(STARTS.starts()[0].initial_state["Depot"]["parcels"])[0]  # type: ignore[arg-type]


def explored(says: Callable[[str, int], str], tool: str, steps: int = 6) -> list[tuple[str, bool, int]]:
    exploration = EXPLORATION.model_copy(update={"steps": steps})
    explorer = LocalExplorer(exploration, LocalSettings(draws=2), Told(says))
    found = explorer.explore_now(context(tool), STARTS, 1)
    return [(str(one.action.name), one.observation.failed, one.purpose) for one in found]  # type: ignore[union-attr]


def begun(prompt: str, text: str) -> str:
    """Return ``text`` after a prompt that may have begun it."""
    start = prompt.rpartition("Calls:\n")[2]
    return text.removeprefix(start) if text.startswith(start) else "("


def test_it_carries_out_what_is_proposed_for_its_aim() -> None:
    found = explored(
        lambda prompt, _: begun(prompt, f'weigh_parcel(label="{LABEL}")\nWords: How heavy is it?'), "weigh_parcel", 1
    )
    assert found == [("weigh_parcel", False, 1)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing(",
        "rm(path='/')",
        f'weigh_parcel(label="{LABEL}", colour="red")',
        "weigh_parcel(label=7)",
        "weigh_parcel()",
    ],
)
def test_rules_draw_the_arguments_where_no_proposal_is_of_use(text: str) -> None:
    by_rules = explored(lambda *_: "", "weigh_parcel", 3)
    assert explored(lambda prompt, _: begun(prompt, text), "weigh_parcel", 3) == by_rules
    assert len(by_rules) == 3


def test_a_refused_call_is_made_again_behind_the_tool_that_its_error_asks_for() -> None:
    calls = {"send_van": 'send_van(van="north")', "open_gate": "open_gate()"}

    def says(prompt: str, number: int) -> str:
        return begun(prompt, calls.get(prompt.rpartition("Calls:\n")[2], ""))

    loaded = ToolCall(name="load_parcel", arguments={"label": LIGHT, "van": "north"})
    asked = context("send_van").model_copy(update={"setup": (loaded,)})
    explorer = LocalExplorer(EXPLORATION.model_copy(update={"steps": 3}), LocalSettings(draws=2), Told(says))
    found = explorer.explore_now(asked, STARTS, 1)
    assert [(one.action.name, one.observation.failed, one.purpose) for one in found] == [  # type: ignore[union-attr]
        ("send_van", True, 1),
        ("open_gate", False, 2),
        ("send_van", False, 3),
    ]


def desk(tool: str) -> FailureContext:
    start = DESK.starts()[0]
    return context(tool).model_copy(
        update={"environment": "desk", "classes": start.classes, "initial_state": start.initial_state}
        | {"tools": start.tools}
    )


def looked_up() -> tuple[Interaction, ...]:
    proposal = f'find_order(name="Ana")\ncancel_order(order_id="{FOUND}")'
    model = Told(lambda prompt, _: begun(prompt, proposal))
    explorer = LocalExplorer(EXPLORATION.model_copy(update={"steps": 2}), LocalSettings(draws=2), model)
    return explorer.explore_now(desk("cancel_order"), DESK, 1)


def test_a_value_that_an_earlier_answer_gives_is_filled_in() -> None:
    found = looked_up()
    assert [one.action for one in found] == [
        ToolCall(name="find_order", arguments={"name": "Ana"}),
        ToolCall(name="cancel_order", arguments={"order_id": 4711}),
    ]
    assert [one.purpose for one in found] == [1, 1]


def test_a_value_of_an_answer_is_passed_on_to_a_tool_that_takes_it() -> None:
    seen: list[str] = []

    def says(prompt: str, number: int) -> str:
        start = prompt.rpartition("Calls:\n")[2]
        seen.append(start)
        return begun(prompt, 'find_order(name="Bo")') if "cancel" not in start else ")"

    explorer = LocalExplorer(EXPLORATION.model_copy(update={"steps": 2}), LocalSettings(draws=2), Told(says))
    for seed in range(5):
        found = explorer.explore_now(desk("find_order"), DESK, seed)
        assert found[0].purpose == 1
        if found[-1].action.name == "cancel_order":  # type: ignore[union-attr]
            assert found[-1].action.arguments == {"order_id": 4712}  # type: ignore[union-attr]
            assert [one.purpose for one in found] == [1, 1]
            break
    else:
        pytest.fail("no value was passed on")
    assert f'find_order(name="Bo")\ncancel_order(order_id="{FOUND}"' in seen


@pytest.mark.parametrize(
    ("answer", "hidden"),
    [
        ('{"order": 4711, "name": "Ana"}', True),
        ('{"orders": [{"order": 4711}, {"order": 4712}]}', False),
        ('{"orders": [4711]}', True),
        ("[4711, 4712]", False),
        ("Order 4711 was made.", True),
        ("4711\n4712", False),
        ('{"order": 4712}', False),
    ],
)
def test_a_user_says_which_of_several_and_need_not_say_the_only_one(answer: str, hidden: bool) -> None:
    call = ToolCall(name="cancel_order", arguments={"order_id": 4711})
    shown = hidden_values([ToolCall(name="find_order"), call], [answer, "cancelled"])
    assert shown[1].arguments == {"order_id": FOUND if hidden else 4711}


def test_the_writer_does_not_see_a_value_that_is_looked_up() -> None:
    model = Told(lambda prompt, _: " Please cancel the order of Ana." if prompt.endswith("Words:") else "")
    exploration = EXPLORATION.model_copy(update={"drafts_per_context": 9})
    drafts = LocalAbstractor(exploration, LocalSettings(draws=1), model).abstract_now(
        desk("cancel_order"), looked_up(), DESK, 1
    )
    both = next(draft for draft in drafts if len(draft.reference[0]) == 2)
    assert both.turns == ("Please cancel the order of Ana.",)
    assert both.reference[0][1].arguments == {"order_id": 4711}
    asked = [prompt for prompt in model.prompts if prompt.endswith("Words:")]
    assert any(f'cancel_order(order_id="{FOUND}")' in prompt and "4711" not in prompt for prompt in asked)
    assert all(len(draft.reference[0]) == 2 or draft.reference[0][0].name == "find_order" for draft in drafts)


def test_the_likeliest_call_that_was_not_made_yet_is_taken() -> None:
    other = sorted(STARTS.starts()[0].initial_state["Depot"]["parcels"])[1]  # type: ignore[arg-type]
    says = [f'weigh_parcel(label="{LABEL}")', f'weigh_parcel(label="{other}")']
    explorer = LocalExplorer(
        EXPLORATION.model_copy(update={"steps": 2}),
        LocalSettings(draws=2),
        Told(lambda prompt, n: begun(prompt, says[n])),
    )
    found = explorer.explore_now(context("weigh_parcel").model_copy(update={"tools": ("weigh_parcel",)}), STARTS, 1)
    assert [one.action.arguments["label"] for one in found] == [LABEL, other]  # type: ignore[union-attr]


def weighed() -> tuple[FailureContext, tuple[object, ...]]:
    asked = context("weigh_parcel").model_copy(update={"tools": ("weigh_parcel", "list_parcels")})
    model = Told(lambda prompt, _: begun(prompt, f'weigh_parcel(label="{LABEL}")'))
    found = LocalExplorer(EXPLORATION.model_copy(update={"steps": 1}), LocalSettings(draws=2), model).explore_now(
        asked, STARTS, 1
    )
    return asked, found


def abstracted(says: Callable[[str, int], str], scores: Callable[[str, str], float], margin: float = 0.0):  # type: ignore[no-untyped-def]
    asked, found = weighed()
    model = Told(says, scores)
    abstractor = LocalAbstractor(EXPLORATION, LocalSettings(draws=3, margin=margin), model)
    return abstractor.abstract_now(asked, found, STARTS, 1), model  # type: ignore[arg-type]


WORDINGS = (f"How heavy is the {LABEL}?", f"Could you weigh the {LABEL} for me?", "Could you weigh it for me?")


def worded(prompt: str, number: int) -> str:
    return f" {WORDINGS[number]}\nWords: more" if prompt.endswith("Words:") else f'weigh_parcel(label="{LABEL}")\n'


def read_back(*exact: str) -> Callable[[str, int], str]:
    """Return a model whose reader returns the calls of the wordings ``exact``, and other ones of the rest."""

    def says(prompt: str, number: int) -> str:
        if prompt.endswith("Words:"):
            return worded(prompt, number)
        return worded(prompt, number) if any(words in prompt for words in exact) else "list_parcels()\n"

    return says


@pytest.mark.parametrize(("exact", "taken"), [((), 1), ((WORDINGS[0],), 0), ((WORDINGS[1],), 1)])
def test_a_wording_that_is_read_back_is_taken_before_the_one_that_says_most(exact: tuple[str, ...], taken: int) -> None:
    (draft,), _ = abstracted(read_back(*exact), lambda prompt, answer: -1.0 if "Could you" in prompt else -2.0)
    assert draft.turns == (WORDINGS[taken],), "the third lacks the label"
    assert draft.writing.drawn == 3
    assert draft.writing.wordings == 2
    assert draft.writing.margin == pytest.approx(1.0 if taken else 0.0)
    assert draft.writing.round_trip is bool(exact)
    assert draft.writing.understood is bool(exact)


def test_the_call_that_the_words_say_least_of_counts() -> None:
    calls = [ToolCall(name="open_gate"), ToolCall(name="list_parcels")]
    view = TurnView(STARTS.tools(("open_gate", "list_parcels")))

    def scores(prompt: str, answer: str) -> float:
        return -0.5 if "gate" in answer and "gate, please" in prompt else -2.0

    model = Told(lambda *_: "open_gate()\nlist_parcels()\n", scores)
    one, none = readings(model, view, ["The gate, please.", "What is there?"], calls)
    assert (one.margin, none.margin) == (0.0, 0.0), "the list is not asked for"
    assert one.exact
    assert readings(model, view, ["The gate, please."], calls[:1])[0].margin == pytest.approx(1.5)


@pytest.mark.parametrize(("first", "exact"), [("open_gate", True), ("list_parcels", True), ("neither", False)])
def test_a_wording_is_read_with_the_tools_in_both_orders(first: str, exact: bool) -> None:
    view = TurnView(STARTS.tools(("open_gate", "list_parcels")))
    asked = list[str]()

    def says(prompt: str, number: int) -> str:
        asked.append(prompt)
        return "open_gate()\n" if prompt.startswith(f"Tools:\n{first}(") else "list_parcels()\n"

    (reading,) = readings(Told(says, lambda *_: -1.0), view, ["The gate, please."], [ToolCall(name="open_gate")])
    assert reading.exact is exact
    assert len(asked) == (1 if first == "open_gate" else 2), "what is read right once is not read again"


@pytest.mark.parametrize(
    ("words", "fine"),
    [
        ("Weigh the red crate, then put it into the north van.", True),
        ("Weigh the RED CRATE, then put the red crate into the north van.", True),
        ("Weigh the red crate and the red crate, then put the red crate into the north van.", False),
        ("Weigh the red crates, then put the red crate into the north van: the red crate.", True),
        ("North, the north van, takes the red crate when you know its weight.", False),
        ("Weigh it, then put it into the north van.", False),
    ],
)
def test_a_wording_says_each_value_and_none_more_often_than_the_calls(words: str, fine: bool) -> None:
    calls = [
        ToolCall(name="weigh_parcel", arguments={"label": "red crate"}),
        ToolCall(name="load_parcel", arguments={"label": "red crate", "van": "north"}),
    ]
    assert (unsaid(words, calls, own_tools(STARTS.tools(("weigh_parcel", "load_parcel")))) is None) is fine


def test_a_value_within_another_one_counts_as_often() -> None:
    calls = [ToolCall(name="load_parcel", arguments={"label": "box.txt", "van": "old/box.txt"})]
    tools = own_tools(STARTS.tools(("load_parcel",)))
    assert unsaid("Put box.txt into old/box.txt.", calls, tools) is None
    assert unsaid("Put box.txt into old/box.txt, the box.txt.", calls, tools) == (
        "it says 'box.txt' more often than the calls do"
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("Weigh my_old_box, please.", None),
        ("Weigh MY_OLD_BOX, please.", None),
        ("Run weigh_parcel on my_old_box.", "it has 'weigh_parcel', which no user would write"),
        ("Weigh my_old_box_two.", "it has to say 'my_old_box', whole and as the calls do"),
        ("Weigh(my_old_box)", "it has 'Weigh(', which no user would write"),
        (f"Weigh {FOUND}, my_old_box.", f"it has '{FOUND}', which no user would write"),
    ],
)
def test_a_value_may_look_like_a_tools_name(words: str, why: str | None) -> None:
    calls = [ToolCall(name="weigh_parcel", arguments={"label": "my_old_box"})]
    assert unsaid(words, calls, own_tools(STARTS.tools(("weigh_parcel",)))) == why


def test_calls_that_nobody_would_make_are_not_worded() -> None:
    with pytest.raises(RoleRefused, match="no wording of 1 paths"):
        abstracted(worded, lambda prompt, _: -1.0 if "Words:" in prompt else -3.0)


@pytest.mark.parametrize(
    ("exact", "margin", "understood"), [(True, 0.1, True), (True, 0.3, False), (False, 0.1, False)]
)
def test_words_are_understood_that_gain_something_and_return_the_calls(
    exact: bool, margin: float, understood: bool
) -> None:
    says = read_back(*(WORDINGS if exact else ()))

    (draft,), _ = abstracted(says, lambda prompt, _: -2.0 if NOTHING_ASKED in prompt else -1.8, margin)
    assert draft.writing.round_trip is exact
    assert draft.writing.understood is understood


@pytest.mark.parametrize(
    "words", ["", "weigh it", f"call weigh_parcel for the {LABEL}", f"{FOUND} and the {LABEL} please"]
)
def test_a_wording_that_lacks_a_value_or_names_a_tool_is_none(words: str) -> None:
    with pytest.raises(RoleRefused, match="no wording of 1 paths"):
        abstracted(lambda prompt, _: words, lambda *_: -1.0)


@pytest.mark.parametrize("role", ["explorer", "abstractor"])
def test_a_role_that_nobody_waits_for_asks_nothing_more(role: str) -> None:
    asked, go = threading.Event(), threading.Event()
    questions: list[str] = []

    def says(prompt: str, number: int) -> str:
        if number == 0:
            questions.append(prompt)
        asked.set()
        assert go.wait(20)
        return " Please cancel the order of Ana." if role == "abstractor" else "nothing"

    def scores(prompt: str, _: str) -> float:
        questions.append(prompt)
        return -1.0

    model = Told(says, scores)

    async def cancelled() -> None:
        if role == "explorer":
            work = LocalExplorer(EXPLORATION, LocalSettings(), model).explore(desk("find_order"), DESK, 1)
        else:
            found = looked_up()
            work = LocalAbstractor(EXPLORATION, LocalSettings(), model).abstract(desk("find_order"), found, DESK, 1)  # type: ignore[assignment]
        task = asyncio.create_task(work)  # type: ignore[arg-type]
        await asyncio.to_thread(asked.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()

    asyncio.run(cancelled())  # ends after its threads
    assert len(questions) == (1 if role == "explorer" else 2), "how likely the calls are, and their words"


@pytest.mark.parametrize(
    ("asked", "made"),
    [("Could you weigh a parcel for me?", True), (f"Could you weigh the {LABEL}?", False), ("weigh it", False)],
)
def test_the_writer_is_asked_without_the_missing_value_and_must_not_say_it(asked: str, made: bool) -> None:
    def says(prompt: str, number: int) -> str:
        if not prompt.endswith("Words:"):
            return "weigh_parcel()\n"
        return f" {asked if 'weigh_parcel()' in prompt else WORDINGS[0]}"

    (draft,), model = abstracted(says, lambda *_: -1.0)
    abstractor = LocalAbstractor(EXPLORATION, LocalSettings(draws=3), model)
    changed = [with_absence(draft, abstractor, STARTS, random.Random(seed)) for seed in range(9)]
    assert any(LABEL not in prompt for prompt in model.prompts if prompt.endswith("Words:"))
    of_detail, of_tool = ([one for one in changed if one and bool(one.withheld) is kind] for kind in (False, True))
    assert bool(of_detail) is made
    for one in of_detail:
        assert one.turns[0] == asked
        assert LABEL in one.turns[1]
        assert (one.writing.round_trip, draft.writing.round_trip) == (True, False)  # type: ignore[union-attr]
    for one in of_tool:
        assert (one.turns[0], one.writing) == (WORDINGS[0], draft.writing)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": "Oslo  Airport"}, {"a": "oslo airport"}, True),
        ({"a": ["x", 2]}, {"a": ["x", 2.0]}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1}, {"a": 2}, False),
        ({"a": ["x"]}, {"a": "x"}, False),
        ({"a": {"x": 1, "y": 0.1}}, {"a": {"y": 0.1000000000000001, "x": 1.0}}, True),
        ({"a": 10**400}, {"a": 1.0}, False),
    ],
)
def test_calls_are_the_same_apart_from_spelling(left: dict, right: dict, same: bool) -> None:  # type: ignore[type-arg]
    one, other = ToolCall(name="f", arguments=left), ToolCall(name="f", arguments=right)
    assert same_calls([one], [other]) is same
    assert not same_calls([one], [one, one])
    assert not same_calls([one], [ToolCall(name="g", arguments=left)])
