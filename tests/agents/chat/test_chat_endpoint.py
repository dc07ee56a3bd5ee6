"""Real requests through ChatOpenAI to a server that fails on purpose: faults, formats, limits, the key."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field, JsonValue
from support.faulty_server import KEY, ChatRequest, Fault, FaultyServer, Raw, completion
from support.faulty_server import Answer as ServerAnswer

from agents.chat.sending import EndpointFailed
from agents.settings import BudgetSettings
from agents.spending import BudgetReached, Ledger, RoleRefused, read_requests
from environments.base import InputError

pytestmark = pytest.mark.slow

ABOUT: dict[str, Any] = {"subject": "context-1", "iteration": 0}


class Answer(BaseModel):
    """An answer."""

    number: int = Field(ge=0)
    arguments: dict[str, JsonValue] = {}


def four(request: ChatRequest) -> ServerAnswer:
    return {"number": 4}


def first(answer: ServerAnswer | Callable[[ChatRequest], ServerAnswer]) -> Callable[[ChatRequest], ServerAnswer]:
    """``answer`` to what is sent for the first time, and a good reply to everything after it."""

    def reply(request: ChatRequest) -> ServerAnswer:
        if request.attempt or request.repairs:
            return {"number": 4}
        return answer(request) if callable(answer) else answer

    return reply


FAULTS = {
    Fault.MALFORMED: "malformed JSON: ",
    Fault.SCHEMA: "wrong schema: number: Field required",
    Fault.EMPTY: "empty choices",
    Fault.LIMIT: "HTTP 429: too many requests",
    Fault.ERROR: "HTTP 500: the server had an error",
    Fault.RESET: "connection failed: ReadError",
    Fault.STALL: "timeout: no answer in 0.5 s",
    Fault.LONG: "malformed reply: it has more than 200000 characters",
    Fault.GARBAGE: "no chat completion: Invalid JSON",
}


def timeout_of(fault: Fault) -> float:
    """Short where the endpoint never answers alone: on a busy machine a prompt answer may take longer."""
    return 0.5 if fault is Fault.STALL else 20.0


@pytest.mark.parametrize(("fault", "cause"), FAULTS.items())
async def test_a_fault_is_recorded_and_made_good(connect, tmp_path, fault: Fault, cause: str) -> None:
    with FaultyServer(first(fault)) as server:
        reply, measured = await connect(server, timeout=timeout_of(fault)).ask(Answer, "s", "p", **ABOUT)
    assert (reply.number, server.injected) == (4, {fault: 1})
    (request,) = read_requests(tmp_path / "spending.jsonl")
    assert request.outcome == "answered"
    assert request.model == "some-model"
    assert measured.calls == 1 + len(request.faults)
    assert request.faults[0].startswith(cause)
    # On a busy machine an answer that does not stall may also be later than the short timeout.
    assert fault is Fault.STALL or len(request.faults) == 1
    assert {one[: len(cause)] for one in request.faults} == {cause}


@pytest.mark.parametrize(("fault", "cause"), FAULTS.items())
async def test_a_fault_that_stays_is_a_recorded_refusal(connect, tmp_path, fault: Fault, cause: str) -> None:
    with FaultyServer(lambda request: fault) as server, pytest.raises(RoleRefused) as caught:
        await connect(server, timeout=timeout_of(fault), max_retries=2).ask(Answer, "s", "p", **ABOUT)
    answered = fault in (Fault.MALFORMED, Fault.SCHEMA, Fault.LONG)
    (request,) = read_requests(tmp_path / "spending.jsonl")
    assert request.outcome == ("refused" if answered else "failed")
    assert isinstance(caught.value, EndpointFailed) is not answered
    assert len(request.faults) == request.measured.calls == len(server.requests) == (2 if answered else 3)
    assert cause.partition(":")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "told", "calls"),
    [
        (Fault.REFUSAL, "the model refused: I can't help with that", 1),
        (lambda r: Raw(200, completion(r, {"content": ""}, "content_filter")), "content filter", 1),
        (lambda r: Raw(200, completion(r, {"content": '{"number": '}, "length")), r"cut off at max_tokens, 50\)", 2),
        (Raw(400, {"error": {"message": "maximum context length"}}), "rejected the request: HTTP 400: maximum", 1),
        (Raw(413, {"error": {"message": "too large"}}), "rejected the request: HTTP 413", 1),
        (Raw(200, {"error": {"message": "overloaded"}}), "no chat completion: choices: Field required.*overloaded", 2),
        (lambda r: Raw(200, {**completion(r, {}), "choices": None}), "no chat completion: choices", 2),
        (
            lambda r: Raw(200, completion(r, {"role": "system", "content": "x"})),
            "choices.0.message.role: Input should be 'assistant'",
            2,
        ),
        (lambda r: Raw(200, completion(r, {"content": 7})), "no chat completion: choices.0.message.content", 2),
    ],
)
async def test_what_else_endpoints_answer(connect, answer: Any, told: str, calls: int) -> None:
    with FaultyServer(lambda request: answer(request) if callable(answer) else answer) as server:
        model = connect(server, max_retries=1, max_tokens=50)
        with pytest.raises(RoleRefused, match=told):
            await model.ask(Answer, "s", "p", **ABOUT)
    assert len(server.requests) == calls
    assert server.requests[0].body["max_completion_tokens"] == 50


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        ({"prompt_tokens": -(10**9), "completion_tokens": 1}, "greater than or equal to 0"),
        ({"prompt_tokens": 1, "completion_tokens": -1}, "greater than or equal to 0"),
        ({"prompt_tokens": 10**400, "completion_tokens": 1}, "less than or equal to 1000000000"),
    ],
)
async def test_a_usage_that_is_no_count_lowers_nothing(connect, tmp_path, usage: dict, told: str) -> None:
    def answer(request: ChatRequest) -> Raw:
        return Raw(200, {**completion(request, {"content": '{"number": 4}'}), "usage": usage})

    with FaultyServer(answer) as server, pytest.raises(EndpointFailed, match=told):
        await connect(server, max_retries=1).ask(Answer, "s", "p", **ABOUT)
    (request,) = read_requests(tmp_path / "spending.jsonl")
    assert (request.measured.calls, len(server.requests)) == (2, 2)
    assert (request.measured.prompt_tokens, request.measured.completion_tokens, request.measured.money) == (0, 0, 0.0)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_one_request_and_reaches_no_other_host(connect, tmp_path, status: int) -> None:
    with FaultyServer(four) as other, FaultyServer(lambda request: Raw(status, {}, {"location": other.url})) as server:
        with pytest.raises(InputError, match=rf"HTTP {status}: a redirect to {other.url}.*roles\.explorer\.base_url"):
            await connect(server).ask(Answer, "s", "p", **ABOUT)
        assert (len(server.requests), len(other.requests)) == (1, 0)
    (request,) = read_requests(tmp_path / "spending.jsonl")
    assert (request.measured.calls, request.outcome) == (1, "failed")


@pytest.mark.parametrize("bound", [True, False])
async def test_no_secret_reaches_an_address_that_the_user_bound_no_key_to(connect, monkeypatch, bound: bool) -> None:
    for name in ("OPENAI_ORG_ID", "OPENAI_ORGANIZATION", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, f"secret-of-{name}")
    with FaultyServer(four) as server:
        await connect(server, bound=bound).ask(Answer, "s", "p", **ABOUT)
    (request,) = server.requests
    assert request.authorization == (f"Bearer {KEY}" if bound else "")
    allowed = {"accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host"}
    assert set(request.headers) <= allowed


@pytest.mark.parametrize("status", [401, 402, 403, 404])
async def test_what_the_user_must_put_right(connect, tmp_path, status: int) -> None:
    with FaultyServer(lambda request: Raw(status, {"error": {"message": "no"}})) as server:
        model = connect(server)
        with pytest.raises(InputError, match=rf"HTTP {status}: no.*OPENAI_API_KEY, roles\.explorer\.model"):
            await model.ask(Answer, "s", "p", **ABOUT)
    assert len(server.requests) == 1
    assert read_requests(tmp_path / "spending.jsonl")[0].outcome == "failed"


async def test_json_schema_is_asked_for_first(connect) -> None:
    with FaultyServer(four) as server:
        await connect(server).ask(Answer, "s", "p", **ABOUT)
    (request,) = server.requests
    form = request.body["response_format"]
    assert (form["type"], form["json_schema"]["name"], form["json_schema"]["strict"]) == (
        "json_schema",
        "Answer",
        False,
    )
    assert form["json_schema"]["schema"]["required"] == ["number"]
    assert "tools" not in request.body
    assert '"arguments"' in request.system, "an endpoint that ignores the format shows the schema all the same"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ({"max_completion_tokens": "max_tokens"}, "it gets max_tokens in its place"),
        ({"temperature": None}, "its own is used"),
        ({"response_format": None}, "the prompt alone describes it"),
        ({"max_completion_tokens": "max_tokens", "temperature": None, "response_format": None}, "max_tokens"),
    ],
)
async def test_a_parameter_that_is_not_taken_is_changed_said_once_and_remembered(
    connect, tmp_path, capfd, names: dict[str, str | None], told: str
) -> None:
    def answer(request: ChatRequest) -> ServerAnswer:
        unknown = next((name for name in names if name in request.body), None)
        return {"number": 4} if unknown is None else Raw(400, {"detail": f"unknown parameter: {unknown}"})

    with FaultyServer(answer) as server:
        for _ in range(2):  # roles with the same model
            model = connect(server, temperature=0.5, max_tokens=77)
            assert (await model.ask(Answer, "s", "p", **ABOUT))[0].number == 4
    assert len(server.requests) == len(names) + 2
    last = server.requests[-1].body
    assert not names.keys() & last.keys()
    assert {name: last[name] for name in names.values() if name} == {name: 77 for name in names.values() if name}
    first_request, second_request = read_requests(tmp_path / "spending.jsonl")
    assert (len(first_request.faults), first_request.measured.calls) == (len(names), len(names) + 1)
    assert (second_request.faults, second_request.measured.calls) == ((), 1)
    said = capfd.readouterr().err
    assert (said.count("the endpoint does not take"), told in said) == (len(names), True)


async def test_a_limit_of_tokens_under_neither_name_is_not_dropped(connect) -> None:
    def answer(request: ChatRequest) -> Raw:
        (name,) = {"max_tokens", "max_completion_tokens"} & request.body.keys()
        return Raw(400, {"error": {"message": f"Unsupported parameter: '{name}'"}})

    with FaultyServer(answer) as server, pytest.raises(EndpointFailed, match="Unsupported parameter: 'max_tokens'"):
        await connect(server).ask(Answer, "s", "p", **ABOUT)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            Raw(403, {"error": {"code": 403, "message": "The input was flagged by moderation"}}),
            "refused these messages",
        ),
        (Raw(200, {"error": {"code": 403, "message": "The input was flagged"}}), "refused these messages"),
        (lambda r: Raw(200, completion(r, {"content": ""}, "content_filter: SAFETY")), "content filter stopped it"),
        (Raw(500, {"error": {"message": "Context size has been exceeded."}}), "rejected the request: HTTP 500"),
    ],
)
async def test_prompts_that_are_refused_or_too_long_end_their_questions_alone(
    connect, tmp_path, answer: Any, told: str
) -> None:
    def reply(request: ChatRequest) -> ServerAnswer:
        if request.prompt == "p 9":
            return {"number": 4}
        return answer(request) if callable(answer) else answer

    with FaultyServer(reply) as server:
        model = connect(server)
        for number in range(9):  # more than stop a role that gets nothing to read
            with pytest.raises(RoleRefused, match=told):
                await model.ask(Answer, "s", f"p {number}", **ABOUT)
        assert (await model.ask(Answer, "s", "p 9", **ABOUT))[0].number == 4
    assert len(server.requests) == 10, "none was sent again"


async def test_an_endpoint_that_rejects_json_schema_gets_the_prompt_alone_from_then_on(connect, tmp_path) -> None:
    told = Raw(400, {"error": {"message": "'response_format' of type 'json_schema' is not supported with this model"}})
    with FaultyServer(lambda request: told if "response_format" in request.body else {"number": 4}) as server:
        model = connect(server)
        for _ in range(2):
            assert (await model.ask(Answer, "s", "p", **ABOUT))[0].number == 4
    assert ["response_format" in request.body for request in server.requests] == [True, False, False]
    assert all('"arguments"' in request.system for request in server.requests)
    first_request, second_request = read_requests(tmp_path / "spending.jsonl")
    assert first_request.faults[0].startswith("HTTP 400: 'response_format'")
    assert (first_request.measured.calls, second_request.faults) == (2, ())


async def test_a_prompt_alone_that_is_rejected_too_is_a_refusal(connect) -> None:
    told = {"error": {"message": "no response_format, and no messages"}}
    with FaultyServer(lambda request: Raw(400, told)) as server, pytest.raises(RoleRefused, match="and no messages"):
        await connect(server).ask(Answer, "s", "p", **ABOUT)
    assert len(server.requests) == 2


async def test_prose_is_repaired(connect) -> None:
    with FaultyServer(lambda request: {"number": 4} if request.repairs else "I think it is four.") as server:
        assert (await connect(server).ask(Answer, "s", "p", **ABOUT))[0].number == 4
    assert server.requests[1].messages[2]["content"] == "I think it is four."


async def test_a_retry_after_is_honoured_and_one_beyond_two_minutes_ends_the_question(connect) -> None:
    def limited(seconds: str) -> Callable[[ChatRequest], ServerAnswer]:
        return lambda request: {"number": 4} if request.attempt else Raw(429, {}, {"Retry-After": seconds})

    with FaultyServer(limited("0.2")) as server:
        before = time.monotonic()
        assert (await connect(server).ask(Answer, "s", "p", **ABOUT))[0].number == 4
    assert time.monotonic() - before >= 0.2
    with FaultyServer(limited("86400")) as server, pytest.raises(EndpointFailed, match=r"in 1 attempt; .*HTTP 429"):
        await connect(server).ask(Answer, "s", "p", **ABOUT)


async def test_no_more_requests_than_allowed_are_in_flight_over_all_roles(connect) -> None:
    with FaultyServer(four, latency=0.05) as server:
        models = [connect(server, concurrency=4) for _ in range(3)]
        asks = (models[n % 3].ask(Answer, "s", f"p {n}", **ABOUT) for n in range(40))
        await asyncio.gather(*asks)
    assert server.most_in_flight == 4


async def test_waiting_for_a_place_is_not_the_endpoints_fault(connect, tmp_path) -> None:
    """Ten questions, one place, 0.2 s each: the last waits for longer than the timeout of a request."""
    with FaultyServer(four, latency=0.2) as server:
        model = connect(server, concurrency=1, timeout=1.5)
        replies = await asyncio.gather(*(model.ask(Answer, "s", f"p {n}", **ABOUT) for n in range(10)))
    assert len(replies) == 10
    assert all(request.faults == () for request in read_requests(tmp_path / "spending.jsonl"))


def test_one_model_serves_one_event_loop_after_the_other(connect) -> None:
    with FaultyServer(four) as server:
        model = connect(server, max_retries=0)
        for _ in range(2):
            assert asyncio.run(model.ask(Answer, "s", "p", **ABOUT))[0].number == 4


@pytest.mark.parametrize(("name", "most"), [("calls", 5), ("tokens", 5 + 3), ("money", 5 + 3)])
async def test_a_budget_is_overrun_by_what_is_in_flight_at_most(connect, tmp_path, name: str, most: int) -> None:
    def answer(request: ChatRequest) -> ServerAnswer:
        usage = {"prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100}
        return Raw(200, {**completion(request, {"content": '{"number": 4}'}), "usage": usage})

    limit = {"calls": 5, "tokens": 500, "money": 500 / 1e6}[name]
    path = tmp_path / "budget.jsonl"
    ledger = Ledger(path, BudgetSettings.model_validate({name: limit}))
    with FaultyServer(answer, latency=0.02) as server:
        model = connect(server, ledger=ledger, concurrency=4, price_prompt=1.0, price_completion=1.0)
        asks = (model.ask(Answer, "s", f"p {n}", **ABOUT) for n in range(30))
        results = await asyncio.gather(*asks, return_exceptions=True)
    refused = [one for one in results if isinstance(one, BudgetReached)]
    assert 5 <= len(server.requests) == 30 - len(refused) <= most
    assert {str(one).partition(" ")[0] for one in refused} == {f"roles.budget.{name}"}
    assert Ledger(path, BudgetSettings()).spent().calls == len(server.requests)
    assert ledger.spent().money == pytest.approx(len(server.requests) * 100 / 1e6)


class Echoing(FaultyServer):
    """Repeats the Authorization header in whatever it answers, and in a header."""

    def _raw(self, answer: ServerAnswer, request: ChatRequest) -> Raw:
        raw = super()._raw(answer, request)
        body = {"error": {"message": f"no: {request.authorization}"}} if isinstance(answer, Raw) else raw.body
        return Raw(raw.status, body, {**raw.headers, "x-echo": request.authorization})


@pytest.mark.parametrize("kind", ["401", "429", "500", "400", "200", "reply", "prose", "refusal"])
async def test_the_key_stays_where_it_is(connect, tmp_path, caplog, kind: str) -> None:
    """Not in an error, its traceback, the ledger, the log at its most talkative, or a later prompt."""
    caplog.set_level(logging.DEBUG)

    def answer(request: ChatRequest) -> ServerAnswer:
        said = {
            "reply": {"number": 4, "arguments": {"header": request.authorization}},
            "prose": f"You sent {request.authorization}.",
            "refusal": Raw(200, {}),
        }
        return said[kind] if kind in ("reply", "prose") else Raw(int(kind) if kind.isdigit() else 200, {})

    told = ""
    with Echoing(answer) as server:
        model = connect(server, max_retries=1)
        try:
            reply, _ = await model.ask(Answer, "s", "p", **ABOUT)
            told = str(reply)
            assert reply.arguments == {"header": "Bearer [key]"}
        except (RoleRefused, InputError) as error:
            told = "".join(traceback.format_exception(error)) + repr(error)
        assert all(request.authorization == f"Bearer {KEY}" for request in server.requests)
        sent = "".join(str(request.body) for request in server.requests)
    assert "[key]" in told + sent
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for text in (told, sent, caplog.text, repr(model), str(vars(model)), written.decode(errors="replace")):
        assert KEY not in text


async def test_a_further_model_reads_no_certificates(connect, monkeypatch) -> None:
    with FaultyServer(four) as server:
        connect(server)
        monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_: pytest.fail("it read them again"))
        for _ in range(2):
            assert (await connect(server).ask(Answer, "s", "p", **ABOUT))[0].number == 4
