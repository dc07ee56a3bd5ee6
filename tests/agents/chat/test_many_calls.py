"""Hundreds of questions to an endpoint that fails every fifth time: nothing is lost, nothing hangs, all is recorded."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import NamedTuple

import pytest
from pydantic import BaseModel
from support.faulty_server import ChatRequest, Fault, FaultyServer, Schedule

from agents.roles import RoleRefused
from agents.settings import BudgetSettings
from agents.spending import Ledger, Request, read_requests

pytestmark = pytest.mark.slow

QUESTIONS = 150
AT_ONCE = 32
LATENCY = 0.02  # seconds
TIMEOUT = 5.0  # seconds, which a stall takes
KINDS = (*tuple(kind for kind in Fault if kind is not Fault.STALL) * 3, Fault.STALL)
"""A stall holds a place at the endpoint until its timeout: one fault in 28 is one."""
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


class Played(NamedTuple):
    """What one run of all questions gave."""

    results: list[Echo | RoleRefused]
    requests: list[Request]
    injected: Counter[Fault]
    served: int
    most_in_flight: int


def echo(request: ChatRequest) -> dict[str, str]:
    return {"word": request.prompt}


async def play(connect, path, faults: Schedule) -> Played:
    with FaultyServer(echo, latency=LATENCY, faults=faults, together=AT_ONCE) as server:
        ledger = Ledger(path, BudgetSettings())
        model = connect(server, ledger=ledger, concurrency=AT_ONCE, timeout=TIMEOUT)

        async def ask(number: int) -> Echo | RoleRefused:
            try:
                return (await model.ask(Echo, "system", f"word {number}", subject=f"s-{number}", iteration=0))[0]
            except RoleRefused as refusal:
                return refusal

        results = await asyncio.gather(*(ask(number) for number in range(QUESTIONS)))
        served, most = len(server.requests), server.most_in_flight
    return Played(results, read_requests(path), server.injected, served, most)


async def test_many_calls_with_a_fifth_of_them_failing(connect, tmp_path) -> None:
    """The first are answered once as many are in flight as may be: then all places were in use."""
    played = await play(connect, tmp_path / "spending.jsonl", Schedule(0.2, KINDS, seed=1))
    check_recorded(played)
    assert 0.15 < sum(played.injected.values()) / played.served < 0.25
    assert played.most_in_flight == AT_ONCE


async def test_a_question_that_waits_for_another_attempt_holds_no_place(connect, tmp_path) -> None:
    """With one place: what is asked second is served before the first question's second attempt."""

    def limited_first(request: ChatRequest) -> Fault | None:
        return Fault.LIMIT if request.prompt == "first" and request.attempt == 0 else None

    with FaultyServer(echo, faults=limited_first, retry_after="0.5") as server:
        model = connect(server, ledger=Ledger(tmp_path / "spending.jsonl", BudgetSettings()), concurrency=1)
        asked = (model.ask(Echo, "system", word, subject=word, iteration=0) for word in ("first", "second"))
        answers = await asyncio.gather(*asked)
        assert [(answer.word) for answer, *_ in answers] == ["first", "second"]
        assert [request.prompt for request in server.requests] == ["first", "second", "first"]


def check_recorded(bad: Played) -> None:
    lines = {request.subject: request for request in bad.requests}
    assert len(lines) == len(bad.requests) == QUESTIONS, "one line a question, none lost, none doubled"
    for number, result in enumerate(bad.results):
        line = lines[f"s-{number}"]
        if isinstance(result, Echo):
            assert (result.word, line.outcome) == (f"word {number}", "answered")
            assert line.measured.calls == len(line.faults) + 1
        else:
            assert line.outcome in ("refused", "failed")
            assert line.measured.calls == len(line.faults) > 0
    recorded = Counter(fault.partition(":")[0] for request in bad.requests for fault in request.faults)
    injected = Counter({CAUSES[kind]: count for kind, count in bad.injected.items()})
    # On a busy machine an answer, faulty or not, may come too late: then that is what is recorded.
    late = recorded["timeout"] - injected["timeout"]
    assert injected["timeout"] > 0
    assert recorded.keys() == injected.keys()
    assert all(recorded[cause] <= count for cause, count in injected.items() if cause != "timeout")
    assert late >= injected.total() - injected["timeout"] - (recorded.total() - recorded["timeout"])
    assert set(bad.injected) == set(Fault)
    assert sum(request.measured.calls for request in bad.requests) == bad.served
    assert sum(isinstance(result, Echo) for result in bad.results) > 0.9 * QUESTIONS
