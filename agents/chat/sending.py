"""Sends the requests of one question: concurrency, timeouts, retries, budgets, and costs.

The retry loop is ours rather than tenacity's: its pauses depend on the reply (Retry-After) and on the rest of the
question's timeout, and tenacity's jitter is random, while equal runs shall wait equally.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from openai import APIConnectionError, APIStatusError
from pydantic import BaseModel

from agents.chat.endpoint import Endpoint
from agents.chat.http import NoCompletion
from agents.chat.replies import Method, bound, function_of, instruction, shortened
from agents.roles import RoleRefused
from agents.settings import RoleSettings
from agents.spending import BudgetReached, Ledger, RepeatedFailure, Request, added, encodable
from environments.base import InputError
from memory.jsonl import derive_seed
from memory.records import Measured

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.runnables import Runnable

    from agents.chat.caching import ReplyCache

LONGEST_BACKOFF = 8.0
PASSING_STATUSES = frozenset({408, 409, 429})


def is_passing(status: int) -> bool:
    """Return whether a retry may succeed after a reply with this HTTP status."""
    return status in PASSING_STATUSES or status >= 500


def retry_after(value: str | None, now: datetime) -> float | None:
    """Return the seconds of a Retry-After header (RFC 9110, 10.2.3): a number or an HTTP date; None for neither.

    ``now`` is an aware time. A date that has passed gives 0.
    """
    if value is None:
        return None
    text = value.strip()
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


def backoff(first: float, attempt: int, subject: str) -> float:
    """Return the seconds before the ``attempt``-th retry, counted from 1: ``first``, doubled each time, 8 at most.

    A hash of ``subject`` and ``attempt`` scales it to between a half and the whole: questions that failed together do
    not retry together, and equal runs wait equally.
    """
    whole = min(first * 2.0 ** min(attempt - 1, 60), LONGEST_BACKOFF)
    return whole * (0.5 + 0.5 * derive_seed("backoff", subject, attempt) / 2**63)


def pause(backed_off: float, asked: float | None, longest: float) -> float:
    """Return the seconds to wait: the backoff, but at least what the endpoint asked for, capped at ``longest``."""
    return max(backed_off, min(asked or 0.0, longest))


FAILURES = (APIStatusError, APIConnectionError, ConnectionError, NoCompletion)
"""The exceptions of a failed request."""
LONGEST_FAULT = 300
BODY_SHOWN = 120
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
    requests``, and never contains the key. ``asked``: the seconds of its Retry-After. The tokens are those that the
    response reports as used.
    """

    kind: Literal["passing", "mistake", "format", "length", "rejected"]
    text: str
    asked: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


def fault_text(text: str, endpoint: Endpoint) -> str:
    """Return the text of a fault for records: one line, bounded, without the key."""
    return shortened(" ".join(encodable(endpoint.hide(text)).split()).removesuffix(":"), LONGEST_FAULT)


def fault_of(error: Exception, endpoint: Endpoint) -> Fault:
    """Classify one of ``FAILURES``."""
    if isinstance(error, APIStatusError):
        return _of_status(error, endpoint)
    if isinstance(error, NoCompletion):
        return Fault("passing", fault_text(str(error), endpoint), None, error.prompt_tokens, error.completion_tokens)
    cause = _first_cause(error)
    return Fault("passing", fault_text(f"connection failed: {type(cause).__name__}: {cause}", endpoint))


def _of_status(error: APIStatusError, endpoint: Endpoint) -> Fault:
    status = error.status_code
    if error.response.is_redirect:
        place = error.response.headers.get("location", "")
        return Fault(
            "mistake", fault_text(f"HTTP {status}: a redirect to {place:.200}, which is not followed", endpoint)
        )
    said = error.message.removeprefix(f"Error code: {status}").removeprefix(" - ")
    if not said and error.body:  # a page of a proxy, or JSON without a message
        said = f"the response begins with {str(error.body)[:BODY_SHOWN]!r}"
    text = fault_text(f"HTTP {status}: {said}", endpoint)
    if is_passing(status):
        return Fault("passing", text, retry_after(error.response.headers.get("retry-after"), datetime.now(UTC)))
    if status in _USERS_MISTAKES:
        return Fault("mistake", text)
    if status in _REJECTIONS and any(word in error.message.lower() for word in _FORMAT_WORDS):
        return Fault("format", text)
    if status in _TOO_LONG and any(word in error.message.lower() for word in _LENGTH_WORDS):
        return Fault("length", text)
    return Fault("rejected", text)


def _first_cause(error: BaseException) -> BaseException:
    """Return the exception that the libraries' wrappers were raised from."""
    while error.__cause__ is not None and type(error).__module__.partition(".")[0] in ("openai", "langchain_openai"):
        error = error.__cause__
    return error


