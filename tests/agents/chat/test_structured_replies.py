"""Asking a chat model: repair, refusal, costs."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel, Field

from agents.settings import BudgetSettings
from agents.spending import BudgetReached, Ledger, read_requests
from environments.base import InputError

ABOUT = {"subject": "context-1", "iteration": 2}


class Answer(BaseModel):
    """An answer."""

    number: int = Field(ge=0)


async def test_a_reply_and_its_cost(table, say) -> None:
    model, asking = table(say("Answer", number=4))
    answer, measured = await asking.ask(Answer, "system", "prompt", **ABOUT)
    assert answer == Answer(number=4)
    assert (measured.calls, measured.prompt_tokens, measured.completion_tokens) == (1, 100, 10)
    assert [message.type for message in model.sent[0]] == ["system", "human"]


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


async def test_a_cancelled_question_is_recorded(table, tmp_path) -> None:
    _, asking = table(60.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asking.ask(Answer, "system", "prompt", **ABOUT)
    (request,) = read_requests(tmp_path / "spending.jsonl")
    assert (request.outcome, request.faults, request.measured.calls) == ("failed", ("cancelled",), 1)


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
