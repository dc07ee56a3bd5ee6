"""The solver on a table of replies: it acts in real episodes, which evaluate it."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage
from support.car_drafts import FUEL, LOCK, two_turns

from agents.chat.sending import EndpointFailed
from agents.chat.solver import ChatSolver
from agents.settings import BudgetSettings
from agents.spending import BudgetReached, Ledger
from environments.base import ToolCall
from memory.records import Draft


@pytest.fixture
def draft(car_start) -> Draft:
    """Hidden Lane in the setup must reach nobody."""
    return two_turns(car_start, (ToolCall(name="set_navigation", arguments={"destination": "Hidden Lane 7"}),))


def act(say, tool: str = "", **arguments):
    return say("NextAction", tool=tool, arguments=arguments)


async def test_a_draft_is_solved_turn_by_turn_from_its_text(table, say, draft, environment) -> None:
    fake, model = table(
        act(say, "startEngine", ignitionMode="START"),
        act(say, "fillFuelTank", **FUEL),
        act(say),
        act(say, "lockDoors", **LOCK),
        act(say),
    )
    solved = await ChatSolver(model, attempts=1, actions=5).solve(draft, environment, 0)
    assert (solved.rate, solved.attempts) == (1.0, 1)
    prompts = [messages[1].content for messages in fake.sent]
    assert "Lock all the doors." not in prompts[2]
    assert "All doors must be locked" in prompts[1]
    assert "All doors must be locked" in prompts[3]
    assert "<user>Lock all the doors.</user>" in prompts[3]
    assert "5 actions are left" in prompts[0]
    assert "2 actions are left" in prompts[4]
    assert "Hidden Lane" not in fake.prompts()


@pytest.mark.parametrize(
    "replies",
    [
        [("",), ("",)],
        [("fillFuelTank", {"fuelAmount": 4.0}), ("",), ("lockDoors", LOCK), ("",)],
        [("fillFuelTank", FUEL), ("",), ("",)],
        [("displayCarStatus", {"option": "fuel"})] * 4,
    ],
)
async def test_what_does_not_solve_it_counts_as_a_failure(table, say, draft, environment, replies: list) -> None:
    table_replies = [act(say, reply[0], **(reply[1] if len(reply) > 1 else {})) for reply in replies]
    fake, model = table(*table_replies)
    solved = await ChatSolver(model, attempts=1, actions=4).solve(draft, environment, 0)
    assert (solved.rate, solved.attempts) == (0.0, 1)
    assert fake.replies == []


async def test_an_action_may_be_written_as_in_the_paper(table, draft, environment) -> None:
    said = [
        "The tank needs {fuel}.\n<action>fillFuelTank(fuelAmount=5.0)</action>",
        '<action>{"tool": ""}</action>',
        f"Then the doors.\n<action>\n{{'name': 'lockDoors', 'arguments': {LOCK}}}\n</action>",
        '{"tool": "", "arguments": null}',
    ]
    fake, model = table(*(AIMessage(content=text) for text in said))
    assert (await ChatSolver(model, attempts=1, actions=5).solve(draft, environment, 0)).rate == 1.0
    assert fake.replies == []


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("<action>fillFuelTank(fuelAmount=1.0)</action><action>lockDoors()</action>", "several different objects"),
        ("<action>fillFuelTank(fuelAmount=", "it breaks off"),
        ("<action>fillFuelTank(fuelAmount=__import__('os').getpid())</action>", "is wrong at character"),
        ("I would fillFuelTank(fuelAmount=5.0)", "there is no JSON object"),
    ],
)
async def test_an_action_that_is_unclear_is_asked_for_again(table, say, draft, environment, said, told) -> None:
    fake, model = table(AIMessage(content=said), act(say), act(say))
    await ChatSolver(model, attempts=1, actions=5).solve(draft, environment, 0)
    assert told in fake.sent[1][-1].content


async def test_the_limit_of_actions_evaluates_what_was_done_by_then(table, say, draft, environment) -> None:
    _, model = table(act(say, "fillFuelTank", **FUEL), act(say), act(say, "lockDoors", **LOCK))
    assert (await ChatSolver(model, attempts=1, actions=2).solve(draft, environment, 0)).rate == 1.0


async def test_a_tool_that_is_not_offered_never_runs(table, say, draft, environment) -> None:
    """What an injected instruction can make of a reply at most: a malformed call, which is answered."""
    fake, model = table(act(say, "rm", file_name="/"), act(say), act(say))
    await ChatSolver(model, attempts=1, actions=3).solve(draft, environment, 0)
    assert "'rm' is none of the tools" in fake.sent[1][1].content


async def test_attempts_differ_in_their_prompt_and_are_averaged(table, say, draft, environment) -> None:
    fake, model = table(*[act(say)] * 6)
    solved = await ChatSolver(model, attempts=3, actions=3).solve(draft, environment, 0)
    assert (solved.rate, solved.attempts) == (0.0, 3)
    first = {messages[1].content for messages in fake.sent if "Lock all the doors." not in messages[1].content}
    assert len(first) == 3


async def test_a_reply_that_stays_unusable_ends_an_attempt_which_is_evaluated(table, say, draft, environment) -> None:
    bad = say("NextAction", tool=3)
    fake, model = table(act(say, "fillFuelTank", **FUEL), act(say), bad, bad)
    solved = await ChatSolver(model, attempts=1, actions=5).solve(draft, environment, 0)
    assert (solved.rate, solved.attempts) == (0.0, 1)
    assert fake.replies == []
    _, model = table(act(say, "fillFuelTank", **FUEL), act(say), act(say, "lockDoors", **LOCK), bad, bad)
    assert (await ChatSolver(model, attempts=1, actions=5).solve(draft, environment, 0)).rate == 1.0


async def test_an_attempt_that_the_endpoint_failed_is_left_out(table, say, draft, environment) -> None:
    gone = [ConnectionResetError("gone")] * 3
    _, model = table(*gone)
    with pytest.raises(EndpointFailed, match="gone"):
        await ChatSolver(model, attempts=1, actions=3).solve(draft, environment, 0)

    _, model = table(*[act(say)] * 2)
    ask = model.ask

    async def failing_the_first_attempt(schema, system, prompt, *args, **kwargs):
        if "This is attempt 1;" in prompt:
            raise EndpointFailed("gone")
        return await ask(schema, system, prompt, *args, **kwargs)

    model.ask = failing_the_first_attempt
    solved = await ChatSolver(model, attempts=2, actions=3).solve(draft, environment, 0)
    assert (solved.rate, solved.attempts) == (0.0, 1)


async def test_a_spent_budget_leaves_no_rate(table, say, draft, environment) -> None:
    _, model = table(*[act(say)] * 4, ledger=Ledger(None, BudgetSettings(calls=3)))
    with pytest.raises(BudgetReached):
        await ChatSolver(model, attempts=2, actions=3).solve(draft, environment, 0)
