"""The models behind an OpenAI-compatible endpoint: one that answers in schemas, and one that calls tools.

The roles ask for structured replies through LangChain. After a reply that cannot be used there is one repair turn, then
a recorded refusal. A model that is scored acts in messages and native tool calls, and the OpenAI client is used
directly: LangChain's messages sort the calls of a reply into readable and unreadable ones, which loses their order, and
read values that no record can hold.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from openai import AsyncOpenAI, DefaultHttpxClient
from pydantic import SecretStr

from agents.chat.endpoint import Endpoint, resolve
from agents.chat.parameters import Parameters, parameters_of
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
from agents.chat.sending import (
    PLACEHOLDER,
    Delivery,
    GuardedClient,
    Question,
    certificates,
)
from agents.settings import ChatSettings
from agents.spending import Ledger, RoleRefused
from memory.records import Measured

if TYPE_CHECKING:
    from langchain_core.caches import BaseCache
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from openai.types.chat import ChatCompletion

FILTERED = "the endpoint's content filter stopped it"


class StructuredModel:
    """A chat model that answers in pydantic schemas.

    Args:
        model: a LangChain chat model that can be bound to a response format, and sends every request within the
            ``attempt`` of the question in ``agents.chat.sending.SENDING``.
        endpoint: the endpoint of its requests.
        ledger: records every question and enforces the budgets.
        concurrency: most requests in flight at the endpoint, over all roles that use it.
    """

    def __init__(self, model: BaseChatModel, endpoint: Endpoint, ledger: Ledger, concurrency: int = 16) -> None:
        self._model = model
        self._endpoint = endpoint
        self._delivery = Delivery(endpoint, ledger, concurrency)

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
        messages: list[Any] = [("system", f"{system}\n\n{instruction(schema)}"), ("human", prompt)]
        problem = ""
        with self._delivery.question(subject, iteration) as question:
            for final in (False, True):
                message = await self._send(schema, messages, question)
                if refusal := _refusal(message):
                    question.works()
                    question.faults.append(f"refusal: {self._endpoint.hide(refusal)}")
                    raise RoleRefused(f"the model refused: {self._endpoint.hide(refusal)}")
                try:
                    reply = read_reply(schema, message)
                    question.works()
                    unusable = check(reply, final)
                    if not unusable:
                        return reply, question.cost
                    problem = shortened(f"unusable: {unusable}", LONGEST_SHOWN)
                except Malformed as malformed:
                    limit = self._endpoint.settings.max_tokens
                    problem = f"{malformed} (cut off at max_tokens, {limit})" if is_cut_off(message) else str(malformed)
                problem = self._endpoint.hide(problem)
                question.faults.append(problem)
                repair = f"This reply cannot be used: {problem}. Answer again and avoid this. {instruction(schema)}"
                messages += [("ai", shown(message)), ("human", repair)]
            raise RoleRefused(f"the model's reply cannot be used, after one repair: {problem}")

    async def _send(self, schema: type[Reply], messages: list[Any], question: Question) -> AIMessage:
        runnable = bound(self._model, schema)
        return await question.deliver(lambda: runnable.ainvoke(messages))


def _refusal(message: AIMessage) -> str | None:
    said = message.additional_kwargs.get("refusal")
    if not said and message.response_metadata.get("finish_reason") == "content_filter":
        said = FILTERED
    return shortened(str(said), LONGEST_SHOWN) if said else None


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
        cache=False if cache is None else _opened_cache(cache),
        http_async_client=GuardedClient(endpoint),
        http_client=DefaultHttpxClient(verify=certificates()),  # never used, but made at length where it is not given
    )
    return StructuredModel(model, endpoint, ledger, concurrency)


def _opened_cache(path: str) -> BaseCache:
    from agents.chat.cache import ReplyCache

    return ReplyCache(path)


Message = dict[str, Any]
Schema = dict[str, Any]


class WrittenCall(NamedTuple):
    """One tool call as the model wrote it: a name, and the arguments as a text."""

    name: str
    arguments: str


class ChatReply(NamedTuple):
    """One reply. ``refusal`` says why the model or the endpoint's filter refused, None where neither did.

    ``cut_off``: the reply reached the limit of its tokens. ``tokens`` of prompt and reply, None where the endpoint does
    not report them.
    """

    text: str
    calls: tuple[WrittenCall, ...]
    refusal: str | None
    cut_off: bool
    tokens: tuple[int, int] | None


class ToolCallingModel:
    """A chat model that is given messages and tools; arguments as those of ``StructuredModel``."""

    def __init__(self, endpoint: Endpoint, ledger: Ledger, concurrency: int) -> None:
        self._endpoint = endpoint
        self._delivery = Delivery(endpoint, ledger, concurrency)
        self._client = AsyncOpenAI(
            api_key=PLACEHOLDER,
            base_url=endpoint.base_url,
            timeout=endpoint.settings.timeout,
            max_retries=endpoint.settings.max_retries,
            http_client=GuardedClient(endpoint),
        )

    @property
    def changes(self) -> Parameters:
        """What was sent in place of parameters that the endpoint does not take."""
        return parameters_of(self._endpoint.base_url, self._endpoint.model)

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Schema], *, max_tokens: int, subject: str
    ) -> ChatReply:
        """Return the model's next message of at most ``max_tokens`` tokens; the ledger gets a line in every case.

        ``subject`` is the id of the record in question. Raises ContextExceeded, RoleRefused,
        EndpointFailed, BudgetReached and InputError like ``Question.deliver``; RepeatedFailure instead of
        EndpointFailed after too many consecutive requests without an answer.
        """
        temperature = self._endpoint.settings.temperature
        options: dict[str, Any] = {"tools": list(tools)} if tools else {}
        options |= {} if temperature is None else {"temperature": temperature}

        async def ask() -> ChatCompletion:
            sent: Any = list(messages)
            completion: ChatCompletion = await self._client.chat.completions.create(
                model=self._endpoint.model, messages=sent, max_completion_tokens=max_tokens, **options
            )
            return completion

        with self._delivery.question(subject, None) as question:
            answered = await question.deliver(ask)
            question.works()
        return self._read(answered)

    def _read(self, completion: ChatCompletion) -> ChatReply:
        choice, usage = completion.choices[0], completion.usage
        message = choice.message
        refusal = message.refusal or (FILTERED if choice.finish_reason == "content_filter" else None)
        # The transport passes on functions alone.
        calls = tuple(
            WrittenCall(call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
            if call.type != "custom"
        )
        return ChatReply(
            text=message.content or "",
            calls=calls,
            refusal=refusal and self._endpoint.hide(refusal),
            cut_off=choice.finish_reason == "length",
            tokens=None if usage is None else (usage.prompt_tokens or 0, usage.completion_tokens or 0),
        )
