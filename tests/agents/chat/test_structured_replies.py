"""Asking a chat model: repair, refusal, deadline, retries, costs."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import openai
import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel, Field

from agents.chat.http import NoCompletion
from agents.roles import RoleRefused
from agents.settings import BudgetSettings
from agents.spending import BudgetReached, Ledger, read_requests
from environments.base import InputError

REQUEST = httpx2.Request("POST", "http://nowhere")
ABOUT = {"subject": "context-1", "iteration": 2}


class Answer(BaseModel):
    """An answer."""

    number: int = Field(ge=0)


def failure(kind: type[openai.APIStatusError], status: int) -> openai.APIStatusError:
    response = httpx2.Response(status, request=REQUEST)
    return kind("no", response=response, body=None)


async def test_a_reply_and_its_cost(table, say) -> None:
    model, asking = table(say("Answer", number=4))
    answer, measured = await asking.ask(Answer, "system", "prompt", **ABOUT)
    assert answer == Answer(number=4)
    assert (measured.calls, measured.prompt_tokens, measured.completion_tokens) == (1, 100, 10)
    assert [message.type for message in model.sent[0]] == ["system", "human"]


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"number": -1}, "greater than or equal to 0"),
        ({}, "number"),
        ({"number": "many"}, "valid integer"),
    ],
)
async def test_a_malformed_reply_is_repaired_once(table, say, bad: dict, told: str) -> None:
    model, asking = table(say("Answer", **bad), say("Answer", number=1))
    answer, measured = await asking.ask(Answer, "system", "prompt", **ABOUT)
    assert answer.number == 1
    assert (measured.calls, measured.prompt_tokens, measured.completion_tokens) == (2, 200, 20)
    repair = model.sent[1]
    assert [message.type for message in repair] == ["system", "human", "ai", "human"]
    assert told in repair[-1].content


async def test_prose_is_repaired_too(table, say) -> None:
    model, asking = table(AIMessage(content="I think it is 4"), say("Answer", number=4))
    answer, _ = await asking.ask(Answer, "system", "prompt", **ABOUT)
    assert answer.number == 4
    assert "I think it is 4" in model.sent[1][2].content


async def test_after_one_repair_it_is_refused(table, say) -> None:
    model, asking = table(say("Answer", number=-1), say("Answer", number=-2), say("Answer", number=3))
    with pytest.raises(RoleRefused, match=r"after one repair.*greater than"):
        await asking.ask(Answer, "system", "prompt", **ABOUT)
    assert len(model.sent) == 2


async def test_a_check_is_told_and_knows_the_last_try(table, say) -> None:
    model, asking = table(say("Answer", number=1), say("Answer", number=1))
    seen = []

    def check(answer: Answer, final: bool) -> str | None:
        seen.append(final)
        return None if final else "1 is too small"

    answer, _ = await asking.ask(Answer, "system", "prompt", check, **ABOUT)
    assert answer.number == 1
    assert seen == [False, True]
    assert "1 is too small" in model.sent[1][-1].content


async def test_a_refusal_is_not_repaired(table) -> None:
    model, asking = table(AIMessage(content="", additional_kwargs={"refusal": "I will not"}))
    with pytest.raises(RoleRefused, match="I will not"):
        await asking.ask(Answer, "system", "prompt", **ABOUT)
    assert len(model.sent) == 1


@pytest.mark.slow
async def test_a_request_has_a_deadline_and_is_tried_again(table, say) -> None:
    _, asking = table(60.0, say("Answer", number=2), timeout=1.0)
    answer, measured = await asking.ask(Answer, "system", "prompt", **ABOUT)
    assert answer.number == 2
    assert measured.calls == 2


async def test_retries_are_bounded(table) -> None:
    model, asking = table(60.0, 60.0, 60.0, timeout=0.2)
    with pytest.raises(RoleRefused, match=r"3 attempts.*no answer in 0\.2 s"):
        await asking.ask(Answer, "system", "prompt", **ABOUT)
    assert len(model.sent) == 3


@pytest.mark.parametrize(
    "passing",
    [
        failure(openai.RateLimitError, 429),
        failure(openai.InternalServerError, 503),
        ConnectionResetError("gone"),
        openai.APIConnectionError(request=REQUEST),
        NoCompletion("empty choices"),
    ],
)
async def test_passing_failures_are_tried_again(table, say, passing: Exception) -> None:
    _, asking = table(passing, say("Answer", number=2))
    answer, _ = await asking.ask(Answer, "system", "prompt", **ABOUT)
    assert answer.number == 2


@pytest.mark.parametrize("wrong", [failure(openai.AuthenticationError, 401), failure(openai.NotFoundError, 404)])
async def test_a_wrong_key_or_model_is_the_users_mistake(table, wrong: Exception) -> None:
    model, asking = table(wrong)
    with pytest.raises(InputError, match="OPENAI_API_KEY"):
        await asking.ask(Answer, "system", "prompt", **ABOUT)
    assert len(model.sent) == 1


async def test_a_rejected_request_ends_the_branch(table) -> None:
    _, asking = table(failure(openai.BadRequestError, 400))
    with pytest.raises(RoleRefused, match="rejected"):
        await asking.ask(Answer, "system", "prompt", **ABOUT)


async def test_cancelling_is_not_taken_for_a_deadline(table) -> None:
    _, asking = table(60.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asking.ask(Answer, "system", "prompt", **ABOUT)


async def test_every_question_is_recorded_with_its_faults(table, say, tmp_path) -> None:
    passing = failure(openai.RateLimitError, 429)
    _, asking = table(passing, say("Answer", number=-1), say("Answer", number=1))
    _, measured = await asking.ask(Answer, "system", "prompt", **ABOUT)
    _, asking = table(*[passing] * 3)
    with pytest.raises(RoleRefused):
        await asking.ask(Answer, "system", "prompt", **ABOUT)
    _, asking = table(AIMessage(content="", additional_kwargs={"refusal": "I will not"}))
    with pytest.raises(RoleRefused):
        await asking.ask(Answer, "system", "prompt", **ABOUT)
    answered, failed, refused = read_requests(tmp_path / "spending.jsonl")
    assert (answered.role, answered.subject, answered.iteration) == ("explorer", "context-1", 2)
    assert (answered.outcome, answered.measured.calls) == ("answered", 3)
    assert answered.measured == measured
    assert answered.faults == ("HTTP 429: no", "wrong schema: number: Input should be greater than or equal to 0")
    assert (failed.outcome, failed.faults) == ("failed", ("HTTP 429: no",) * 3)
    assert (refused.outcome, refused.faults) == ("refused", ("refusal: I will not",))


async def test_a_cancelled_question_is_recorded(table, tmp_path) -> None:
    _, asking = table(60.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asking.ask(Answer, "system", "prompt", **ABOUT)
    (request,) = read_requests(tmp_path / "spending.jsonl")
    assert (request.outcome, request.faults, request.measured.calls) == ("failed", ("cancelled",), 1)


class Skipping(asyncio.SelectorEventLoop):
    """A loop whose clock stands still while it works, and skips to the next timer when it would wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        select = self._selector.select

        def skipped(timeout: float | None = None) -> list[Any]:
            self.now += timeout or 0.0
            return select(0 if timeout is not None else None)

        self._selector.select = skipped

    def time(self) -> float:
        return self.now


