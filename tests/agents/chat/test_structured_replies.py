"""Asking a chat model: repair, refusal, deadline, retries, costs."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel, Field

from agents.roles import RoleRefused
from environments.base import InputError


class Answer(BaseModel):
    """An answer."""

    number: int = Field(ge=0)


def failure(kind: type[openai.APIStatusError], status: int) -> openai.APIStatusError:
    response = httpx.Response(status, request=httpx.Request("POST", "http://nowhere"))
    return kind("no", response=response, body=None)


async def test_a_reply_and_its_cost(table, say) -> None:
    model, asking = table(say("Answer", number=4))
    answer, measured = await asking.ask(Answer, "system", "prompt")
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
    answer, measured = await asking.ask(Answer, "system", "prompt")
    assert answer.number == 1
    assert (measured.calls, measured.prompt_tokens, measured.completion_tokens) == (2, 200, 20)
    repair = model.sent[1]
    assert [message.type for message in repair] == ["system", "human", "ai", "human"]
    assert told in repair[-1].content


async def test_prose_is_repaired_too(table, say) -> None:
    model, asking = table(AIMessage(content="I think it is 4"), say("Answer", number=4))
    answer, _ = await asking.ask(Answer, "system", "prompt")
    assert answer.number == 4
    assert "I think it is 4" in model.sent[1][2].content


async def test_after_one_repair_it_is_refused(table, say) -> None:
    model, asking = table(say("Answer", number=-1), say("Answer", number=-2), say("Answer", number=3))
    with pytest.raises(RoleRefused, match=r"after one repair.*greater than"):
        await asking.ask(Answer, "system", "prompt")
    assert len(model.sent) == 2


async def test_a_check_is_told_and_knows_the_last_try(table, say) -> None:
    model, asking = table(say("Answer", number=1), say("Answer", number=1))
    seen = []

    def check(answer: Answer, final: bool) -> str | None:
        seen.append(final)
        return None if final else "1 is too small"

    answer, _ = await asking.ask(Answer, "system", "prompt", check)
    assert answer.number == 1
    assert seen == [False, True]
    assert "1 is too small" in model.sent[1][-1].content


async def test_a_refusal_is_not_repaired(table) -> None:
    model, asking = table(AIMessage(content="", additional_kwargs={"refusal": "I will not"}))
    with pytest.raises(RoleRefused, match="I will not"):
        await asking.ask(Answer, "system", "prompt")
    assert len(model.sent) == 1


async def test_a_request_has_a_deadline_and_is_tried_again(table, say) -> None:
    _, asking = table(60.0, say("Answer", number=2), timeout=1.0)
    answer, measured = await asking.ask(Answer, "system", "prompt")
    assert answer.number == 2
    assert measured.calls == 2


async def test_retries_are_bounded(table) -> None:
    model, asking = table(60.0, 60.0, 60.0, timeout=0.2)
    with pytest.raises(RoleRefused, match=r"3 attempts.*no answer in 0\.2 s"):
        await asking.ask(Answer, "system", "prompt")
    assert len(model.sent) == 3


@pytest.mark.parametrize(
    "passing",
    [
        failure(openai.RateLimitError, 429),
        failure(openai.InternalServerError, 503),
        ConnectionResetError("gone"),
        httpx.ConnectError("no route"),
    ],
)
async def test_passing_failures_are_tried_again(table, say, passing: Exception) -> None:
    _, asking = table(passing, say("Answer", number=2))
    answer, _ = await asking.ask(Answer, "system", "prompt")
    assert answer.number == 2


@pytest.mark.parametrize("wrong", [failure(openai.AuthenticationError, 401), failure(openai.NotFoundError, 404)])
async def test_a_wrong_key_or_model_is_the_users_mistake(table, wrong: Exception) -> None:
    model, asking = table(wrong)
    with pytest.raises(InputError, match="OPENAI_API_KEY"):
        await asking.ask(Answer, "system", "prompt")
    assert len(model.sent) == 1


async def test_a_rejected_request_ends_the_branch(table) -> None:
    _, asking = table(failure(openai.BadRequestError, 400))
    with pytest.raises(RoleRefused, match="rejected"):
        await asking.ask(Answer, "system", "prompt")


async def test_cancelling_is_not_taken_for_a_deadline(table) -> None:
    _, asking = table(60.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asking.ask(Answer, "system", "prompt")
