"""Sends the requests of one question: concurrency, timeouts, budgets, faults and costs.

openai's client sends a request again where that may help (408, 409, 429, 5xx, a lost connection, a timeout), after what
a Retry-After asks for or after 0.5 s, doubled each time, 8 s at most. Each of its attempts goes through ``attempt``,
which counts it, so that budgets and the limit of requests in flight hold for every one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import httpx2
from openai import APIConnectionError, APIStatusError
from pydantic import BaseModel

from agents.chat.endpoint import Endpoint
from agents.chat.replies import Method, bound, instruction, shortened
from agents.roles import RoleRefused
from agents.settings import ChatSettings
from agents.spending import BudgetReached, Ledger, RepeatedFailure, Request, added, encodable
from environments.base import InputError
from memory.records import Measured

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.runnables import Runnable

LONGEST_FAULT = 300
BODY_SHOWN = 120
_PASSING = frozenset({408, 409, 429})
_USERS_MISTAKES = frozenset({401, 402, 403, 404})
_REJECTIONS = frozenset({400, 422})
_FORMAT_WORDS = ("response_format", "json_schema", "structured output")
_TOO_LONG = frozenset({400, 413, 422})
_LENGTH_WORDS = ("context length", "context_length", "context window", "maximum context", "prompt is too long")


@dataclass(frozen=True)
class Fault:
    """One failed request.

    ``kind``: ``passing``, a retry may succeed; ``mistake``, the key, the model's name or the account is refused;
    ``format``, the endpoint may have rejected the JSON schema as reply format; ``length``, the messages do not fit the
    model's context; ``rejected``, anything else. ``text`` begins with the kind of cause, as in ``HTTP 429: too many
    requests``. The tokens are those that the response reports as used.
    """

    kind: Literal["passing", "mistake", "format", "length", "rejected"]
    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0


class NoCompletion(httpx2.RequestError):
    """A response with status 200 without a chat completion; openai's client sends such a request again."""

    def __init__(self, problem: str, prompt_tokens: int = 0, completion_tokens: int = 0) -> None:
        super().__init__(problem)
        self.fault = Fault("passing", problem, prompt_tokens, completion_tokens)


def fault_of(response: httpx2.Response) -> Fault:
    """Classify a response, which was read, with another status than success."""
    status = response.status_code
    if response.is_redirect:
        place = response.headers.get("location", "")
        return Fault("mistake", f"HTTP {status}: a redirect to {place:.200}, which is not followed")
    text, whole = f"HTTP {status}: {_said(response.text)}", response.text.lower()
    if status in _PASSING or status >= 500:
        return Fault("passing", text)
    if status in _USERS_MISTAKES:
        return Fault("mistake", text)
    if status in _REJECTIONS and any(word in whole for word in _FORMAT_WORDS):
        return Fault("format", text)
    if status in _TOO_LONG and any(word in whole for word in _LENGTH_WORDS):
        return Fault("length", text)
    return Fault("rejected", text)


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


FAILURES = (APIStatusError, APIConnectionError, httpx2.RequestError)
"""The exceptions of a failed request."""


def _connection(error: Exception) -> Fault:
    return Fault("passing", f"connection failed: {type(error).__name__}: {error}")


MILLION = 1_000_000
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], asyncio.Semaphore]] = WeakKeyDictionary()


class EndpointFailed(RoleRefused):
    """The endpoint gave no readable answer after all retries."""


class ContextExceeded(EndpointFailed):
    """The endpoint rejected a request that is longer than the model's context."""


class _FormatRejected(Exception):
    """The endpoint does not take a JSON schema as the format of a reply."""


@dataclass
class Question:
    """The faults and costs of one ``ask`` so far.

    ``method``: how the schema is bound. ``failed``: the fault of the last request, None where it was answered.
    ``cost.seconds`` covers requests, not pauses and not waiting for a free slot at the endpoint. ``read``: a reply
    fitted the schema, usable or not.
    """

    subject: str
    method: Method
    faults: list[str] = field(default_factory=list)
    failed: Fault | None = None
    cost: Measured = field(default_factory=Measured)
    read: bool = False

    def spend(self, cost: Measured) -> None:
        """Add to the cost."""
        self.cost = added(self.cost, cost)