def seconds_asked(asking) -> float:
    """Ask on such a loop, in vain; return the seconds that its clock says it took."""
    with asyncio.Runner(loop_factory=Skipping) as runner:
        with pytest.raises(RoleRefused, match="no answer"):
            runner.run(asking.ask(Answer, "system", "prompt", **ABOUT))
        return runner.get_loop().time()


def test_the_deadline_of_a_question_ends_further_attempts(table, say) -> None:
    model, asking = table(600.0, 600.0, say("Answer", number=1), timeout=20.0, deadline=30.0, max_retries=5)
    assert seconds_asked(asking) == pytest.approx(30.0, abs=0.1)
    assert len(model.sent) == 2


def test_a_repair_turn_has_what_the_first_turn_left_of_the_deadline(table, say) -> None:
    model, asking = table(20.0, say("Answer", number=-1), 600.0, timeout=30.0, deadline=30.0, max_retries=0)
    assert seconds_asked(asking) == pytest.approx(30.0, abs=0.1)
    assert len(model.sent) == 2


@pytest.mark.parametrize("budget", [{"calls": 1}, {"tokens": 100}, {"money": 0.0001}])
async def test_a_spent_budget_sends_nothing_more(table, say, tmp_path, budget: dict) -> None:
    """The question that reaches it is repaired no more, the next one is not sent at all."""
    path = tmp_path / "spending.jsonl"
    ledger = Ledger(path, BudgetSettings(**budget))
    prices = {"price_prompt": 2.0, "price_completion": 8.0}
    model, asking = table(say("Answer", number=-1), say("Answer", number=1), ledger=ledger, **prices)
    with pytest.raises(BudgetReached, match=rf"roles\.budget\.{next(iter(budget))} \(.*\) is spent: raise it"):
        await asking.ask(Answer, "system", "prompt", **ABOUT)
    with pytest.raises(BudgetReached):
        await asking.ask(Answer, "system", "prompt", **ABOUT)
    assert len(model.sent) == 1
    (request,) = read_requests(path)
    assert (request.outcome, len(request.faults)) == ("refused", 2)
    assert request.measured.money == pytest.approx((100 * 2 + 10 * 8) / 1e6)
    assert Ledger(path, BudgetSettings(**budget)).reached() == f"roles.budget.{next(iter(budget))}"


async def test_a_budget_of_tokens_needs_an_endpoint_that_counts_them(table) -> None:
    uncounted = AIMessage(content="", tool_calls=[{"name": "Answer", "args": {"number": 1}, "id": "1"}])
    _, asking = table(uncounted)
    await asking.ask(Answer, "system", "prompt", **ABOUT)
    _, asking = table(uncounted, ledger=Ledger(None, BudgetSettings(tokens=1000)))
    with pytest.raises(InputError, match=r"does not say how many tokens.*roles\.budget\.calls"):
        await asking.ask(Answer, "system", "prompt", **ABOUT)
