"""Many questions to an endpoint that often fails: nothing is lost, nothing hangs, all is recorded."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel
from support.faulty_server import Answer, ChatRequest, Fault, FaultyServer, Raw

from agents.settings import BudgetSettings
from agents.spending import Ledger, RoleRefused, read_requests

pytestmark = pytest.mark.slow

QUESTIONS = 40
AT_ONCE = 16
TIMEOUT = 2.0  # seconds, which a stall takes
CAUSES = {
    Fault.MALFORMED: "malformed JSON",
    Fault.SCHEMA: "wrong schema",
    Fault.EMPTY: "empty choices",
    Fault.REFUSAL: "refusal",
    Fault.LIMIT: "HTTP 429",
    Fault.ERROR: "HTTP 500",
    Fault.RESET: "connection failed",
    Fault.STALL: "timeout",
    Fault.LONG: "malformed reply",
    Fault.GARBAGE: "no chat completion",
}


class Echo(BaseModel):
    """What was asked."""

    word: str


def echo(request: ChatRequest) -> dict[str, str]:
    return {"word": request.prompt}


def faulty(request: ChatRequest) -> Fault | None:
    """Every third question meets a fault at first, each kind once or twice."""
    number = int(request.prompt.split()[-1])
    return None if request.attempt or request.repairs or number % 3 else list(Fault)[number // 3 % len(Fault)]


async def test_many_calls_with_a_third_of_them_failing(connect, tmp_path) -> None:
    """One line a question, none lost, none doubled, each with its faults; the first ones are in flight together."""
    path = tmp_path / "spending.jsonl"
    with FaultyServer(echo, faults=faulty, together=AT_ONCE) as server:
        model = connect(server, ledger=Ledger(path, BudgetSettings()), concurrency=AT_ONCE, timeout=TIMEOUT)
        asked = (model.ask(Echo, "system", f"word {n}", subject=f"s-{n}", iteration=0) for n in range(QUESTIONS))
        results = await asyncio.gather(*asked, return_exceptions=True)
    lines = {request.subject: request for request in read_requests(path)}
    assert len(lines) == len(read_requests(path)) == QUESTIONS
    for number, result in enumerate(results):
        line = lines[f"s-{number}"]
        assert line.measured.calls == len(line.faults) + (line.outcome == "answered")
        if isinstance(result, RoleRefused):
            assert line.outcome in ("refused", "failed")
        else:
            assert not isinstance(result, BaseException)
            assert (result[0].word, line.outcome) == (f"word {number}", "answered")
    recorded = {fault.partition(":")[0] for request in lines.values() for fault in request.faults}
    assert set(server.injected) == set(Fault)
    # On a busy machine an answer, faulty or not, may come too late: then that is what is recorded.
    assert "timeout" in recorded
    assert recorded <= set(CAUSES.values())
    assert sum(request.measured.calls for request in lines.values()) == len(server.requests)
    assert server.most_in_flight == AT_ONCE


async def test_a_question_that_waits_for_another_attempt_holds_no_place(connect, tmp_path) -> None:
    """With one place: what is asked second is served before the first question's second attempt."""

    def limited_first(request: ChatRequest) -> Answer:
        limited = request.prompt == "first" and request.attempt == 0
        return Raw(429, {}, {"Retry-After": "0.5"}) if limited else echo(request)

    with FaultyServer(limited_first) as server:
        model = connect(server, ledger=Ledger(tmp_path / "spending.jsonl", BudgetSettings()), concurrency=1)
        asked = (model.ask(Echo, "system", word, subject=word, iteration=0) for word in ("first", "second"))
        answers = await asyncio.gather(*asked)
        assert [(answer.word) for answer, *_ in answers] == ["first", "second"]
        assert [request.prompt for request in server.requests] == ["first", "second", "first"]