Reply = TypeVar("Reply")
Usage = tuple[int, int]
"""Prompt and completion tokens that a response reports."""


class Delivery:
    """Sends the requests of one role to its endpoint: attempts, timeouts, budgets and costs."""

    def __init__(self, endpoint: Endpoint, settings: ChatSettings, ledger: Ledger, concurrency: int) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._ledger = ledger
        self._concurrency = concurrency
        self._stopped: str | None = None

    def stop(self, why: str) -> RepeatedFailure:
        """Stop sending, also for questions in progress; return the exception that each of them ends with."""
        self._stopped = why
        return RepeatedFailure(why)

    @contextmanager
    def recorded(self, question: Question, iteration: int | None) -> Iterator[None]:
        """Add a line on ``question`` to the ledger when the block ends, also where it is cancelled.

        ``iteration`` is None for D_0 and outside of a run. A question that sent nothing has no line.
        """
        outcome: Literal["answered", "refused", "failed"] = "failed"
        try:
            yield
            outcome = "answered"
        except asyncio.CancelledError:
            question.faults.append("cancelled")
            raise
        except EndpointFailed:
            raise
        except BudgetReached as spent:
            outcome = "refused"
            question.faults.append(str(spent))
            raise
        except RoleRefused:
            outcome = "refused"
            raise
        finally:
            # One short line, on the event loop: a thread would not be waited for by a cancelled question.
            self._record(question, outcome, iteration)

    def _record(
        self, question: Question, outcome: Literal["answered", "refused", "failed"], iteration: int | None
    ) -> None:
        if not question.cost.calls:
            return
        request = Request(
            role=self._endpoint.role,
            subject=question.subject,
            iteration=iteration,
            outcome=outcome,
            faults=tuple(question.faults),
            model=self._endpoint.model,
            measured=question.cost,
        )
        self._ledger.add(request, paid=True)

    async def deliver(self, request: Callable[[], Awaitable[Reply]], question: Question) -> Reply:
        """Send ``request`` and return its reply.

        Raises EndpointFailed when its retries are used up or the endpoint rejects the request; BudgetReached instead of
        an attempt that a budget forbids; InputError when the endpoint refuses the key or the model's name, or does not
        report the tokens that a budget needs; RepeatedFailure once the role was stopped.
        """
        before, token = len(question.faults), _SENDING.set((self, question))
        try:
            return await request()
        except FAILURES as error:
            if question.failed is None:  # of the client itself
                self._failed(question, _connection(error))
        finally:
            _SENDING.reset(token)
        # Not chained: the library's exceptions contain the request.
        raise self._failure(question, len(question.faults) - before)

    @asynccontextmanager
    async def attempt(self, question: Question) -> AsyncIterator[Callable[[Fault | Usage | None], None]]:
        """Wait for a free slot at the endpoint, count one request, and end it after ``timeout`` seconds.

        See the function ``attempt`` for what it gives. Faults without a response are noted here, and raised as what
        openai's client sends again.
        """
        async with _gate(self._endpoint.base_url, self._concurrency):
            if self._stopped is not None:
                raise RepeatedFailure(self._stopped)
            self._ledger.check()
            self._pay(question, Measured(calls=1))
            question.failed = None
            clock = asyncio.get_running_loop().time  # the one that timeouts go by
            started = clock()
            try:
                async with asyncio.timeout(self._settings.timeout):
                    yield lambda ended: self._ended(question, ended)
            except (TimeoutError, httpx2.TimeoutException):
                text = f"timeout: no answer in {self._settings.timeout:g} s"
                self._failed(question, Fault("passing", text))
                raise httpx2.ReadTimeout(text) from None
            except NoCompletion as error:
                self._failed(question, error.fault)
                raise
            except (httpx2.RequestError, OSError) as error:
                self._failed(question, _connection(error))
                raise httpx2.NetworkError(str(error)) from None
            finally:
                question.spend(Measured(seconds=clock() - started))

    def _ended(self, question: Question, ended: Fault | Usage | None) -> None:
        if isinstance(ended, Fault):
            self._failed(question, ended)
        else:
            self._pay_tokens(question, ended)

    def _failed(self, question: Question, fault: Fault) -> None:
        """Note the fault of an attempt: one line, bounded, without the key."""
        text = shortened(" ".join(encodable(self._endpoint.hide(fault.text)).split()).removesuffix(":"), LONGEST_FAULT)
        question.failed = fault
        question.faults.append(text)
        self._pay(question, self._priced(fault.prompt_tokens, fault.completion_tokens))

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
        if kind == "format" and question.method == "json_schema" and self._settings.structured == "auto":
            return _FormatRejected()
        if kind == "length":
            return ContextExceeded(f"the endpoint rejected the request: {text}")
        return EndpointFailed(f"the endpoint rejected the request: {text}")

    def _pay_tokens(self, question: Question, usage: Usage | None) -> None:
        if usage is not None:
            self._pay(question, self._priced(*usage))
        elif self._ledger.counts_tokens:
            question.faults.append("no token usage in the response")
            budget = self._ledger.budget_key
            raise InputError(
                f"the endpoint of {self._endpoint.owner} does not say how many tokens it used: {budget('tokens')} and "
                f"{budget('money')} cannot be kept there, use {budget('calls')}"
            )

    def _pay(self, question: Question, cost: Measured) -> None:
        self._ledger.pay(cost)
        question.spend(cost)

    def _priced(self, prompt_tokens: int, completion_tokens: int) -> Measured:
        prompt_price, completion_price = self._settings.price_prompt or 0.0, self._settings.price_completion or 0.0
        money = (prompt_tokens * prompt_price + completion_tokens * completion_price) / MILLION
        return Measured(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, money=money)


