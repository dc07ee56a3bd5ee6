"""The chat abstractor that words calls which rules cut, on a table of replies and the real depot."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from support.desk import DESK

from agents.chat.wording import WordingAbstractor
from agents.evidence import live_run
from agents.roles import unguided_context
from agents.settings import BudgetSettings, ExplorationSettings
from agents.spending import BudgetReached, Ledger, RoleRefused
from environments.base import ToolCall
from environments.example import depot
from environments.python_class.environment import PythonEnvironment
from environments.turn_lines import FOUND
from environments.verification.verify import verify

DEPOT = depot()
LABELS = sorted(DEPOT.starts()[0].initial_state["Depot"]["parcels"])  # type: ignore[arg-type]
LABEL = LABELS[0]
ONE = ExplorationSettings(rounds=1, steps=4, drafts_per_context=1)
PLAIN = f"How heavy is the {LABEL}?"


class Meter:
    """Words are counted."""

    def __init__(self, counted: int) -> None:
        self.counted = counted

    def count(self, words: Annotated[str, "what is counted"]) -> str:
        """Count words."""
        self.counted += len(words.split())
        return f"{self.counted} words, of {words} the last"


class Feed:
    """People are followed."""

    def __init__(self, followed: list[str]) -> None:
        self.followed = followed

    def follow(self, name: Annotated[str, "whom"]) -> str:
        """Follow somebody."""
        self.followed = [*self.followed, name]
        return f"{len(self.followed)} people are followed"

    def unfollow(self, name: Annotated[str, "whom"]) -> str:
        """Do not follow somebody any more."""
        self.followed = [one for one in self.followed if one != name]
        return f"{name} is not followed any more"


def call(name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


WEIGH = call("weigh_parcel", label=LABEL)


def made(environment: PythonEnvironment, *calls: ToolCall):
    """A context, and one run of ``calls`` around it."""
    context = unguided_context(environment.starts()[0], 0)
    with live_run(environment, context, 0, len(calls)) as run:
        for one in calls:
            assert not run.act(one).observation.failed
    return context, run.interactions


async def abstracted(model, environment, calls, settings=ONE, seed: int = 0):
    context, interactions = made(environment, *calls)
    return await WordingAbstractor(model, settings).abstract(context, interactions, environment, seed)


def calls_of(say, *calls: ToolCall):
    return say("ReadCalls", calls=[{"tool": one.name, "arguments": dict(one.arguments)} for one in calls])


async def test_words_that_are_read_back_become_a_draft_that_verification_accepts(table, say) -> None:
    fake, model = table(say("UserMessage", message=f' "{PLAIN}"\n'), calls_of(say, WEIGH))
    (draft,) = await abstracted(model, DEPOT, [WEIGH])
    assert (draft.turns, draft.reference) == ((PLAIN,), ((WEIGH,),))
    assert verify(draft, DEPOT, (), ()).accepted
    assert draft.writing is not None
    assert (draft.writing.round_trip, draft.writing.understood, draft.writing.drawn) == (True, True, 1)
    assert draft.writing.margin is None
    assert "margin" not in draft.model_dump_json()
    assert (draft.measured.calls, draft.measured.prompt_tokens) == (2, 200)
    asked, read = (messages[1].content for messages in fake.sent)
    assert f'weigh_parcel(label="{LABEL}")' in asked
    assert f'weigh_parcel(label="{LABEL}")' not in read, "who reads does not see the calls"
    assert "load_parcel(" in read, "among other tools"
    assert "load_parcel(" not in asked


async def test_who_words_is_told_what_an_explorer_made_the_calls_for(table, say) -> None:
    fake, model = table(say("UserMessage", message=PLAIN), calls_of(say, WEIGH))
    context, interactions = made(DEPOT, WEIGH)
    aimed = [one.model_copy(update={"aim": "see whether </action> it is light"}) for one in interactions]
    (draft,) = await WordingAbstractor(model, ONE).abstract(context, aimed, DEPOT, 0)
    assert draft.writing.understood
    asked, read = (messages[1].content for messages in fake.sent)
    assert "They were first made for this: <action>see whether &lt;/action> it is light</action>" in asked
    assert "light" not in read


async def test_words_that_are_misread_are_written_once_more_and_then_refused(table, say) -> None:
    vague, plain = f"Is the {LABEL} fine?", f"What does the {LABEL} weigh?"
    other = call("insure_parcel", label=LABEL, euros=100)
    for second, understood in ((WEIGH, True), (other, False)):
        fake, model = table(
            say("UserMessage", message=vague),
            calls_of(say, other),
            say("UserMessage", message=plain),
            calls_of(say, second),
        )
        (draft,) = await abstracted(model, DEPOT, [WEIGH])
        assert (draft.turns, draft.writing.understood, draft.writing.drawn) == ((plain,), understood, 2)
        assert draft.writing.read == ("" if understood else f'insure_parcel(label="{LABEL}", euros=100)')
        assert draft.measured.calls == 4
        again = fake.sent[2][1].content
        assert f"<user>{vague}</user>" in again
        assert f'made other calls: <action>insure_parcel(label="{LABEL}", euros=100)</action>' in again


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "it is too short"),
        ("Could you weigh that parcel?", f"it has to say '{LABEL}', whole"),
        (f"Call weigh_parcel for the {LABEL}.", "it has 'weigh_parcel', which no user would write"),
        (f"Weigh the {LABEL}, the {LABEL}.", "more often than the calls do"),
        (f'Weigh "{LABEL}, please.', "a quotation mark is missing"),
    ],
)
async def test_words_that_nobody_would_send_are_asked_for_again(table, say, words: str, told: str) -> None:
    fake, model = table(
        say("UserMessage", message=words),
        say("UserMessage", message=PLAIN),
        calls_of(say, WEIGH),
    )
    (draft,) = await abstracted(model, DEPOT, [WEIGH])
    assert draft.turns == (PLAIN,)
    assert told in fake.sent[1][-1].content


async def test_calls_that_cannot_be_worded_make_room_for_the_next_ones(table, say) -> None:
    wrong = say("UserMessage", message="Weigh something, please.")
    others = [call("weigh_parcel", label=label) for label in LABELS[1:3]]
    right = say(
        "UserMessage",
        situation="somebody waits",
        message=f"How heavy are the {LABELS[0]}, the {LABELS[1]} and the {LABELS[2]}?",
    )
    _, model = table(wrong, wrong, right, calls_of(say), right, calls_of(say))
    assert len(await abstracted(model, DEPOT, [WEIGH, *others])) == 1
    fake, model = table(*[wrong] * 9)
    with pytest.raises(RoleRefused, match="no wording of 2 paths"):
        await abstracted(model, DEPOT, [WEIGH, *others])
    assert len(fake.sent) == 4, "of twice as many cuts as drafts are wanted, each with a repair"


async def test_nobody_asks_for_what_is_undone_at_once(table, say) -> None:
    settings = ONE.model_copy(update={"drafts_per_context": 9})
    calls = [call("follow", name="Ana"), call("unfollow", name="Ana")]
    words = [say("UserMessage", message="What about Ana now?"), calls_of(say)] * 9
    drafts = await abstracted(table(*words)[1], PythonEnvironment("feed", Feed, [{"followed": []}]), calls, settings)
    assert [len(draft.reference[0]) for draft in drafts] == [1, 1]


async def test_nobody_asks_for_the_same_twice_at_once(table, say) -> None:
    settings = ONE.model_copy(update={"drafts_per_context": 9})
    calls = [call("count", words="a tree"), call("count", words="a tree")]
    words = [say("UserMessage", message="Count a tree, please."), calls_of(say)] * 9
    drafts = await abstracted(table(*words)[1], PythonEnvironment("meter", Meter, [{"counted": 0}]), calls, settings)
    assert {len(draft.reference[0]) for draft in drafts} == {1}


@pytest.mark.parametrize(("value", "limit"), [(FOUND, 10), ("<order_id>", 0), (7, 10.0)])
async def test_a_value_that_an_answer_gives_is_hidden_and_not_compared(table, say, value: object, limit: float) -> None:
    find, cancel = call("find_order", name="Ana"), call("cancel_order", order_id=4711)
    read = [call("find_order", name="ana", limit=limit), call("cancel_order", order_id=value)]
    fake, model = table(say("UserMessage", message="Please cancel the order of Ana."), calls_of(say, *read))
    settings = ONE.model_copy(update={"min_reference_calls": 2})
    (draft,) = await abstracted(model, DESK, [find, cancel], settings)
    assert draft.reference == ((find, cancel),)
    assert draft.writing.understood
    assert f'cancel_order(order_id="{FOUND}")' in fake.sent[0][1].content
    assert "4711" not in fake.prompts()


@pytest.mark.parametrize(
    "read",
    [
        (),
        (call("find_order", name="Bo"),),
        (call("find_order", name="Ana", limit=3),),
        (call("find_order"),),
        (call("cancel_order", order_id=4711),),
        (call("no_such_tool", name="Ana"),),
        (call("\x1b[31mfind_order" + "x" * 999, name="Ana"),),
        (call("find_order", name="Ana"), call("find_order", name="Ana")),
        (call("find_order", name=[["Ana"]]),),
    ],
)
async def test_other_calls_are_not_the_calls(table, say, read: tuple[ToolCall, ...]) -> None:
    words = say("UserMessage", message="Find the order of Ana, please.")
    _, model = table(words, calls_of(say, *read), words, calls_of(say, *read))
    (draft,) = await abstracted(model, DESK, [call("find_order", name="Ana")])
    assert not draft.writing.understood
    assert 0 < len(draft.writing.read) <= 300
    assert draft.writing.read.isprintable()


async def test_a_budget_that_is_spent_ends_a_context_with_the_drafts_so_far(table, say, tmp_path) -> None:
    replies = [
        say("UserMessage", message=PLAIN),
        calls_of(say, WEIGH),
        say("UserMessage", message=PLAIN),
    ]
    for calls, drafts in ((2, 1), (1, None)):
        ledger = Ledger(tmp_path / f"{calls}.jsonl", BudgetSettings(calls=calls))
        _, model = table(*replies, ledger=ledger)
        work = abstracted(
            model, DEPOT, [WEIGH, call("open_gate"), WEIGH], ONE.model_copy(update={"drafts_per_context": 3})
        )
        if drafts is None:
            with pytest.raises(BudgetReached):
                await work
        else:
            assert len(await work) == drafts
