"""Sends the requests of one question: concurrency, timeouts, budgets, faults and costs.

openai's client sends a request again where that may help (408, 409, 429, 5xx, a lost connection, a timeout), after what
a Retry-After asks for or after 0.5 s, doubled each time, 8 s at most. Each of its attempts goes through ``attempt``,
which counts it, so that budgets and the limit of requests in flight hold for every one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, TypeVar
from weakref import WeakKeyDictionary

import httpx2
from openai import APIConnectionError, APIStatusError

from agents.chat.endpoint import Endpoint
from agents.chat.replies import shortened
from agents.roles import RoleRefused
from agents.settings import ChatSettings
from agents.spending import Breaker, BudgetReached, Ledger, RepeatedFailure, Request, added, encodable
from environments.base import InputError
from memory.records import Measured

LONGEST_FAULT = 300
BODY_SHOWN = 120
MILLION = 1_000_000
FaultKind = Literal["passing", "mistake", "format", "length", "rejected"]
_PASSING = frozenset({408, 409, 429})
_USERS_MISTAKES = frozenset({401, 402, 403, 404})
_WORDS: dict[FaultKind, tuple[frozenset[int], tuple[str, ...]]] = {
    "format": (frozenset({400, 422}), ("response_format", "json_schema", "structured output")),
    "length": (
        frozenset({400, 413, 422}),
        ("context length", "context_length", "context window", "maximum context", "prompt is too long"),
    ),
}
"""Of a fault's kind: the statuses that it has, and the words of which one is in the response."""

Usage = tuple[int, int]
"""Prompt and completion tokens that a response reports."""
Reply = TypeVar("Reply")
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], asyncio.Semaphore]] = WeakKeyDictionary()


class Fault(httpx2.RequestError):
    """One failed request; raised where there is no response, which openai's client takes for a lost connection.

    ``kind``: ``passing``, a retry may succeed; ``mistake``, the key, the model's name or the account is refused;
    ``format``, the endpoint may have rejected the JSON schema as reply format; ``length``, the messages do not fit the
    model's context; ``rejected``, anything else. The text begins with the kind of cause, as in ``HTTP 429: too many
    requests``. ``usage`` are the tokens that the response reports as used.
    """

    def __init__(self, text: str, kind: FaultKind = "passing", usage: Usage = (0, 0)) -> None:
        super().__init__(text)
        self.kind: FaultKind = kind
        self.usage = usage


def fault_of(response: httpx2.Response) -> Fault:
    """Classify a response, which was read, with another status than success."""
    status = response.status_code
    if response.is_redirect:
        place = response.headers.get("location", "")
        return Fault(f"HTTP {status}: a redirect to {place:.200}, which is not followed", "mistake")
    text, whole = f"HTTP {status}: {_said(response.text)}", response.text.lower()
    if status in _PASSING or status >= 500:
        return Fault(text)
    if status in _USERS_MISTAKES:
        return Fault(text, "mistake")
    for kind, (statuses, words) in _WORDS.items():
        if status in statuses and any(word in whole for word in words):
            return Fault(text, kind)
    return Fault(text, "rejected")


def _said(body: str) -> str:
    """Return the message of an error's body, else how the body begins: a page of a proxy, JSON without a message."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    error = content.get("error", content) if isinstance(content, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    if message or not body:
        return str(message or "")
    return f"the response begins with {body[:BODY_SHOWN]!r}"


class EndpointFailed(RoleRefused):
    """The endpoint gave no readable answer after all retries."""


class ContextExceeded(EndpointFailed):
    """The endpoint rejected a request that is longer than the model's context."""


class FormatRejected(EndpointFailed):
    """The endpoint does not take a JSON schema as the format of a reply."""


@dataclass
class Question:
    """The faults and costs of one ``ask`` so far.

    ``failed``: the fault of the last request, None where it was answered.
    ``cost.seconds`` covers requests, not pauses and not waiting for a free slot at the endpoint. ``read``: a reply
    fitted the schema, usable or not.
    """

    subject: str
    faults: list[str] = field(default_factory=list)
    failed: Fault | None = None
    cost: Measured = field(default_factory=Measured)
    read: bool = False


