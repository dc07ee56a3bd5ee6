"""Sends the requests of one question: concurrency, timeouts, budgets, faults, costs, and what HTTP may carry.

openai's client sends a request again where that may help (408, 409, 429, 5xx, a lost connection, a timeout), after what
a Retry-After asks for or after 0.5 s, doubled each time, 8 s at most. Each of its attempts goes through ``attempt``,
which counts it, so that budgets and the limit of requests in flight hold for every one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import httpx2
from openai import APIConnectionError, APIStatusError, DefaultAsyncHttpxClient

from agents.chat.completions import NoCompletion, read_completion
from agents.chat.endpoint import Endpoint
from agents.chat.parameters import can_change, parameters_of
from agents.chat.rejections import BODY_SHOWN, Cause, Rejection, read_rejection
from agents.chat.replies import shortened
from agents.spending import Breaker, BudgetReached, Ledger, RepeatedFailure, Request, RoleRefused, added, encodable
from environments.base import InputError
from memory.records import Measured

# The connection's log at DEBUG has the headers as they came, before the key is redacted in them.
logging.getLogger("httpcore2").setLevel(logging.INFO)

LONGEST_FAULT = 300
LONGEST_BODY = 8 * 2**20
"""Most bytes of a response that are read (ours)."""
PLACEHOLDER = "of-the-transport"
"""What the client libraries get as the key: they refuse to be without one, and never have the real one."""
_SENT = frozenset({"accept", "accept-encoding", "connection", "content-type", "host"})
"""Headers of a request that are sent. The libraries add others, some from environment variables of OpenAI's account."""
_OF_THE_ORIGINAL = frozenset({"content-encoding", "content-length", "transfer-encoding"})

Reply = TypeVar("Reply")


class EndpointFailed(RoleRefused):
    """The endpoint gave no readable answer after all retries."""


class ContextExceeded(EndpointFailed):
    """The endpoint rejected a request that is longer than the model's context."""


class Fault(httpx2.RequestError):
    """One failed request; raised where there is no response, which openai's client takes for a lost connection.

    The text begins with the kind of cause, as in ``HTTP 429: too many requests``.
    """

    def __init__(self, text: str, cause: Cause = "passing") -> None:
        super().__init__(text)
        self.cause: Cause = cause


@dataclass(frozen=True)
class Delivery:
    """Sends the questions of one role to its endpoint, within the budgets of ``ledger``.

    ``concurrency``: most requests in flight at the endpoint, over all roles that use it.
    """

    endpoint: Endpoint
    ledger: Ledger
    concurrency: int
    breaker: Breaker = field(default_factory=Breaker)

    @contextmanager
    def question(self, subject: str, iteration: int | None) -> Iterator[Question]:
        """Give what sends one question about ``subject``, and add a line on it to the ledger, also if it is cancelled.

        ``iteration`` is None for D_0 and outside of a run. A question that sent nothing has no line. Raises
        RepeatedFailure instead of RoleRefused after too many consecutive questions that got nothing to read.
        """
        asked = Question(self)
        outcome: Literal["answered", "refused", "failed"] = "failed"
        try:
            yield asked
            outcome = "answered"
        except asyncio.CancelledError:
            asked.faults.append("cancelled")
            raise
        except RoleRefused as refusal:
            outcome = "failed" if isinstance(refusal, EndpointFailed) else "refused"
            if isinstance(refusal, BudgetReached):
                asked.faults.append(str(refusal))
            elif not asked.read:
                self._stop_where_hopeless(refusal)
            raise
        finally:
            # One short line, on the event loop: a thread would not be waited for by a cancelled question.
            if asked.cost.calls:
                request = Request(
                    role=self.endpoint.role,
                    subject=subject,
                    iteration=iteration,
                    outcome=outcome,
                    faults=tuple(asked.faults),
                    model=self.endpoint.model,
                    measured=asked.cost,
                )
                self.ledger.add(request)

    def _stop_where_hopeless(self, failure: RoleRefused) -> None:
        """Raise RepeatedFailure after too many consecutive failures; questions in progress end with it, too."""
        row = self.breaker.failed()
        if row is None:
            return
        endpoint = self.endpoint
        advice = f"try a larger {endpoint.setting('max_tokens')} or another model"
        if isinstance(failure, EndpointFailed):
            limit, does = ("--concurrency", " and calls tools") if endpoint.commanded else ("roles.concurrency", "")
            url = endpoint.setting("base_url")
            advice = f"check {url} and whether the endpoint answers{does}, lower {limit} if it is limited"
        stopped = RepeatedFailure(
            f"{endpoint.owner} ({endpoint.base_url}, model {endpoint.model}): {row} questions in a row got no reply "
            f"that can be read, the last: {failure}; the ledger has all of them. To go on, {advice}"
        )
        self.breaker.stop(stopped)
        raise stopped from None

    def slot(self) -> asyncio.Semaphore:
        """Return what limits the requests to the endpoint, shared by all roles on the running event loop."""
        slots = _slots.setdefault(asyncio.get_running_loop(), {})
        return slots.setdefault((self.endpoint.base_url, self.concurrency), asyncio.Semaphore(self.concurrency))