MILLION = 1_000_000
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], asyncio.Semaphore]] = WeakKeyDictionary()


class EndpointFailed(RoleRefused):
    """The endpoint gave no readable answer after all retries."""


class ContextExceeded(EndpointFailed):
    """The endpoint rejected a request that is longer than the model's context."""


class _Passing(Exception):
    """A failure that may pass with a retry. ``asked``: its Retry-After in seconds."""

    def __init__(self, asked: float | None) -> None:
        super().__init__()
        self.asked = asked


class _FormatRejected(Exception):
    """The endpoint does not take a JSON schema as the format of a reply."""


@dataclass
class Question:
    """The faults and costs of one ``ask`` so far.

    ``method``: how the schema is bound. ``cost.seconds`` covers requests and pauses, not waiting for a free slot at the
    endpoint. ``read``: a reply fitted the schema, usable or not.
    """

    subject: str
    method: Method
    faults: list[str] = field(default_factory=list)
    cost: Measured = field(default_factory=Measured)
    cached: bool = False
    read: bool = False

    def spend(self, cost: Measured) -> None:
        """Add to the cost."""
        self.cost = added(self.cost, cost)


Reply = TypeVar("Reply")
Usage = tuple[int, int]
"""Prompt and completion tokens that a response reports."""


class Delivery:
    """Sends the requests of one role to its endpoint: retries, pauses, timeouts, budgets and costs."""

    def __init__(self, endpoint: Endpoint, settings: RoleSettings, ledger: Ledger, concurrency: int) -> None:
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

        ``iteration`` is None for D_0 and outside of a run. A question that sent nothing and was not answered from the
        cache has no line.
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
        cached = question.cached and not question.cost.calls
        if not question.cost.calls and not cached:
            return
        request = Request(
            role=self._endpoint.role,
            subject=question.subject,
            iteration=iteration,
            outcome=outcome,
            faults=tuple(question.faults),
            cached=cached,
            model=self._endpoint.model,
            measured=question.cost,
        )
        self._ledger.add(request, paid=True)

    def check(self, question: Question) -> None:
        """Raise RepeatedFailure once the role was stopped, and EndpointFailed past the question's deadline."""
        if self._stopped is not None:
            raise RepeatedFailure(self._stopped)
        if question.cost.seconds >= self._settings.deadline:
            raise EndpointFailed(f"no answer before the deadline of {self._settings.deadline:g} s")

    async def deliver(
        self,
        request: Callable[[], Awaitable[Reply]],
        usage: Callable[[Reply], Usage | None],
        question: Question,
        messages: int,
    ) -> Reply:
        """Send ``request`` until it is answered; ``usage`` reads the tokens of its reply, None where none is reported.

        ``messages``: their number, which names the request in the hash that spreads pauses. Raises EndpointFailed when
        retries or time are used up or the endpoint rejects the request; BudgetReached instead of a request that a
        budget forbids; InputError when the endpoint refuses the key or the model's name, or does not report the tokens
        that a budget needs; RepeatedFailure once the role was stopped.
        """
        settings, failures = self._settings, 0
        while True:
            self.check(question)
            try:
                return await self._attempt(request, usage, question)
            except _Passing as failure:
                failures += 1
                asked = failure.asked
            attempts = f"{failures} attempt{'s' if failures > 1 else ''}; the last: {question.faults[-1]}"
            if failures > settings.max_retries:
                raise EndpointFailed(f"the endpoint gave no answer in {attempts}")
            name = f"{self._endpoint.role} {question.subject} {messages}"
            seconds = pause(backoff(settings.retry_pause, failures, name), asked, settings.max_retry_after)
            if question.cost.seconds + seconds >= settings.deadline:
                raise EndpointFailed(f"no answer before the deadline of {settings.deadline:g} s, in {attempts}")
            await asyncio.sleep(seconds)
            question.spend(Measured(seconds=seconds))

    async def _attempt(
        self, request: Callable[[], Awaitable[Reply]], usage: Callable[[Reply], Usage | None], question: Question
    ) -> Reply:
        """Send one HTTP request; add its fault, if any, to the question's."""
        async with _gate(self._endpoint.base_url, self._concurrency):
            self._ledger.check()
            limit = min(self._settings.timeout, self._settings.deadline - question.cost.seconds)
            self._pay(question, Measured(calls=1))
            clock = asyncio.get_running_loop().time  # the one that timeouts go by
            started = clock()
            try:
                async with asyncio.timeout(limit):
                    reply = await self._sent(request, question)
            except TimeoutError:
                question.faults.append(f"timeout: no answer in {limit:g} s")
                raise _Passing(None) from None
            finally:
                question.spend(Measured(seconds=clock() - started))
        self._pay_tokens(question, usage(reply))
        return reply

    async def _sent(self, request: Callable[[], Awaitable[Reply]], question: Question) -> Reply:
        """Return the reply; raise failures as this module's exceptions.

        The library's exceptions are not chained: they contain the request, and with it the key.
        """
        try:
            return await request()
        except FAILURES as error:
            fault = fault_of(error, self._endpoint)
        raise self._failure(fault, question)

    def _failure(self, fault: Fault, question: Question) -> Exception:
        question.faults.append(fault.text)
        self._pay(question, self._priced(fault.prompt_tokens, fault.completion_tokens))
        if fault.kind == "passing":
            return _Passing(fault.asked)
        if fault.kind == "mistake":
            model, url = (self._endpoint.setting(name) for name in ("model", "base_url"))
            return InputError(
                f"the chat endpoint refused the request ({fault.text}): check {self._endpoint.key_source}, {model} and "
                f"{url}"
            )
        if fault.kind == "format" and question.method == "json_schema" and self._settings.structured == "auto":
            return _FormatRejected()
        if fault.kind == "length":
            return ContextExceeded(f"the endpoint rejected the request: {fault.text}")
        return EndpointFailed(f"the endpoint rejected the request: {fault.text}")

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


