"""Sends the requests of one question: concurrency, deadlines, further attempts, budgets, and what they cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from agents.breaker import RepeatedFailure
from agents.chat.endpoint import Endpoint
from agents.chat.formats import Method, bound, function_of, instruction
from agents.chat.retrying import backoff, pause
from agents.roles import RoleRefused
from agents.settings import RoleSettings
from agents.spending import Ledger, added
from environments.base import InputError
from memory.records import Measured

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage

    from agents.chat.caching import ReplyCache
    from agents.chat.faults import Fault

MILLION = 1_000_000
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], asyncio.Semaphore]] = WeakKeyDictionary()


class EndpointFailed(RoleRefused):
    """The endpoint gave no answer that could be read, after all attempts."""


class _Passing(Exception):
    """An attempt that failed for a reason that another may not have. ``asked``: its Retry-After in seconds."""

    def __init__(self, asked: float | None) -> None:
        super().__init__()
        self.asked = asked


class _FormatRejected(Exception):
    """The endpoint does not take a JSON schema as the format of a reply."""


@dataclass
class Question:
    """The account of one ``ask``: what went wrong and what it cost so far.

    ``method`` is how the reply gets its shape. ``cost.seconds`` are those of requests and pauses; waiting for a free
    place at the endpoint is not among them. ``read``: a reply was of the schema, usable or not.
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


