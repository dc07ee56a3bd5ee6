"""Opens a chat model on any OpenAI-compatible endpoint and asks it for structured replies.

After a reply that cannot be used there is one repair turn, then a recorded refusal.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from agents.chat.endpoint import Endpoint, resolve
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
from agents.chat.sending import Delivery, FormatRejected, Question
from agents.roles import RoleRefused
from agents.settings import ChatSettings
from agents.spending import Ledger
from environments.base import InputError
from memory.records import Measured

if TYPE_CHECKING:
    from langchain_core.caches import BaseCache
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
        with self._delivery.recorded(question, iteration):
            reply = await self._reply(schema, system, prompt, check, question)
        return reply, question.cost

    async def _reply(
        self,
        schema: type[Reply],
        system: str,
        prompt: str,
        check: Callable[[Reply, bool], str | None],
        question: Question,
    ) -> Reply:
        messages: list[Any] = [("system", f"{system}\n\n{instruction(schema)}"), ("human", prompt)]
        problem = ""
        for final in (False, True):
            message = await self._send(schema, messages, question)
            refusal = _refusal(message)
            if refusal is not None:
                question.faults.append(f"refusal: {self._endpoint.hide(refusal)}")
                raise RoleRefused(f"the model refused: {self._endpoint.hide(refusal)}")
            try:
                reply = read_reply(schema, message)
                self._delivery.works(question)
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

    async def _send(self, schema: type[Reply], messages: list[Any], question: Question) -> AIMessage:
        """Return the model's message. Raises like ``deliver``."""
        if self._binds:
            runnable = bound(self._model, schema)
            try:
                return await self._delivery.deliver(lambda: runnable.ainvoke(messages), question)
            except FormatRejected:
                self._binds = False
        return await self._delivery.deliver(lambda: self._model.ainvoke(messages), question)


def open_model(
    settings: ChatSettings, role: str, ledger: Ledger, concurrency: int, cache: str | None = None
) -> StructuredModel:
    """Open the model of a chat role; ``role`` is its key in the recipe. No request is sent.

    ``concurrency``: most requests in flight at its endpoint, over all roles. ``cache``: SQLite file of replies to
    requests that were asked before, each of which is then not sent. Raises InputError when no model or key is given
    (see ``agents.chat.endpoint``), and where the file cannot be opened as such a cache.
    """
    endpoint = resolve(settings, role)
    # langchain-openai warns when an endpoint rejects a JSON schema; falling back to tool calls is what it advises.
    warnings.filterwarnings("ignore", message="This model does not support OpenAI's structured output feature")
    from langchain_openai import ChatOpenAI

    from agents.chat.http import PLACEHOLDER, GuardedClient, unused_client

    kept: BaseCache | bool = False
    if cache is not None:
        if not Path(cache).parent.is_dir():
            raise InputError(f"roles.cache: {Path(cache).parent} is not a folder: make it, or name another file")
        from langchain_community.cache import SQLiteCache
        from sqlalchemy.exc import SQLAlchemyError

        # SQLiteCache loads its entries with a default that is going to change; the file is the user's own.
        warnings.filterwarnings("ignore", message="The default value of `allowed_objects`")
        try:
            kept = SQLiteCache(cache)
        except SQLAlchemyError as error:
            reason = getattr(error, "orig", None) or type(error).__name__
            raise InputError(f"roles.cache: {cache} cannot be used, {reason}: name another file") from None
    model = ChatOpenAI(
        model=endpoint.model,
        base_url=endpoint.base_url,
        api_key=SecretStr(PLACEHOLDER),
        temperature=settings.temperature,
        max_completion_tokens=settings.max_tokens,
        timeout=settings.timeout,
        max_retries=settings.max_retries,
        openai_proxy=None,  # proxies are those of HTTP_PROXY and its kind, which the HTTP client reads
        use_responses_api=False,
        cache=kept,
        http_async_client=GuardedClient(endpoint),
        http_client=unused_client(),
    )
    return StructuredModel(model, endpoint, settings, ledger, concurrency)


def _refusal(message: AIMessage) -> str | None:
    """Return why the model refused; None if it did not."""
    said = message.additional_kwargs.get("refusal")
    if not said and message.response_metadata.get("finish_reason") == "content_filter":
        said = "the endpoint's content filter stopped it"
    return shortened(str(said), LONGEST_SHOWN) if said else None


def _repair(schema: type[Reply], problem: str) -> str:
    return f"This reply cannot be used: {problem}. Answer again and avoid this. {instruction(schema)}"