_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], asyncio.Semaphore]] = WeakKeyDictionary()


@dataclass
class Question:
    """One question: its requests, with their faults and costs so far.

    ``cost.seconds`` covers requests, not pauses and not waiting for a free slot at the endpoint. ``failed``: the fault
    of the last request, None where it was answered. ``read``: a reply fitted the schema, usable or not.
    """

    delivery: Delivery
    faults: list[str] = field(default_factory=list)
    cost: Measured = field(default_factory=Measured)
    failed: Fault | None = None
    read: bool = False

    def works(self) -> None:
        """Note that it got what can be read: a question that does not has failed."""
        self.read = True
        self.delivery.breaker.succeeded()

    async def deliver(self, request: Callable[[], Awaitable[Reply]]) -> Reply:
        """Send ``request`` and return its reply.

        Raises EndpointFailed when its retries are used up or the endpoint rejects the request; ContextExceeded for
        messages beyond the model's context and RoleRefused for those that moderation refuses; BudgetReached instead of
        an attempt that a budget forbids; InputError when the endpoint refuses the key or the model's name, or does not
        report the tokens that a budget needs; RepeatedFailure once the role was stopped.
        """
        before, token = len(self.faults), SENDING.set(self)
        try:
            return await request()
        except (APIStatusError, APIConnectionError, httpx2.RequestError) as error:
            if self.failed is None:  # of the client itself
                self.fail(Fault(f"connection failed: {type(error).__name__}: {error}"))
        finally:
            SENDING.reset(token)
        # Not chained: the library's exceptions contain the request.
        raise self._failure(len(self.faults) - before)

    @asynccontextmanager
    async def attempt(self) -> AsyncIterator[None]:
        """Wait for a free slot at the endpoint, count one request, and end it after ``timeout`` seconds.

        Faults that are raised within it are noted. Raises Fault without an answer, BudgetReached instead of an attempt
        that a budget forbids, and RepeatedFailure once the role was stopped.
        """
        timeout = self.delivery.endpoint.settings.timeout
        async with self.delivery.slot():
            self.delivery.breaker.check()
            self.delivery.ledger.check()
            self._pay(Measured(calls=1))
            self.failed = None
            clock = asyncio.get_running_loop().time  # the one that timeouts go by
            started = clock()
            try:
                async with asyncio.timeout(timeout):
                    yield
            except Fault as fault:
                raise self.fail(fault) from None
            except (TimeoutError, httpx2.TimeoutException):
                raise self.fail(Fault(f"timeout: no answer in {timeout:g} s")) from None
            except (httpx2.RequestError, OSError) as error:
                raise self.fail(Fault(f"connection failed: {type(error).__name__}: {error}")) from None
            finally:
                self._pay(Measured(seconds=clock() - started))

    def used(self, usage: tuple[int, int] | None) -> None:
        """Pay for the prompt and completion tokens that a response reports.

        Raises InputError where it reports none and a budget depends on them.
        """
        endpoint, ledger = self.delivery.endpoint, self.delivery.ledger
        if usage is not None:
            prompt, completion = endpoint.settings.price_prompt or 0.0, endpoint.settings.price_completion or 0.0
            money = (usage[0] * prompt + usage[1] * completion) / 1e6
            self._pay(Measured(prompt_tokens=usage[0], completion_tokens=usage[1], money=money))
        elif ledger.counts_tokens:
            self.faults.append("no token usage in the response")
            raise InputError(
                f"the endpoint of {endpoint.owner} does not say how many tokens it used: "
                f"{ledger.budget_key('tokens')} and {ledger.budget_key('money')} cannot be kept there, use "
                f"{ledger.budget_key('calls')}"
            )

    def fail(self, fault: Fault) -> Fault:
        """Note the fault of an attempt, one line, bounded, without the key; return it."""
        text = " ".join(encodable(self.delivery.endpoint.hide(str(fault))).split()).removesuffix(":")
        self.failed = fault
        self.faults.append(shortened(text, LONGEST_FAULT))
        return fault

    def _failure(self, attempts: int) -> Exception:
        assert self.failed is not None, "every exception of the client follows a failed attempt"
        cause, text, endpoint = self.failed.cause, self.faults[-1], self.delivery.endpoint
        if cause == "passing":
            tried = f"{attempts} attempt{'s' if attempts > 1 else ''}"
            return EndpointFailed(f"the endpoint gave no answer in {tried}; the last: {text}")
        if cause == "mistake":
            places = f"{endpoint.key_source}, {endpoint.setting('model')} and {endpoint.setting('base_url')}"
            return InputError(f"the chat endpoint refused the request ({text}): check {places}")
        if cause == "rejected":
            return EndpointFailed(f"the endpoint rejected the request: {text}")
        self.works()  # so does the endpoint: it read the messages
        if cause == "length":
            return ContextExceeded(f"the endpoint rejected the request: {text}")
        return RoleRefused(f"the endpoint refused these messages: {text}")

    def _pay(self, cost: Measured) -> None:
        self.delivery.ledger.pay(cost)
        self.cost = added(self.cost, cost)


