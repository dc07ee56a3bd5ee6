"""Chat models for tests: one that answers from a table in this process, and real ones on the faulty server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import SecretStr
from support.faulty_server import KEY

from agents.chat.endpoint import Endpoint
from agents.chat.models import StructuredModel, open_model
from agents.chat.sending import SENDING
from agents.settings import BudgetSettings, RoleSettings
from agents.spending import Ledger


class TableModel(BaseChatModel):
    """Gives the next reply of a table: a message, an exception to raise, or seconds to hang. Keeps what it was sent."""

    replies: list[Any]
    sent: list[list[BaseMessage]] = []

    @property
    def _llm_type(self) -> str:
        return "table"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise AssertionError("the roles ask asynchronously")

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        question = SENDING.get()
        async with question.attempt():
            self.sent.append(messages)
            reply = self.replies.pop(0)
            if isinstance(reply, float):
                await asyncio.sleep(reply)
            if isinstance(reply, BaseException):
                raise reply
            usage = reply.usage_metadata
            question.used(None if usage is None else (usage["input_tokens"], usage["output_tokens"]))
        return ChatResult(generations=[ChatGeneration(message=reply)])

    def prompts(self) -> str:
        """Everything that was sent, as one text."""
        return "\n".join(str(message.content) for messages in self.sent for message in messages)


def reply(schema: str, **arguments: Any) -> AIMessage:
    """A call of the schema; 100 tokens read and 10 written."""
    return AIMessage(
        content="",
        tool_calls=[{"name": schema, "args": arguments, "id": "1", "type": "tool_call"}],
        usage_metadata={"input_tokens": 100, "output_tokens": 10, "total_tokens": 110},
    )


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch) -> None:
    """Let openai's client send again at once; what a Retry-After asks for is waited all the same."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    """A ledger without budgets, in spending.jsonl."""
    return Ledger(tmp_path / "spending.jsonl", BudgetSettings())


@pytest.fixture
def table(ledger):
    """``table(*replies)``: the fake model and the asking side."""

    def make(*replies: Any, ledger: Ledger = ledger, **changes: Any) -> tuple[TableModel, StructuredModel]:
        model = TableModel(replies=list(replies), sent=[])
        fields = {"timeout": 30.0}
        settings = RoleSettings.model_validate({"kind": "chat", "model": "table", **fields, **changes})
        endpoint = Endpoint("explorer", "table", "http://table", "OPENAI_API_KEY", SecretStr(KEY), settings)
        return model, StructuredModel(model, endpoint, ledger)

    return make


@pytest.fixture
def say():
    return reply


@pytest.fixture
def connect(monkeypatch, ledger):
    """``connect(server)``: the explorer's model on a server, through everything that a real endpoint would see."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def make(
        server: Any,
        *,
        ledger: Ledger = ledger,
        concurrency: int = 16,
        bound: bool = True,
        cache: str | None = None,
        **changes: Any,
    ) -> StructuredModel:
        monkeypatch.setenv("COEVOLVE_KEYS", f"{server.url}=OPENAI_API_KEY" if bound else "")
        fields = {"model": "some-model", "base_url": server.url, "timeout": 10.0}
        settings = RoleSettings.model_validate({"kind": "chat", **fields, **changes})
        return open_model(settings, "explorer", ledger, concurrency, cache)

    return make
