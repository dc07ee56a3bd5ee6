"""Asks a chat model for a structured reply: one repair turn, then a recorded refusal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agents.chat.endpoint import Endpoint
from agents.chat.replies import (
    LONGEST_SHOWN,
    Malformed,
    Reply,
    bound,
    instruction,
    is_cut_off,
    read_reply,
    shortened,
    shown,
)
from agents.chat.sending import Delivery, EndpointFailed, FormatRejected, Question
from agents.roles import RoleRefused
from agents.settings import ChatSettings
from agents.spending import BudgetReached, Ledger
from memory.records import Measured

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage


class StructuredModel:
    """A chat model that answers in pydantic schemas.

    Args:
        model: a LangChain chat model that can be bound to a response format, and sends every request within
            ``agents.chat.sending.attempt``.
        endpoint: the endpoint of its requests.
        settings: the role's timeouts, retries and prices.
        ledger: records every question and enforces the budgets.
        concurrency: most requests in flight at the endpoint, over all roles that use it.
    """

    def __init__(
        self,
        model: BaseChatModel,
        endpoint: Endpoint,
        settings: ChatSettings,
        ledger: Ledger,
        concurrency: int = 16,
    ) -> None:
        self._model = model
        self._endpoint = endpoint
        self._settings = settings
        self._delivery = Delivery(endpoint, settings, ledger, concurrency)
        self._binds = True  # until the endpoint rejects a JSON schema as the format of a reply

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
        """Return a valid reply and its cost; the ledger gets a line in every case.

        ``check(reply, final)`` returns a sentence on why a well-formed reply is unusable, or None; ``final`` is True
        for the reply to the repair turn. ``subject`` is the id of the record in question, ``iteration`` None for D_0.

        Raises RoleRefused when the reply is unusable after one repair or the model refuses, and its subclasses
        EndpointFailed, when the endpoint does not answer, and BudgetReached, when a budget is spent; InputError when
        the endpoint refuses the key or the model's name; RepeatedFailure instead of the first two after too many
        consecutive questions without a readable reply: one that is readable and unusable shows that the model works.
        """
        question = Question(subject)
        try:
            with self._delivery.recorded(question, iteration):
                reply = await self._reply(schema, system, prompt, check, question)
        except BudgetReached:
            raise
        except RoleRefused as refusal:
            if isinstance(refusal, EndpointFailed) or not question.read:
                self._delivery.stop_where_hopeless(
                    refusal, "questions in a row got no reply that can be read", self._advice(refusal)
                )
            raise
        return reply, question.cost

    def _advice(self, refusal: RoleRefused) -> str:
        if isinstance(refusal, EndpointFailed):
            url = self._endpoint.setting("base_url")
            return f"check {url} and whether the endpoint answers, lower roles.concurrency if it is limited"
        return f"try a larger {self._endpoint.setting('max_tokens')} or another model"

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
            message = await self._send(schema, messages, question)
            refusal = _refusal(message)
            if refusal is not None:
                question.faults.append(f"refusal: {self._endpoint.hide(refusal)}")
                raise RoleRefused(f"the model refused: {self._endpoint.hide(refusal)}")
            try:
                reply = read_reply(schema, message)
                question.read = True
                self._delivery.works()
                problem = check(reply, final) or ""
                if not problem:
                    return reply
                problem = shortened(f"unusable: {problem}", LONGEST_SHOWN)
            except Malformed as malformed:
                cut_off = f" (cut off at max_tokens, {self._settings.max_tokens})" if is_cut_off(message) else ""
                problem = f"{malformed}{cut_off}"
            problem = self._endpoint.hide(problem)
            question.faults.append(problem)
            messages += [("ai", shown(message)), ("human", _repair(schema, problem))]
        raise RoleRefused(f"the model's reply cannot be used, after one repair: {problem}")

    async def _send(self, schema: type[Reply], messages: Sequence[tuple[str, str]], question: Question) -> AIMessage:
        """Return the model's message; the system message comes first in ``messages``. Raises like ``deliver``."""
        (role, system), *others = messages
        sent: Any = [(role, f"{system}\n\n{instruction(schema)}"), *others]
        if self._binds:
            runnable = bound(self._model, schema)
            try:
                return await self._delivery.deliver(lambda: runnable.ainvoke(sent), question)
            except FormatRejected:
                self._binds = False
        return await self._delivery.deliver(lambda: self._model.ainvoke(sent), question)


def _refusal(message: AIMessage) -> str | None:
    """Return why the model refused; None if it did not."""
    said = message.additional_kwargs.get("refusal")
    if not said and message.response_metadata.get("finish_reason") == "content_filter":
        said = "the endpoint's content filter stopped it"
    return shortened(str(said), LONGEST_SHOWN) if said else None


def _repair(schema: type[Reply], problem: str) -> str:
    return f"This reply cannot be used: {problem}. Answer again and avoid this. {instruction(schema)}"