_SENDING: ContextVar[tuple[Delivery, Question]] = ContextVar("sending")


@asynccontextmanager
async def attempt() -> AsyncIterator[Callable[[Fault | Usage | None], None]]:
    """Count one attempt of the request that is delivered around this.

    Gives what is told how it ended: the fault of the response, or the tokens that it reports, None where it does not.
    Every model's transport sends within it. Raises ``httpx2.RequestError`` without an answer, BudgetReached instead of
    an attempt that a budget forbids, and RepeatedFailure once the role was stopped.
    """
    delivery, question = _SENDING.get()
    async with delivery.attempt(question) as failed:
        yield failed


class Sender(Delivery):
    """Asks one role's model for replies in a schema; the arguments are those of ``StructuredModel``."""

    def __init__(
        self, model: BaseChatModel, endpoint: Endpoint, settings: ChatSettings, ledger: Ledger, concurrency: int
    ) -> None:
        super().__init__(endpoint, settings, ledger, concurrency)
        self._model = model
        self._method: Method = "tool_call" if settings.structured == "tool_call" else "json_schema"

    @property
    def falls_back(self) -> bool:
        """Return whether a question may fall back to a tool call where the JSON schema does not work."""
        return self._settings.structured == "auto"

    def question(self, subject: str) -> Question:
        """Make a question that was not sent yet."""
        return Question(subject, self._method)

    async def send(self, schema: type[BaseModel], messages: Sequence[tuple[str, str]], question: Question) -> AIMessage:
        """Return the model's message; the system message comes first in ``messages``. Raises like ``deliver``."""
        (role, system), *others = messages
        while True:
            sent = [(role, f"{system}\n\n{instruction(schema, question.method)}"), *others]
            runnable = bound(self._model, schema, question.method)
            try:
                return await self.deliver(lambda: _message(runnable, sent), question)  # noqa: B023
            except _FormatRejected:
                question.method = self._method = "tool_call"


async def _message(runnable: Runnable[Any, BaseMessage], messages: Sequence[tuple[str, str]]) -> AIMessage:
    from langchain_core.messages import AIMessage

    message = await runnable.ainvoke(list(messages))
    assert isinstance(message, AIMessage), "the transport lets no other role pass"
    return message


def _gate(base_url: str, limit: int) -> asyncio.Semaphore:
    """Return the endpoint's semaphore, shared by all roles on the running event loop."""
    gates = _gates.setdefault(asyncio.get_running_loop(), {})
    return gates.setdefault((base_url, limit), asyncio.Semaphore(limit))
