"""A chat model that acts: messages and tools go to its endpoint, its text and its native tool calls come back.

The OpenAI client is used directly. LangChain's messages sort the calls of a reply into readable and unreadable ones,
which loses their order, and read values that no record can hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from agents.chat.endpoint import Endpoint
from agents.chat.sending import ContextExceeded, Delivery, Question, Usage
from agents.settings import ChatSettings
from agents.spending import Ledger

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

Message = dict[str, Any]
Schema = dict[str, Any]


class WrittenCall(NamedTuple):
    """One tool call as the model wrote it: the endpoint's id of it, a name, and the arguments as a text."""

    id: str
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
    tokens: Usage | None


class ToolCallingModel:
    """A chat model on an OpenAI-compatible endpoint that is given messages and tools.

    Args:
        endpoint: where requests go.
        settings: temperature, timeouts, retries and prices.
        ledger: records every reply and enforces the budgets.
        concurrency: most requests in flight.

    No request is sent before ``reply``.
    """

    def __init__(self, endpoint: Endpoint, settings: ChatSettings, ledger: Ledger, concurrency: int) -> None:
        from openai import AsyncOpenAI

        from agents.chat.http import PLACEHOLDER, GuardedClient

        self._endpoint = endpoint
        self._settings = settings
        self._delivery = Delivery(endpoint, settings, ledger, concurrency)
        self._client = AsyncOpenAI(
            api_key=PLACEHOLDER,
            base_url=endpoint.base_url,
            timeout=settings.timeout,
            max_retries=settings.max_retries,
            http_client=GuardedClient(endpoint),
        )

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Schema], *, max_tokens: int, subject: str
    ) -> ChatReply:
        """Return the model's next message of at most ``max_tokens`` tokens; the ledger gets a line in every case.

        ``subject`` is the id of the record in question. Raises ContextExceeded for messages that are longer than the
        model's context; EndpointFailed, BudgetReached and InputError like ``Delivery.deliver``; RepeatedFailure instead
        of EndpointFailed after too many consecutive requests without an answer.
        """
        question = Question(subject)
        options: dict[str, Any] = {"tools": list(tools)} if tools else {}
        if self._settings.temperature is not None:
            options["temperature"] = self._settings.temperature

        async def ask() -> ChatCompletion:
            sent: Any = list(messages)
            completion: ChatCompletion = await self._client.chat.completions.create(
                model=self._endpoint.model, messages=sent, max_completion_tokens=max_tokens, **options
            )
            return completion

        with self._delivery.recorded(question, iteration=None):
            try:
                answered = await self._delivery.deliver(ask, question)
            except ContextExceeded:  # the endpoint works
                self._delivery.works(question)
                raise
            self._delivery.works(question)
        return self._read(answered)

    def _read(self, completion: ChatCompletion) -> ChatReply:
        choice = completion.choices[0]
        message = choice.message
        refusal = message.refusal or None
        if refusal is None and choice.finish_reason == "content_filter":
            refusal = "the endpoint's content filter stopped it"
        # A reply of a kind that this project never asks for (custom tools) has no function: the client checked.
        calls = tuple(
            WrittenCall(call.id or "", call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
            if call.type != "custom"
        )
        return ChatReply(
            text=_text(message.content),
            calls=calls,
            refusal=None if refusal is None else self._endpoint.hide(refusal),
            cut_off=choice.finish_reason == "length",
            tokens=_usage(completion),
        )


def _usage(completion: ChatCompletion) -> Usage | None:
    usage = completion.usage
    return None if usage is None else (usage.prompt_tokens or 0, usage.completion_tokens or 0)


def _text(content: Any) -> str:  # noqa: ANN401 - some endpoints send a list of parts, which the client passes on
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content or ""