class Sender:
    """Sends the requests of one role to its model. ``StructuredModel`` says what the arguments are."""

    def __init__(
        self,
        model: BaseChatModel,
        endpoint: Endpoint,
        settings: RoleSettings,
        ledger: Ledger,
        concurrency: int,
        cache: ReplyCache | None,
    ) -> None:
        self._model = model
        self._endpoint = endpoint
        self._settings = settings
        self._ledger = ledger
        self._concurrency = concurrency
        self._cache = cache
        self._method: Method = "tool_call" if settings.structured == "tool_call" else "json_schema"
        self._stopped: str | None = None

    @property
    def falls_back(self) -> bool:
        """Whether a question may go on with a tool call where the JSON schema does not work."""
        return self._settings.structured == "auto"

    def stop(self, why: str) -> RepeatedFailure:
        """Send nothing more, for questions in progress either; the exception that each of them ends with."""
        self._stopped = why
        return RepeatedFailure(why)

    def question(self, subject: str) -> Question:
        """A question that was not sent yet."""
        return Question(subject, self._method)

    async def send(
        self, schema: type[BaseModel], messages: Sequence[tuple[str, str]], question: Question
    ) -> tuple[AIMessage, bool]:
        """The model's message and whether it is from the cache; the system message comes first in ``messages``.

        Raises EndpointFailed when attempts or time are used up or the endpoint rejects the request, BudgetReached
        instead of a request that a budget forbids, and InputError when the endpoint refuses the key or the model's
        name, or does not count the tokens that a budget needs; RepeatedFailure once it was stopped.
        """
        settings, failures = self._settings, 0
        while True:
            if self._stopped is not None:
                raise RepeatedFailure(self._stopped)
            if question.cost.seconds >= settings.deadline:
                raise EndpointFailed(f"no answer before the deadline of {settings.deadline:g} s")
            told = self._told(schema, messages, question)
            if self._cache is not None and (kept := await self._cache.get(told, self._key(schema, question))):
                return kept, True
            try:
                return await self._attempt(schema, told, question), False
            except _FormatRejected:
                question.method = self._method = "tool_call"
                continue
            except _Passing as failure:
                failures += 1
                asked = failure.asked
            attempts = f"{failures} attempt{'s' if failures > 1 else ''}; the last: {question.faults[-1]}"
            if failures > settings.max_retries:
                raise EndpointFailed(f"the endpoint gave no answer in {attempts}")
            name = f"{self._endpoint.role} {question.subject} {len(messages)}"
            seconds = pause(backoff(settings.retry_pause, failures, name), asked, settings.max_retry_after)
            if question.cost.seconds + seconds >= settings.deadline:
                raise EndpointFailed(f"no answer before the deadline of {settings.deadline:g} s, in {attempts}")
            await asyncio.sleep(seconds)
            question.spend(Measured(seconds=seconds))

    async def keep(
        self, schema: type[BaseModel], messages: Sequence[tuple[str, str]], question: Question, message: AIMessage
    ) -> None:
        """Keep the answer to these messages in the cache, where there is one."""
        if self._cache is not None:
            await self._cache.keep(self._told(schema, messages, question), self._key(schema, question), message)

    def _told(
        self, schema: type[BaseModel], messages: Sequence[tuple[str, str]], question: Question
    ) -> list[tuple[str, str]]:
        (role, system), *others = messages
        return [(role, f"{system}\n\n{instruction(schema, question.method)}"), *others]

    def _key(self, schema: type[BaseModel], question: Question) -> dict[str, Any]:
        """What shapes an answer beside the messages."""
        return {
            "base_url": self._endpoint.base_url,
            "model": self._endpoint.model,
            "temperature": self._settings.temperature,
            "max_tokens": self._settings.max_tokens,
            "method": question.method,
            "schema": function_of(schema),
        }

    async def _attempt(
        self, schema: type[BaseModel], messages: Sequence[tuple[str, str]], question: Question
    ) -> AIMessage:
        """One HTTP request. Its fault, if it has one, is added to the question's."""
        async with _gate(self._endpoint.base_url, self._concurrency):
            self._ledger.check()
            limit = min(self._settings.timeout, self._settings.deadline - question.cost.seconds)
            self._pay(question, Measured(calls=1))
            started = time.monotonic()
            try:
                async with asyncio.timeout(limit):
                    message = await self._invoke(schema, messages, question)
            except TimeoutError:
                question.faults.append(f"timeout: no answer in {limit:g} s")
                raise _Passing(None) from None
            finally:
                question.spend(Measured(seconds=time.monotonic() - started))
        self._pay_tokens(question, message)
        return message

    async def _invoke(
        self, schema: type[BaseModel], messages: Sequence[tuple[str, str]], question: Question
    ) -> AIMessage:
        """The message, or its failure as one of this module's exceptions.

        The library's exceptions are not chained: they hold the request, and with it the key.
        """
        from langchain_core.messages import AIMessage

        from agents.chat.faults import FAILURES, Fault, fault_of, fault_text

        try:
            message = await bound(self._model, schema, question.method).ainvoke(list(messages))
        except FAILURES as error:
            fault = fault_of(error, self._endpoint)
        else:
            if isinstance(message, AIMessage):
                return message
            fault = Fault("passing", fault_text(f"no chat completion: a message of {message.type!r}", self._endpoint))
        raise self._failure(fault, question)

    def _failure(self, fault: Fault, question: Question) -> Exception:
        question.faults.append(fault.text)
        self._pay(question, self._priced(fault.prompt_tokens, fault.completion_tokens))
        if fault.kind == "passing":
            return _Passing(fault.asked)
        if fault.kind == "mistake":
            name = f"roles.{self._endpoint.role}"
            return InputError(
                f"the chat endpoint refused the request ({fault.text}): check {self._endpoint.key_variable}, "
                f"{name}.model and {name}.base_url"
            )
        if fault.kind == "format" and question.method == "json_schema" and self.falls_back:
            return _FormatRejected()
        return EndpointFailed(f"the endpoint rejected the request: {fault.text}")

    def _pay_tokens(self, question: Question, message: AIMessage) -> None:
        usage = message.usage_metadata
        if usage is not None:
            self._pay(question, self._priced(usage["input_tokens"], usage["output_tokens"]))
        elif self._ledger.counts_tokens:
            question.faults.append("no token usage in the response")
            raise InputError(
                f"the endpoint of roles.{self._endpoint.role} does not say how many tokens it used: "
                "roles.budget.tokens and roles.budget.money cannot be kept there, use roles.budget.calls"
            )

    def _pay(self, question: Question, cost: Measured) -> None:
        self._ledger.pay(cost)
        question.spend(cost)

    def _priced(self, prompt_tokens: int, completion_tokens: int) -> Measured:
        prompt_price, completion_price = self._settings.price_prompt or 0.0, self._settings.price_completion or 0.0
        money = (prompt_tokens * prompt_price + completion_tokens * completion_price) / MILLION
        return Measured(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, money=money)


def _gate(base_url: str, limit: int) -> asyncio.Semaphore:
    """The endpoint's places, shared by all roles on the running event loop."""
    gates = _gates.setdefault(asyncio.get_running_loop(), {})
    return gates.setdefault((base_url, limit), asyncio.Semaphore(limit))