SENDING: ContextVar[Question] = ContextVar("sending")
"""The question that is delivered around this; every model's transport sends within its ``attempt``."""


@cache
def certificates() -> ssl.SSLContext:
    """Return the certificates that endpoints are verified by, read once: each client would read them anew for 40 ms."""
    return httpx2.create_ssl_context()


class GuardedClient(DefaultAsyncHttpxClient):
    """The OpenAI client's transport; each event loop gets its own connections.

    A response is read completely before it is passed on, at most ``LONGEST_BODY`` bytes, and the key is redacted
    everywhere in it, so that no caller can record it. A completion is passed on in one form. Redirects are not
    followed: each would be a request that no budget counts, and another host would read the prompt. The key is added
    here, and no header beside it is sent that HTTP does not need. A parameter that the endpoint does not take is
    changed and the request sent again, which counts as another request.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(verify=certificates())
        self._endpoint = endpoint
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, DefaultAsyncHttpxClient] = WeakKeyDictionary()

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:  # noqa: ANN401
        """Send, read and check. Raises Fault for a success without a chat completion."""
        body: dict[str, Any] = json.loads(request.read())
        known = parameters_of(self._endpoint.base_url, self._endpoint.model)
        changed: set[str] = set()
        while True:
            answer, rejection = await self._send_once(request, known.applied(body, changed), options)
            more = set() if rejection is None else can_change(rejection.parameters, changed)
            if not more:
                break
            changed |= more
        if rejection is None:
            known.learn(self._endpoint.model, body, changed & body.keys())
        return answer

    async def _send_once(
        self, request: httpx2.Request, body: dict[str, Any], options: dict[str, Any]
    ) -> tuple[httpx2.Response, Rejection | None]:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = DefaultAsyncHttpxClient(verify=certificates(), follow_redirects=False)
        headers = {name: value for name, value in request.headers.items() if name.lower() in _SENT}
        if key := self._endpoint.key.get_secret_value():
            headers["authorization"] = f"Bearer {key}"
        content = json.dumps(body).encode()
        sent = httpx2.Request(
            request.method, request.url, headers=headers, content=content, extensions=request.extensions
        )
        options = options | {"stream": True, "follow_redirects": False}
        question = SENDING.get()
        async with question.attempt():
            response = await self._by_loop[loop].send(sent, **options)
            read = bytearray()
            try:
                async for chunk in response.aiter_bytes():
                    read += chunk
                    if len(read) > LONGEST_BODY:
                        raise Fault(f"no chat completion: a response of more than {LONGEST_BODY} bytes")
            finally:
                await response.aclose()
            told = [(name, self._endpoint.hide(value)) for name, value in response.headers.multi_items()]
            told = [(name, value) for name, value in told if name.lower() not in _OF_THE_ORIGINAL]
            data = self._endpoint.hide(read.decode("latin-1")).encode("latin-1")  # byte for byte: the key is ASCII
            status = response.status_code
            if response.is_redirect:
                place = response.headers.get("location", "")
                rejection = Rejection("mistake", f"a redirect to {place:.200}, which is not followed")
            elif response.is_success:
                completion = _check_completion(data, question, body)
                if isinstance(completion, bytes):
                    return httpx2.Response(status, headers=told, content=completion, request=request), None
                rejection, status = completion, 400  # to the client, an answer that is no success
            else:
                rejection = read_rejection(status, data.decode(errors="replace"), body)
            question.fail(Fault(f"HTTP {response.status_code}: {rejection.text}", rejection.cause))
            if rejection.cause != "passing":
                told.append(("x-should-retry", "false"))  # openai's client obeys it
            return httpx2.Response(status, headers=told, content=data, request=request), rejection


def _check_completion(data: bytes, question: Question, sent: dict[str, Any]) -> bytes | Rejection:
    """Pay for a chat completion and return it in one form, or what the endpoint says in its place.

    Raises Fault where that may pass, and for what is neither.
    """
    told = data.decode(errors="replace")
    told = data.decode(errors="replace")
    try:
        completion = read_completion(data)
    except NoCompletion as problem:
        reason = f"no chat completion: {problem!s:.120}; the response begins with {told[:BODY_SHOWN]!r}"
        return _instead(told, sent, reason)
    if completion.tokens is not None or completion.body:
        question.used(completion.tokens)
    if completion.ended == "full":
        return Rejection("length", "the reply reached the end of the model's context")
    if completion.ended == "failed":
        told = json.dumps({"error": completion.error or "the generation failed"})
        return _instead(told, sent, f"the generation failed: {told:.{BODY_SHOWN}}")
    return completion.body or _instead(told, sent, "empty choices")


def _instead(told: str, sent: dict[str, Any], reason: str) -> Rejection:
    """Return what a response without a completion says. Raises Fault with the reason where it is nothing known."""
    rejection = read_rejection(200, told, sent)
    if rejection.cause == "passing":
        raise Fault(reason)
    return rejection
