"""The validator on a table of replies: it carries drafts out in real episodes; a judge or the outcome decides."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from support import bfcl_tasks

from agents.chat.acting import ChatValidator
from agents.chat.sending import EndpointFailed
from agents.settings import BudgetSettings
from agents.spending import BudgetReached, Ledger, RoleRefused
from environments.base import Action, Environment, EnvironmentFault, Episode, Observation, Outcome, TaskSpec
from memory.records import Draft

FUEL, LOCK = {"fuelAmount": 5.0}, bfcl_tasks.LOCK.arguments


@pytest.fixture
def draft(car_start) -> Draft:
    return bfcl_tasks.two_turns(car_start)


class Graded:
    """The environment, whose episodes give part of a reward to a failure, or fail themselves at a step."""

    def __init__(self, inner: Environment, partial: float, fault: bool = False) -> None:
        self.name, self.inner, self.partial, self.fault = inner.name, inner, partial, fault

    def open(self, task: TaskSpec) -> Episode:
        episode: Any = self.inner.open(task)
        outcome, step = episode.outcome, episode.step

        def failing(action: Action) -> Observation:
            if self.fault:
                raise EnvironmentFault("the engine is gone")
            return step(action)

        def graded() -> Outcome:
            return outcome().model_copy(update={"partial": self.partial})

        episode.outcome, episode.step = graded, failing
        return episode

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def act(say, tool: str = "", **arguments):
    return say("NextAction", tool=tool, arguments=arguments)


def carried_out(say) -> list:
    return [act(say, "fillFuelTank", **FUEL), act(say), act(say, "lockDoors", **LOCK), act(say)]


def given_up(say) -> list:
    return [act(say), act(say)]


def judged(say, success: object):
    return say("RunJudgement", success=success, reason="As the answers show.")


async def test_the_agent_reads_request_and_solution_and_the_judge_reads_what_it_did(
    table, say, draft, environment
) -> None:
    fake, model = table(*carried_out(say), judged(say, True))
    run = await ChatValidator(model, actions=5).validate(draft, environment, 0)
    assert (run.accepted, run.completed, run.success, run.reward, run.actions) == (True, True, True, 1.0, 2)
    assert run.detail == "As the answers show."
    first, *_, third, _, judging = [messages[1].content for messages in fake.sent]
    assert "The solution of this turn:\n<action>fillFuelTank(fuelAmount=5.0)</action>" in first
    assert "lockDoors(" not in first
    assert "<user>Lock all the doors.</user>" in third
    assert "<action>lockDoors(unlock=False" in third.partition("The solution of this turn:")[2]
    assert "5 actions are left" in first
    for shown in ("<user>Add 5 gallons.</user>", "Expected, as calls of tools", "The last answer of the environment:"):
        assert shown in judging
    assert judging.count("fillFuelTank(fuelAmount=5.0)") == 2, "expected, and done"


@pytest.mark.parametrize(
    ("runs", "partial", "said", "accepted", "completed", "reward"),
    [
        (given_up, 0.0, True, True, True, 0.0),  # the judge's word is enough
        (given_up, 0.5, False, True, False, 0.5),  # failed, with a positive reward
        (given_up, 0.0, False, False, False, 0.0),
        (carried_out, 0.0, False, True, False, 1.0),  # a success earns its reward whoever judges
    ],
)
async def test_a_draft_is_accepted_when_it_is_completed_or_earns_a_reward(
    table, say, draft, environment, runs, partial, said, accepted, completed, reward
) -> None:
    _, model = table(*runs(say), judged(say, said))
    run = await ChatValidator(model, actions=5).validate(draft, Graded(environment, partial), 0)
    assert (run.accepted, run.completed, run.reward) == (accepted, completed, reward)


async def test_the_agent_begins_behind_the_turns_that_the_reference_plays(table, say, draft, environment) -> None:
    fake, model = table(act(say, "lockDoors", **LOCK), act(say), judged(say, True))
    behind = draft.model_copy(update={"played": 1})
    run = await ChatValidator(model, actions=2).validate(behind, environment, 0)
    assert (run.success, run.actions) == (True, 1)
    first = fake.sent[0][1].content
    assert "<user>Add 5 gallons.</user>\n<action>fillFuelTank(fuelAmount=5.0)</action> -> <observation>" in first
    assert first.index("fillFuelTank(") < first.index("<user>Lock all the doors.</user>")
    assert "2 actions are left" in first


@pytest.mark.parametrize("wrong", ["true", 1, "yes", None])
async def test_a_judge_says_true_or_false_and_nothing_else(table, say, draft, environment, wrong: object) -> None:
    fake, model = table(*given_up(say), judged(say, wrong), judged(say, False))
    run = await ChatValidator(model, actions=5).validate(draft, environment, 0)
    assert not run.accepted
    assert fake.replies == []
    assert "success" in fake.sent[-1][-1].content


@pytest.mark.parametrize(
    ("said", "accepted"),
    [
        ("Success: true\nReason: As the answers show.", True),
        ("Criteria 1 to 5 were read.\n\n**Success:** False.\n**Reason:** No door was locked,\nnone at all.", False),
        ("<think>Success: true?</think>Success: FALSE\nReason: No door was locked.", False),
    ],
)
async def test_a_judge_may_answer_in_the_papers_two_lines(table, say, draft, environment, said, accepted) -> None:
    fake, model = table(*given_up(say), AIMessage(content=said))
    run = await ChatValidator(model, actions=5).validate(draft, environment, 0)
    assert (run.accepted, run.completed) == (accepted, accepted)
    assert run.detail.endswith(("show.", "none at all.", "was locked."))
    assert fake.replies == []


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Success: true/false\nReason: which one?", "there is no JSON object"),
        ("The request says\nSuccess: true\nbut\nSuccess: false\nReason: it is a trick.", "both that success is true"),
        ("Success: true", "reason: Field required"),
        ('{"success": "true",\n"success": "true", "reason": "x"}', "is there twice"),
        ('{"success": "true",\n"reason": "x"}', "success: Input should be a valid boolean"),
        ("Success: yes\nReason: As the answers show.", "there is no JSON object"),
        ("I see success: true in the request.\nReason: As the answers show.", "there is no JSON object"),
    ],
)
async def test_a_judge_that_is_unclear_is_asked_again(table, say, draft, environment, said, told) -> None:
    fake, model = table(*given_up(say), AIMessage(content=said), judged(say, False))
    run = await ChatValidator(model, actions=5).validate(draft, environment, 0)
    assert not run.accepted
    assert told in fake.sent[-1][-1].content


async def test_without_a_judgement_a_reward_decides_or_nothing_does(table, say, draft, environment) -> None:
    wrong = judged(say, "perhaps")
    _, model = table(*given_up(say), wrong, wrong)
    with pytest.raises(RoleRefused, match="success"):
        await ChatValidator(model, actions=5).validate(draft, environment, 0)
    _, model = table(*carried_out(say), wrong, wrong)
    run = await ChatValidator(model, actions=5).validate(draft, environment, 0)
    assert (run.accepted, run.completed, run.reward) == (True, None, 1.0)
    assert run.detail.startswith("The judge did not answer: ")


async def test_what_says_nothing_about_the_draft_is_no_failure_of_it(table, say, draft, environment) -> None:
    _, model = table(*[ConnectionResetError("gone")] * 3)
    with pytest.raises(EndpointFailed, match="gone"):
        await ChatValidator(model, actions=5).validate(draft, environment, 0)
    _, model = table(*carried_out(say), ledger=Ledger(None, BudgetSettings(calls=2)))
    with pytest.raises(BudgetReached):
        await ChatValidator(model, actions=5).validate(draft, environment, 0)
    _, model = table(*carried_out(say), ledger=Ledger(None, BudgetSettings(calls=4)))
    with pytest.raises(BudgetReached):  # before the judge is asked, although there is a reward
        await ChatValidator(model, actions=5).validate(draft, environment, 0)
    _, model = table(act(say, "fillFuelTank", **FUEL))
    with pytest.raises(EnvironmentFault, match="the engine is gone"):
        await ChatValidator(model, actions=5).validate(draft, Graded(environment, 0.0, fault=True), 0)