class Delivery:
    """Sends the requests of one role to its endpoint: attempts, timeouts, budgets and costs."""

    def __init__(self, endpoint: Endpoint, settings: ChatSettings, ledger: Ledger, concurrency: int) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._ledger = ledger
        self._concurrency = concurrency
        self._breaker = Breaker()

    def works(self, question: Question) -> None:
        """Note that ``question`` got what can be read: one that does not fails."""
        question.read = True
        self._breaker.succeeded()

    def _stop_where_hopeless(self, failure: RoleRefused) -> None:
        """Raise RepeatedFailure after too many consecutive failures; questions in progress end with it, too."""
        row = self._breaker.failed()
        if row is None:
            return
        endpoint = self._endpoint
        advice = f"try a larger {endpoint.setting('max_tokens')} or another model"
        if isinstance(failure, EndpointFailed):
            limit, does = ("--concurrency", " and calls tools") if endpoint.commanded else ("roles.concurrency", "")
            url = endpoint.setting("base_url")
            advice = f"check {url} and whether the endpoint answers{does}, lower {limit} if it is limited"
        stopped = RepeatedFailure(
            f"{endpoint.owner} ({endpoint.base_url}, model {endpoint.model}): {row} questions in a row got no reply "
            f"that can be read, the last: {failure}; the ledger has all of them. To go on, {advice}"
        )
        self._breaker.stop(stopped)
        raise stopped from None

    @contextmanager
    def recorded(self, question: Question, iteration: int | None) -> Iterator[None]:
        """Add a line on ``question`` to the ledger when the block ends, also where it is cancelled.

        ``iteration`` is None for D_0 and outside of a run. A question that sent nothing has no line. Raises
        RepeatedFailure instead of RoleRefused after too many consecutive questions that got nothing to read.
        """
        outcome: Literal["answered", "refused", "failed"] = "failed"
        try:
            yield
            outcome = "answered"
        except asyncio.CancelledError:
            question.faults.append("cancelled")
            raise
        except RoleRefused as refusal:
            outcome = "failed" if isinstance(refusal, EndpointFailed) else "refused"
            if isinstance(refusal, BudgetReached):
                question.faults.append(str(refusal))
            elif not question.read:
                self._stop_where_hopeless(refusal)
            raise
        finally:
            # One short line, on the event loop: a thread would not be waited for by a cancelled question.
            if question.cost.calls:
                request = Request(
                    role=self._endpoint.role,
                    subject=question.subject,
                    iteration=iteration,
                    outcome=outcome,
                    faults=tuple(question.faults),
                    model=self._endpoint.model,
                    measured=question.cost,
                )
                self._ledger.add(request)

    async def deliver(self, request: Callable[[], Awaitable[Reply]], question: Question) -> Reply:
        """Send ``request`` and return its reply.

        Raises EndpointFailed when its retries are used up or the endpoint rejects the request; BudgetReached instead of
        an attempt that a budget forbids; InputError when the endpoint refuses the key or the model's name, or does not
        report the tokens that a budget needs; RepeatedFailure once the role was stopped.
        """
        before, token = len(question.faults), _SENDING.set((self, question))
        try:
            return await request()
        except (APIStatusError, APIConnectionError, httpx2.RequestError) as error:
            if question.failed is None:  # of the client itself
                self._fail(question, _connection(error))
        finally:
            _SENDING.reset(token)
        # Not chained: the library's exceptions contain the request.
        raise self._failure(question, len(question.faults) - before)

    @asynccontextmanager
    async def attempt(self, question: Question) -> AsyncIterator[Callable[[Fault | Usage | None], None]]:
        """Wait for a free slot at the endpoint, count one request, and end it after ``timeout`` seconds.

        See the function ``attempt`` for what it gives. Faults without a response are noted here and raised.
        """
        async with _gate(self._endpoint.base_url, self._concurrency):
            self._breaker.check()
            self._ledger.check()
            self._pay(question, Measured(calls=1))
            question.failed = None
            clock = asyncio.get_running_loop().time  # the one that timeouts go by
            started = clock()
            try:
                async with asyncio.timeout(self._settings.timeout):
                    yield lambda ended: self._ended(question, ended)
            except Fault as fault:
                self._fail(question, fault)
                raise
            except (TimeoutError, httpx2.TimeoutException):
                raise self._fail(question, Fault(f"timeout: no answer in {self._settings.timeout:g} s")) from None
            except (httpx2.RequestError, OSError) as error:
                raise self._fail(question, _connection(error)) from None
            finally:
                self._pay(question, Measured(seconds=clock() - started))

    def _ended(self, question: Question, ended: Fault | Usage | None) -> None:
        if isinstance(ended, Fault):
            self._fail(question, ended)
        elif ended is not None:
            self._pay(question, self._priced(ended))
        elif self._ledger.counts_tokens:
            question.faults.append("no token usage in the response")
            budget = self._ledger.budget_key
            raise InputError(
                f"the endpoint of {self._endpoint.owner} does not say how many tokens it used: {budget('tokens')} and "
                f"{budget('money')} cannot be kept there, use {budget('calls')}"
            )

    def _fail(self, question: Question, fault: Fault) -> Fault:
        """Note the fault of an attempt, one line, bounded, without the key; return it."""
        text = " ".join(encodable(self._endpoint.hide(str(fault))).split()).removesuffix(":")
        question.failed = fault
        question.faults.append(shortened(text, LONGEST_FAULT))
        self._pay(question, self._priced(fault.usage))
        return fault

    def _failure(self, question: Question, attempts: int) -> Exception:
        """Return the exception for a request whose last of ``attempts`` failed."""
        assert question.failed is not None, "every exception of the client follows a failed attempt"
        kind, text = question.failed.kind, question.faults[-1]
        if kind == "passing":
            tried = f"{attempts} attempt{'s' if attempts > 1 else ''}"
            return EndpointFailed(f"the endpoint gave no answer in {tried}; the last: {text}")
        if kind == "mistake":
            model, url = (self._endpoint.setting(name) for name in ("model", "base_url"))
            return InputError(
                f"the chat endpoint refused the request ({text}): check {self._endpoint.key_source}, {model} and {url}"
            )
        rejected = {"format": FormatRejected, "length": ContextExceeded}.get(kind, EndpointFailed)
        return rejected(f"the endpoint rejected the request: {text}")

    def _pay(self, question: Question, cost: Measured) -> None:
        self._ledger.pay(cost)
        question.cost = added(question.cost, cost)

    def _priced(self, usage: Usage) -> Measured:
        prices = (self._settings.price_prompt or 0.0, self._settings.price_completion or 0.0)
        money = sum(tokens * price for tokens, price in zip(usage, prices, strict=True)) / MILLION
        return Measured(prompt_tokens=usage[0], completion_tokens=usage[1], money=money)


def _connection(error: Exception) -> Fault:
    return Fault(f"connection failed: {type(error).__name__}: {error}")


_SENDING: ContextVar[tuple[Delivery, Question]] = ContextVar("sending")


def attempt() -> AbstractAsyncContextManager[Callable[[Fault | Usage | None], None]]:
    """Count one attempt of the request that is delivered around this.

    Gives what is told how it ended: the fault of the response, or the tokens that it reports, None where it does not.
    Every model's transport sends within it. Raises Fault without an answer, BudgetReached instead of an attempt that a
    budget forbids, and RepeatedFailure once the role was stopped.
    """
    delivery, question = _SENDING.get()
    return delivery.attempt(question)


def _gate(base_url: str, limit: int) -> asyncio.Semaphore:
    """Return the endpoint's semaphore, shared by all roles on the running event loop."""
    gates = _gates.setdefault(asyncio.get_running_loop(), {})
    return gates.setdefault((base_url, limit), asyncio.Semaphore(limit))
