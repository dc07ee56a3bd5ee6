"""Asks a chat model for a structured reply: one repair turn, then a recorded refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from agents.chat.endpoint import Endpoint
from agents.chat.formats import instruction
from agents.chat.replies import LONGEST_SHOWN, Malformed, Reply, read_reply, shortened, shown
from agents.chat.sending import EndpointFailed, Question, Sender
from agents.roles import RoleRefused
from agents.settings import RoleSettings
from agents.spending import BudgetReached, Ledger, Request
from memory.records import Measured

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage

    from agents.chat.caching import ReplyCache

Outcome = Literal["answered", "refused", "failed"]


class StructuredModel:
    """A chat model that answers in pydantic schemas.

    Args:
        model: any LangChain chat model that can be bound to tools or a response format; its own retries should be
            off, because they count here.
        endpoint: where its requests go.
        settings: the role's deadlines, attempts, method and prices.
        ledger: where every question is recorded, and what knows the budgets.
        concurrency: requests in flight at the endpoint at most, together with all others that name it.
        cache: answers to identical requests; None asks the model every time.
    """

    def __init__(
        self,
        model: BaseChatModel,
        endpoint: Endpoint,
        settings: RoleSettings,
        ledger: Ledger,
        concurrency: int = 16,
        cache: ReplyCache | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._ledger = ledger
        self._max_tokens = settings.max_tokens
        self._sender = Sender(model, endpoint, settings, ledger, concurrency, cache)

    async def ask(
        self,
        schema: type[Reply],
        system: str,
        prompt: str,
        check: Callable[[Reply, bool], str | None] = lambda reply, final: None,
        *,
        subject: str,
        iteration: int | None,
    ) -> tuple[Reply, Measured]:
        """A valid reply and what it cost; the ledger gets a line whatever comes of it.

        ``check(reply, final)`` says in a sentence why a well-formed reply cannot be used, or None; ``final`` is True
        for the reply to the repair turn. ``subject`` is the id of the record that is asked about, ``iteration`` None
        for D_0. Raises RoleRefused when the reply cannot be used after one repair or the model refuses; its kinds
        EndpointFailed, when the endpoint does not answer, and BudgetReached, when nothing may be sent any more; and
        InputError when the endpoint refuses the key or the model's name.
        """
        question = self._sender.question(subject)
        outcome: Outcome = "failed"
        try:
            reply = await self._reply(schema, system, prompt, check, question)
            outcome = "answered"
        except asyncio.CancelledError:
            question.faults.append("cancelled")
            raise
        except EndpointFailed:
            raise
        except RoleRefused as refusal:
            outcome = "refused"
            if isinstance(refusal, BudgetReached):
                question.faults.append(str(refusal))
            raise
        finally:
            self._record(question, outcome, iteration)
        return reply, question.cost

    async def _reply(
        self,
        schema: type[Reply],
        system: str,
        prompt: str,
        check: Callable[[Reply, bool], str | None],
        question: Question,
    ) -> Reply:
        messages = [("system", system), ("human", prompt)]
        problem = ""
        for final in (False, True):
            message, cached = await self._sender.send(schema, messages, question)
            question.cached = question.cached or cached
            refusal = _refusal(message)
            if refusal is not None:
                question.faults.append(f"refusal: {self._endpoint.hide(refusal)}")
                raise RoleRefused(f"the model refused: {self._endpoint.hide(refusal)}")
            try:
                reply = read_reply(schema, message)
                problem = check(reply, final) or ""
                if not cached:
                    await self._sender.keep(schema, messages, question, message)
                if not problem:
                    return reply
                problem = shortened(f"unusable: {problem}", LONGEST_SHOWN)
            except Malformed as malformed:
                problem = f"{malformed}{self._cut_off(message)}"
                if malformed.prose and self._sender.falls_back:
                    question.method = "tool_call"
            problem = self._endpoint.hide(problem)
            question.faults.append(problem)
            messages += [("ai", shown(message)), ("human", _repair(schema, problem, question))]
        raise RoleRefused(f"the model's reply cannot be used, after one repair: {problem}")

    def _cut_off(self, message: AIMessage) -> str:
        is_cut = message.response_metadata.get("finish_reason") == "length"
        return f" (cut off at max_tokens, {self._max_tokens})" if is_cut else ""

    def _record(self, question: Question, outcome: Outcome, iteration: int | None) -> None:
        """On the event loop, so that a cancelled question is recorded too: one short line."""
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


def _refusal(message: AIMessage) -> str | None:
    """Why the model refused, None when it did not."""
    said = message.additional_kwargs.get("refusal")
    if not said and message.response_metadata.get("finish_reason") == "content_filter":
        said = "the endpoint's content filter stopped it"
    return shortened(str(said), LONGEST_SHOWN) if said else None


def _repair(schema: type[Reply], problem: str, question: Question) -> str:
    return f"This reply cannot be used: {problem}. Answer again and avoid this. {instruction(schema, question.method)}"
