"""Replies from a file in place of a chat endpoint, and the prompts and replies of whatever model is asked.

A walkthrough, a demonstration or a bug report needs chat roles that answer the same everywhere, without a key and
without a network. Only the model is replaced: prompts, limits, the repair turn, budgets and the ledger are those of a
real endpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult, LLMResult
from langchain_core.tracers.context import register_configure_hook
from pydantic import Field, JsonValue, SecretStr

from agents.chat.endpoint import MODEL_VARIABLE, Endpoint
from agents.chat.sending import attempt
from agents.chat.structured import StructuredModel, open_model
from agents.settings import ChatSettings
from agents.spending import Ledger
from environments.base import InputError, Record
from memory.jsonl import read_jsonl

CHARACTERS_OF_A_TOKEN = 4
"""Recorded replies have no tokenizer: the ledger counts this many characters as one token (ours)."""


class RecordedReply(Record):
    """One line of a file of replies: what the model of ``role`` says to its next request.

    ``content`` is the text of the message; anything but a text is written as JSON first. ``repeat``: the text is said
    so many times in one message, for replies that are too long for a file. ``note`` is for readers of the file.
    """

    role: str
    content: JsonValue
    repeat: int = Field(1, ge=1, le=10_000_000)
    note: str = ""

    @property
    def text(self) -> str:
        """The text of the message."""
        text = self.content if isinstance(self.content, str) else json.dumps(self.content, ensure_ascii=False)
        return text * self.repeat


class RecordedModel(BaseChatModel):
    """A LangChain chat model that gives ``replies`` in their order, whatever it is asked.

    Tokens are estimated (``CHARACTERS_OF_A_TOKEN``). Raises InputError, which names ``source``, when none is left.
    """

    replies: list[RecordedReply]
    source: str

    @property
    def _llm_type(self) -> str:
        return "recorded"

    def _generate(self, messages: list[BaseMessage], *arguments: object, **options: object) -> ChatResult:
        if not self.replies:
            raise InputError(f"{self.source} has no further reply: add a line, or ask fewer questions")
        text = self.replies.pop(0).text
        asked = sum(len(str(message.content)) for message in messages) // CHARACTERS_OF_A_TOKEN
        said = len(text) // CHARACTERS_OF_A_TOKEN
        generation = ChatGeneration(message=AIMessage(content=text))
        return ChatResult(generations=[generation], llm_output={"tokens": (asked, said)})

    async def _agenerate(self, messages: list[BaseMessage], *arguments: object, **options: object) -> ChatResult:
        async with attempt() as ended:
            result = self._generate(messages)
            ended((result.llm_output or {})["tokens"])
            return result


def open_recorded(path: Path, role: str, ledger: Ledger, limits: ChatSettings | None = None) -> StructuredModel:
    """Open the replies of ``role`` in ``path`` as a chat model, in the order of the file.

    ``limits`` are the role's settings (timeout, prices). Raises InputError for a file that cannot be read,
    and for one without a reply of the role.
    """
    replies = [one for one in read_jsonl(path, RecordedReply) if one.role == role]
    if not replies:
        raise InputError(f"{path} has no reply of the role {role!r}: name another file or role")
    endpoint = Endpoint(role, "recorded", "http://recorded", "none", SecretStr(""))
    model = RecordedModel(replies=replies, source=f"{path.name} ({role})")
    return StructuredModel(model, endpoint, limits or ChatSettings(), ledger)


def open_role(role: str, ledger: Ledger, recorded: Path) -> StructuredModel:
    """Open a real endpoint for ``role`` where ``COEVOLVE_CHAT_MODEL`` is set, else the replies in ``recorded``.

    The endpoint is the one that ``agents.chat.endpoint`` resolves. Raises InputError like ``open_model`` and
    ``open_recorded``.
    """
    if os.environ.get(MODEL_VARIABLE):
        return open_model(ChatSettings(), role, ledger, concurrency=1)
    return open_recorded(recorded, role, ledger)


@dataclass
class Exchange:
    """One request to a chat model. ``system`` and ``user`` open it, ``repair`` is its repair turn's text, if any."""

    system: str
    user: str
    repair: str = ""
    reply: str = ""


@dataclass
class _Listener(AsyncCallbackHandler):
    exchanges: list[Exchange] = field(default_factory=list)
    _open: dict[object, Exchange] = field(default_factory=dict)

    async def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], **given: object
    ) -> None:
        texts = [str(message.content) for message in messages[0]]
        exchange = Exchange(texts[0], texts[1], texts[-1] if len(texts) > 2 else "")
        self.exchanges.append(exchange)
        self._open[given["run_id"]] = exchange

    async def on_llm_end(self, response: LLMResult, **given: object) -> None:
        generation = response.generations[0][0]
        if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
            calls = [json.dumps(call["args"], ensure_ascii=False) for call in generation.message.tool_calls]
            self._open.pop(given["run_id"]).reply = "\n".join([str(generation.message.text), *calls]).strip()


_LISTENER: ContextVar[_Listener | None] = ContextVar("exchanges", default=None)
register_configure_hook(_LISTENER, inheritable=True)


@contextmanager
def exchanges() -> Iterator[list[Exchange]]:
    """Collect every request that a chat model is sent inside the block, with its reply, in the order of sending.

    Recorded models and real endpoints alike; a request that failed has an empty reply.
    """
    listener = _Listener()
    token = _LISTENER.set(listener)
    try:
        yield listener.exchanges
    finally:
        _LISTENER.reset(token)