class Sender(Delivery):
    """Asks one role's model for replies in a schema; the arguments are those of ``StructuredModel``."""

    def __init__(
        self,
        model: BaseChatModel,
        endpoint: Endpoint,
        settings: RoleSettings,
        ledger: Ledger,
        concurrency: int,
        cache: ReplyCache | None,
    ) -> None:
        super().__init__(endpoint, settings, ledger, concurrency)
        self._model = model
        self._cache = cache
        self._method: Method = "tool_call" if settings.structured == "tool_call" else "json_schema"

    @property
    def falls_back(self) -> bool:
        """Return whether a question may fall back to a tool call where the JSON schema does not work."""
        return self._settings.structured == "auto"

    def question(self, subject: str) -> Question:
        """Make a question that was not sent yet."""
        return Question(subject, self._method)

    async def send(
        self, schema: type[BaseModel], messages: Sequence[tuple[str, str]], question: Question
    ) -> tuple[AIMessage, bool]:
        """Return the model's message and whether it is cached; the system message comes first in ``messages``.

        Raises like ``deliver``.
        """
        while True:
            self.check(question)
            sent = self._full(schema, messages, question)
            if self._cache is not None and (kept := await self._cache.get(sent, self._key(schema, question))):
                return kept, True
            runnable = bound(self._model, schema, question.method)
            try:
                return await self.deliver(lambda: _message(runnable, sent), _usage, question, len(messages)), False  # noqa: B023
            except _FormatRejected:
                question.method = self._method = "tool_call"

    async def keep(
        self, schema: type[BaseModel], messages: Sequence[tuple[str, str]], question: Question, message: AIMessage
    ) -> None:
        """Cache the answer to these messages, if there is a cache."""
        if self._cache is not None:
            await self._cache.keep(self._full(schema, messages, question), self._key(schema, question), message)

    def _full(
        self, schema: type[BaseModel], messages: Sequence[tuple[str, str]], question: Question
    ) -> list[tuple[str, str]]:
        (role, system), *others = messages
        return [(role, f"{system}\n\n{instruction(schema, question.method)}"), *others]

    def _key(self, schema: type[BaseModel], question: Question) -> dict[str, Any]:
        """Return the part of the cache key beside the messages."""
        return {
            "base_url": self._endpoint.base_url,
            "model": self._endpoint.model,
            "temperature": self._settings.temperature,
            "max_tokens": self._settings.max_tokens,
            "method": question.method,
            "schema": function_of(schema),
        }


async def _message(runnable: Runnable[Any, BaseMessage], messages: Sequence[tuple[str, str]]) -> AIMessage:
    from langchain_core.messages import AIMessage

    message = await runnable.ainvoke(list(messages))
    if not isinstance(message, AIMessage):
        raise NoCompletion(f"no chat completion: a message of {message.type!r}")
    return message


def _usage(message: AIMessage) -> Usage | None:
    found = message.usage_metadata
    return None if found is None else (found["input_tokens"], found["output_tokens"])


def _gate(base_url: str, limit: int) -> asyncio.Semaphore:
    """Return the endpoint's semaphore, shared by all roles on the running event loop."""
    gates = _gates.setdefault(asyncio.get_running_loop(), {})
    return gates.setdefault((base_url, limit), asyncio.Semaphore(limit))
